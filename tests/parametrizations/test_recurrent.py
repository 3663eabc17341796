"""Constrained weights of torch's recurrent modules.

pytorch#65688: they keep a list of their weights, and used to train on an old one.
"""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import isometry
from tests.helpers import shifted_seed

SIZES = (3, 5)


def states(module: nn.RNNBase, x: Tensor) -> Tensor:
    """The recurrence of torch's documentation in a loop, with the current weights."""
    W_ih, W_hh = module.weight_ih_l0, module.weight_hh_l0
    b = module.bias_ih_l0, module.bias_hh_l0
    h = c = x.new_zeros(x.shape[1], module.hidden_size)
    outputs = []
    for x_t in x:
        u, v = x_t @ W_ih.mT + b[0], h @ W_hh.mT + b[1]
        if isinstance(module, nn.LSTM):
            i, f, g, o = (u + v).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        elif isinstance(module, nn.GRU):
            (r, z, n), (r2, z2, n2) = u.chunk(3, -1), v.chunk(3, -1)
            z = (z + z2).sigmoid()
            h = (1 - z) * (n + (r + r2).sigmoid() * n2).tanh() + z * h
        else:
            h = (u + v).tanh()
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("name", ["weight_hh_l0", "weight_ih_l0"])
def test_trains_like_the_reference_recurrence(kind, name, rng):
    """Twenty steps of SGD agree with the loop, and the coordinates get gradients."""
    torch.manual_seed(shifted_seed(0))
    module = kind(*SIZES, dtype=torch.float64)
    isometry.orthogonal(module, name)
    twin = copy.deepcopy(module)
    x = torch.randn(7, 2, 3, dtype=torch.float64, generator=rng)
    target = torch.randn(7, 2, 5, dtype=torch.float64, generator=rng)
    before = getattr(module, name).detach().clone()
    models = ((module, lambda: module(x)[0]), (twin, lambda: states(twin, x)))
    for model, run in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for _ in range(20):
            optimizer.zero_grad()
            (run() - target).square().sum().backward()
            optimizer.step()
    # 1e-10: rounding, in twenty steps; the worst was 4e-13
    assert_close(getattr(module, name), getattr(twin, name), rtol=0, atol=1e-10)
    assert torch.dist(getattr(module, name), before) > 0.1


def test_a_weight_is_computed_once_in_a_forward_pass():
    module = isometry.orthogonal(nn.RNN(*SIZES), "weight_hh_l0")
    calls = []
    constraint = module.parametrizations.weight_hh_l0[0]
    hook = constraint.register_forward_hook(lambda *_: calls.append(1))
    module(torch.randn(4, 2, 3))
    hook.remove()
    assert len(calls) == 1


def test_state_after_a_forward_pass_is_not_stale():
    """After a read without gradients, training, deepcopy, load and move are seen."""
    module = isometry.orthogonal(nn.GRU(*SIZES), "weight_hh_l0")
    x = torch.randn(4, 2, 3)
    with torch.no_grad():
        module(x)
    module(x)[0].sum().backward()
    assert module.parametrizations.weight_hh_l0.original.grad.abs().sum() > 0
    copied = copy.deepcopy(module)
    assert_close(copied(x)[0], module(x)[0])
    other = isometry.orthogonal(nn.GRU(*SIZES), "weight_hh_l0")
    other(x)
    other.load_state_dict(module.state_dict())
    assert_close(other(x)[0], module(x)[0])
    module.double()
    assert_close(module(x.double())[0], other(x)[0].double(), rtol=0, atol=1e-6)


def test_folded_module_is_torchs_own_again():
    module = isometry.orthogonal(nn.LSTM(*SIZES, num_layers=2), "weight_hh_l1")
    x = torch.randn(4, 2, 3)
    before = module(x)[0]
    isometry.fold(module)
    assert type(module) is nn.LSTM
    assert_close(module(x)[0], before)
    module(x)[0].sum().backward()
    assert module.weight_hh_l1.grad.abs().sum() > 0


def test_two_weights_of_one_module():
    module = nn.RNN(*SIZES, bidirectional=True)
    isometry.orthogonal(module, "weight_hh_l0")
    isometry.orthogonal(module, "weight_hh_l0_reverse")
    module(torch.randn(4, 2, 3))[0].pow(2).sum().backward()
    for name in ("weight_hh_l0", "weight_hh_l0_reverse"):
        assert module.parametrizations[name].original.grad.abs().sum() > 0


def test_folded_layers_have_a_complete_list_of_weights():
    """After `fold`, torch's list of weights holds the parameters, as in a new layer.

    Eager mode refills an empty list in each forward pass. TorchScript and
    `flatten_parameters` do not.
    """
    layer = nn.LSTM(3, 4, 2)
    for name in ("weight_hh_l0", "weight_hh_l1"):
        isometry.orthogonal(layer, name, blocks=4)
    isometry.fold(layer)
    names: list[str] = layer._flat_weights_names
    weights = [getattr(layer, name) for name in names]
    assert len(names) == 8
    assert [*map(id, layer._flat_weights)] == [*map(id, weights)]
