"""`reset_parameters` draws what a new layer would draw."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry import manifold_of
from isometry.nn import ExpGRU, ExpLSTM, ExpRNN, ExpRNNCell
from tests.nn.comparators import CASES


def reset(layer: Any, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    layer.reset_parameters()
    return copy.deepcopy(layer.state_dict())


LAYERS: dict[str, Callable[[], Any]] = {
    "exp": lambda: ExpRNN(3, 6, 2, bidirectional=True),
    "exp unitary": lambda: ExpRNN(3, 6, unitary=True, train_h0=True),
    "exp without a bias": lambda: ExpRNN(3, 6, bias=False, nonlinearity="tanh"),
    "exp moving base": lambda: ExpRNN(3, 6, rebase_every=2, init="haar"),
    "exp cayley": lambda: ExpRNN(3, 6, retraction="cayley", init="cayley"),
    "exp by angles": lambda: ExpRNN(3, 6, init=lambda shape, _: torch.rand(shape)),
    "exp half": lambda: ExpRNN(3, 6, dtype=torch.bfloat16),
    "cell": lambda: ExpRNNCell(3, 6),
    "lstm": lambda: ExpLSTM(3, 6, 2),
    "gru": lambda: ExpGRU(3, 6, rebase_every=2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_draw_their_first_values_again(name, rng):
    """`reset_parameters` draws all values again, the recurrent weight by its `init`.

    That weight used to stay as it was.
    """
    layer = LAYERS[name]()
    before = dict(layer.named_parameters())
    train(layer, rng)
    state = reset(layer, 1)
    torch.manual_seed(1)
    new = LAYERS[name]()
    for key, X in new.state_dict().items():
        assert torch.equal(state[key], X), key
    for cell, theirs in zip(cells(layer), cells(new), strict=True):
        assert torch.equal(cell.weight_hh, theirs.weight_hh)
    assert all(p is before[key] for key, p in layer.named_parameters())


@pytest.mark.parametrize("name", ["exp moving base", "gru"])
def test_a_weight_that_is_the_identity_is_drawn_again(name):
    """A weight that is the identity is drawn again.

    `reset_parameters` first writes the identity. This write used to go unnoticed if the
    weight had this value already.
    """
    layer = LAYERS[name]()
    cell = cells(layer)[0]
    cell.weight_hh = torch.eye(6).expand_as(cell.weight_hh)
    layer.reset_parameters()
    assert torch.dist(cell.weight_hh, torch.eye(6)) > 0.1


def train(layer: Any, rng: torch.Generator) -> None:
    """Make one step, so that all values and counters differ from the start."""
    cell = cells(layer)[0]
    x = torch.randn(4, 2, 3, generator=rng).to(cell.weight_ih.real.dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    out = layer(x[0]) if isinstance(layer, ExpRNNCell) else layer(x)[0]
    out.abs().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def cells(layer: Any) -> list[Any]:
    return [layer] if isinstance(layer, ExpRNNCell) else list(layer.cells)


def test_a_layer_made_on_meta_is_drawn_by_its_reset():
    """A layer made on meta is drawn by `to_empty` and `reset_parameters`."""
    layer = ExpRNN(3, 6, rebase_every=2, device="meta").to_empty(device="cpu")
    state = reset(layer, 1)
    torch.manual_seed(1)
    for key, X in ExpRNN(3, 6, rebase_every=2).state_dict().items():
        assert torch.equal(state[key], X), key


@pytest.mark.errors
@pytest.mark.parametrize("kind", [ExpRNN, ExpLSTM, ExpGRU])
def test_the_usual_loop_over_recurrent_weights_is_refused(kind):
    """A loop that initializes every `weight_hh` is refused.

    It finds the coordinates, whose names contain `weight_hh`, and used to fill them.
    """
    layer = kind(3, 6)
    for key, p in layer.named_parameters():
        if "weight_hh" in key:
            nn.init.orthogonal_(p)
    with pytest.raises(ValueError, match="as if they were the weight"):
        layer(torch.ones(3, 2, 3))


@pytest.mark.parametrize("name", CASES)
def test_comparators_draw_their_first_values_again(name):
    """`reset_parameters` of a comparator draws into the existing parameters.

    There was no such method before.
    """
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


@pytest.mark.parametrize(
    ("name", "weights"), [("full", ["weight_hh"]), ("spectral", ["U", "V"])]
)
def test_a_constrained_comparator_draws_its_first_values_again(name, weights):
    """After `constrain`, the weights are drawn as before, and stay constrained.

    `reset_parameters` used to raise a TypeError.
    """
    network = CASES[name].network(generator=None)
    cell = network.cells[0]
    for weight in weights:
        isometry.constrain(cell, weight, manifold_of(cell, weight))
    before = dict(network.named_parameters())
    state = reset(network, 1)
    torch.manual_seed(1)
    (new,) = CASES[name].network(generator=None).cells
    for key, X in new.named_parameters():
        # an orthogonal matrix is polished, which changes only its rounding errors
        assert_close(getattr(cell, key), X)
    assert all(f"cells.0.parametrizations.{key}.original" in state for key in weights)
    assert all(p is before[key] for key, p in network.named_parameters())


def test_a_comparator_in_half_precision_on_meta():
    """`reset_parameters` keeps shapes and dtypes, and does nothing on meta."""
    network = CASES["scornn"].network(dtype=torch.bfloat16)
    network.reset_parameters()
    assert all(p.dtype == torch.bfloat16 for p in network.parameters())
    network = CASES["urnn"].network(device="meta")
    network.reset_parameters()
    assert all(p.is_meta for p in network.parameters())
