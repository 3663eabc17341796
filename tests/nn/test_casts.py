"""Casts of recurrent layers, whose parameters may be real, complex or both."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry._declare import declared_parameters
from isometry.nn import ExpGRU, ExpLSTM, ExpRNN, ExpRNNCell, SpectralRNN
from isometry.optim import RiemannianAdam
from tests.nn.comparators import CASES

# torch warns about every cast to a complex dtype
pytestmark = pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")

LAYERS: dict[str, Callable[[], Any]] = {
    "exp": lambda: ExpRNN(3, 8, 2, bidirectional=True),
    "exp unitary": lambda: ExpRNN(3, 8, 2, unitary=True, train_h0=True),
    "exp identity": lambda: ExpRNN(3, 8, unitary=True, nonlinearity="identity"),
    "exp moving base": lambda: ExpRNN(3, 8, unitary=True, rebase_every=2),
    "cell": lambda: ExpRNNCell(3, 8, unitary=True),
    "lstm": lambda: ExpLSTM(3, 8),
    "gru": lambda: ExpGRU(3, 8),
    **{
        name: lambda case=case: case.network(dtype=torch.float32, generator=None)
        for name, case in CASES.items()
    },
}

CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "double": lambda layer: layer.double(),
    "float64": lambda layer: layer.to(torch.float64),
    "complex128": lambda layer: layer.to(torch.complex128),
    "like a tensor": lambda layer: layer.to(torch.zeros(1, dtype=torch.float64)),
    "in a model": lambda layer: nn.Sequential(layer).double()[0],
}


def numbers(layer: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers that are not integers."""
    state = layer.state_dict()
    return {k: X for k, X in state.items() if X.is_floating_point() or X.is_complex()}


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_cast_changes_the_precision_of_all_numbers(name, cast, rng):
    """A cast widens real and complex numbers alike, and the layer goes on with them.

    `double` used to leave complex parameters alone. A cast to float64 made them real,
    and a cast to complex128 made the real ones complex.
    """
    layer = LAYERS[name]()
    before = dict(layer.named_parameters())
    narrow = {key: X.clone() for key, X in numbers(layer).items()}
    x = torch.randn((2, 3) if name == "cell" else (4, 2, 3), generator=rng)
    expected = layer(x)[0].detach()

    layer: Any = CASTS[cast](layer)

    assert all(p is before[key] for key, p in layer.named_parameters())
    for key, X in numbers(layer).items():
        wide = torch.complex128 if narrow[key].is_complex() else torch.float64
        assert X.dtype == wide
        # the base of a constraint is orthogonalized again, in double precision
        assert_close(X, narrow[key].to(wide), rtol=0, atol=1e-6)
    out = layer(x.double())[0]
    assert out.dtype == (torch.complex128 if out.is_complex() else torch.float64)
    # The bound is far above rounding errors: modReLU jumps at zero, and enlarges them
    # there.
    assert torch.dist(out, expected) <= 0.01 * expected.norm()
    out.abs().square().sum().backward()
    for p in layer.parameters():
        assert p.grad is None or p.grad.dtype == p.dtype

    layer.float()

    for key, X in numbers(layer).items():
        assert X.dtype == narrow[key].dtype
        assert_close(X, narrow[key], rtol=0, atol=1e-6)
    for p in layer.parameters():
        assert p.grad is None or p.grad.dtype == p.dtype


@pytest.mark.parametrize("name", ["full", "spectral"])
def test_declared_weights_are_points_in_the_wider_dtype(name, rng):
    """After `double`, declared weights are points up to rounding errors of float64.

    Their rounding errors of float32 used to stay, so no optimizer accepted them. A
    weight that was off its manifold is left as it is.
    """
    layer = LAYERS[name]()
    key = declared_parameters(layer)[0][0]
    other = copy.deepcopy(layer)
    layer.double()
    for _, Q, manifold in declared_parameters(layer):
        manifold.check_point(Q.detach(), name="Q")
    optimizer = RiemannianAdam(isometry.param_groups(layer, lr=0.01))
    x = torch.randn(4, 2, 3, dtype=torch.float64, generator=rng)
    layer(x)[0].abs().square().sum().backward()
    optimizer.step()

    off = other.get_parameter(key)
    with torch.no_grad():
        off.mul_(1.1)
    before = off.detach().clone()
    other.double()
    assert torch.equal(off, before.to(off.dtype))


