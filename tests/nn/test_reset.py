"""`reset_parameters` draws what a new layer would draw."""

import copy
from typing import Any

import pytest
import torch

from tests.nn.comparators import CASES


def reset(layer: Any, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    layer.reset_parameters()
    return copy.deepcopy(layer.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_comparators_draw_their_first_values_again(name):
    """In the parameters that an optimizer has; there was no such method."""
    network = CASES[name].network(num_layers=2, generator=None)
    before = dict(network.named_parameters())
    first, second, again = (reset(network, seed) for seed in (1, 2, 1))
    torch.manual_seed(1)
    new = CASES[name].network(num_layers=2, generator=None).state_dict()
    for key, X in new.items():
        assert torch.equal(first[key], X)
        assert torch.equal(again[key], X)
    assert all(p is before[key] for key, p in network.named_parameters())
    drawn = [key for key in new if not torch.equal(first[key], second[key])]
    assert any("weight_ih" in key for key in drawn)


def test_a_comparator_in_half_precision_on_meta():
    """Shapes and dtypes stay what they are; on meta there is nothing to draw."""
    network = CASES["scornn"].network(dtype=torch.bfloat16)
    network.reset_parameters()
    assert all(p.dtype == torch.bfloat16 for p in network.parameters())
    network = CASES["urnn"].network(device="meta")
    network.reset_parameters()
    assert all(p.is_meta for p in network.parameters())
