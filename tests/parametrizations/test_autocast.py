"""Inside `torch.autocast`, weights are made, assigned, loaded and checked in full.

Products of float32 matrices are computed in bfloat16 there, which has 8 bits. All tests
but the one of plain checkpoints failed before isometry switched autocast off there.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

import isometry
from isometry.groups import SO, Exp, Stiefel
from isometry.optim import RiemannianSGD
from isometry.parametrizations._holder import constrained


@pytest.fixture(autouse=True)
def autocast() -> Iterator[None]:
    """Autocast to bfloat16 for the whole test."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def rotation(n: int) -> torch.Tensor:
    """A rotation, orthogonal up to rounding in single precision."""
    return SO(n).random(dtype=torch.float64).float()


@pytest.mark.parametrize("options", [{}, {"use_trivialization": False, "det": 1}])
def test_a_layer_keeps_its_weight_when_it_is_constrained(options):
    layer = nn.Linear(6, 6)
    Q = rotation(6)
    layer.weight.data = Q.clone()
    isometry.orthogonal(layer, **options)
    assert_close(layer.weight, Q)
    assert isometry.diagnose(layer)["weight"].orthogonality_error < 1e-6


def test_recurrent_layers_can_be_made():
    layer = isometry.nn.ExpRNN(2, 16)
    (found,) = isometry.diagnose(layer).values()
    assert found.orthogonality_error < 1e-6


def test_an_orthogonal_matrix_is_assigned_as_it_is():
    layer = isometry.orthogonal(nn.Linear(6, 6))
    Q = rotation(6)
    layer.weight = Q
    assert_close(layer.weight, Q)


def test_a_checkpoint_loads_the_weight_that_was_saved():
    layer = isometry.orthogonal(nn.Linear(6, 6))
    other = isometry.orthogonal(nn.Linear(6, 6))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)


def test_a_plain_checkpoint_loads_the_weight_that_was_saved():
    plain = nn.Linear(6, 6)
    plain.weight.data = rotation(6)
    layer = isometry.orthogonal(nn.Linear(6, 6))
    isometry.load_foreign(layer, plain.state_dict())
    assert_close(layer.weight, plain.weight)


@pytest.mark.parametrize("shape", [(6, 6), (6, 3), (3, 6)], ids=str)
def test_a_parametrized_checkpoint_loads_the_weight_that_was_saved(shape):
    """A checkpoint of torch's `orthogonal` loads the weight that torch computes.

    A square one used to be refused, and a rectangular one was off by 4e-3.
    """
    peer = nn.Linear(*shape)
    with torch.autocast("cpu", enabled=False):
        parametrizations.orthogonal(peer, orthogonal_map="cayley")
        peer.parametrizations.weight.original.data.normal_()
        W = peer.weight.detach()
    layer = isometry.orthogonal(nn.Linear(*shape))
    isometry.load_foreign(layer, peer.state_dict(), retraction="cayley")
    # twice the worst over 200 seeds, 4.9e-7
    assert_close(layer.weight, W, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["layer", "recurrent layer"])
def test_a_radius_moves_the_base(kind):
    """A step that passes `rebase_radius` moves the base.

    The step used to raise "low precision", after it had changed the coordinates.
    """
    if kind == "layer":
        layer = isometry.orthogonal(nn.Linear(6, 6), rebase_radius=1.0)
    else:
        layer = isometry.nn.ExpRNN(2, 6, rebase_radius=1.0)
    (entry,) = constrained(layer)
    optimizer = torch.optim.SGD([entry.coordinates], lr=1.0)
    entry.coordinates.grad = torch.zeros(6, 6)
    entry.coordinates.grad[1, 0] = 1.1
    optimizer.step()
    assert torch.equal(entry.coordinates, torch.zeros(6, 6))
    (found,) = isometry.diagnose(layer).values()
    assert found.orthogonality_error < 1e-6


@pytest.mark.parametrize("n", [3, 6, 40])
@pytest.mark.parametrize(
    "retraction", ["exp", Exp(reach=9.0), "cayley", "pade-3", "householder"], ids=str
)
@pytest.mark.parametrize("again", [True, False])
def test_a_backward_pass_gives_the_same_gradient(retraction, again, n):
    """A backward pass inside autocast gives the gradient of one outside.

    The gradient used to be off by up to 2e-2 for every map, except for the exponential
    with n = 40.
    """
    layer = isometry.orthogonal(nn.Linear(n, n), retraction=retraction)
    X = layer.parametrizations.weight.original
    X.data.normal_(std=n**-0.5)
    G = torch.randn(n, n)
    (g,) = torch.autograd.grad(layer.weight, X, G, create_graph=again)
    with torch.autocast("cpu", enabled=False):
        (expected,) = torch.autograd.grad(layer.weight, X, G, create_graph=again)
    assert_close(g, expected)


def test_a_point_is_declared_as_it_is():
    layer = nn.Linear(4, 8)
    layer.weight.data = Stiefel(8, 4).random(dtype=torch.float64).float()
    isometry.declare(layer, Stiefel(8, 4))
    RiemannianSGD(isometry.param_groups(layer, lr=0.1), lr=0.1)
    found = isometry.diagnose(layer)["weight"]
    assert found.orthogonality_error < 1e-6


def test_initializers_leave_a_point_of_the_manifold():
    layer = isometry.orthogonal(nn.Linear(6, 6))
    layer.reset_parameters()
    assert isometry.diagnose(layer)["weight"].orthogonality_error < 1e-6