@pytest.mark.parametrize("before", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("after", [torch.float32, torch.float64])
def test_declared_weights_come_back_from_half_precision(before, after, rng):
    """A cast from half precision gives points, unless the weight was off its manifold.

    The defect used to be 2e-10 in float64, and a weight that was twice a rotation
    became minus that rotation.
    """
    layer = SpectralRNN(3, 64, generator=rng)
    U = layer.cells[0].U.detach().clone()
    other = copy.deepcopy(layer).to(before)
    for _, Q, manifold in declared_parameters(layer.to(before).to(after)):
        manifold.check_point(Q.detach(), name="Q")
    # The first cast moves an entry by up to eps / 2, and the step to the nearest point
    # moves it by about as much.
    assert (layer.cells[0].U - U).abs().max() <= torch.finfo(before).eps
    with torch.no_grad():
        other.cells[0].U.mul_(2)
    twice = other.cells[0].U.detach().to(after)
    assert torch.equal(other.to(after).cells[0].U, twice)


@pytest.mark.parametrize("name", ["exp unitary", "scurnn", "urnn", "lie"])
def test_the_same_precision_in_the_other_field_changes_nothing(name):
    """A cast of a complex64 layer to float32 or complex64 keeps all numbers."""
    layer = LAYERS[name]()
    state = copy.deepcopy(layer.state_dict())
    for dtype in (torch.float32, torch.complex64):
        for key, X in layer.to(dtype).state_dict().items():
            assert X.dtype == state[key].dtype
            assert torch.equal(X, state[key])


@pytest.mark.errors
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["exp unitary", "exp identity", "urnn", "eurnn"])
def test_a_complex_layer_is_not_cast_to_half_precision(name, dtype, rng):
    """There is no complex arithmetic in half precision, so the cast itself raises.

    It used to cast the real parameters only, and then every forward pass raised. The
    remedy of the message works.
    """
    layer = LAYERS[name]()
    dtypes = {key: X.dtype for key, X in layer.state_dict().items()}
    with pytest.raises(TypeError, match=r"`dtype` must be torch\.float32 .*autocast"):
        layer.to(dtype)
    assert {key: X.dtype for key, X in layer.state_dict().items()} == dtypes
    x = torch.randn(4, 2, 3, generator=rng)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.bfloat16())[0].dtype == torch.complex64


def test_a_constrained_layer_of_torch_is_cast_like_a_plain_one():
    """`double` leaves a complex `nn.Linear` in complex64, constrained or not."""
    plain = nn.Linear(4, 4, dtype=torch.complex64)
    layer = isometry.unitary(copy.deepcopy(plain)).double()
    plain.double()
    assert layer.weight.dtype == plain.weight.dtype == torch.complex64
    assert layer.bias.dtype == plain.bias.dtype == torch.complex64
    layer(torch.ones(4, dtype=torch.complex64)).abs().sum().backward()


def test_a_cast_inside_autocast_leaves_points_of_the_manifold():
    """Inside autocast, too, a cast to a wider dtype removes rounding errors.

    The orthogonality error used to be 2.8e-3.
    """
    layer = SpectralRNN(3, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        layer.float()
    errors = [d.orthogonality_error for d in isometry.diagnose(layer).values()]
    assert len(errors) == 2
    assert max(errors) < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_autocast_leaves_the_recurrent_matrix_alone(name):
    """The matrix that a cell shows is the same inside autocast.

    In `SpectralRNN` and `EURNN` it used to be off by 1.5e-2.
    """
    cell = CASES[name].network(dtype=torch.float32).cells[0]
    with torch.autocast("cpu", torch.bfloat16):
        W = cell.recurrent_matrix()
    assert W.dtype == cell.recurrent_matrix().dtype
    assert torch.equal(W, cell.recurrent_matrix())
