"""Initializing a layer that is already constrained gives a right result, or raises."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import init
from torch.testing import assert_close

import isometry
from isometry.groups import SO
from tests.parametrizations.cases import MAPS, Weight, orthonormality

LAYERS = {
    "Linear": (lambda: nn.Linear(6, 4), "weight"),
    "Embedding": (lambda: nn.Embedding(7, 3), "weight"),
    "Bilinear": (lambda: nn.Bilinear(4, 3, 2), "weight"),
    "Conv2d": (lambda: nn.Conv2d(2, 4, 3), "weight"),
    "RNN": (lambda: nn.RNN(3, 5), "weight_hh_l0"),
    "LSTM": (lambda: nn.LSTM(3, 5), "weight_hh_l0"),
    "GRUCell": (lambda: nn.GRUCell(3, 5), "weight_ih"),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), "in_proj_weight"),
}

# these modules draw their parameters in order; coordinates come last, so draws differ
RECURRENT = ("RNN", "LSTM", "GRUCell")


def reset(layer: nn.Module, seed: int = 0) -> None:
    torch.manual_seed(seed)
    attention = isinstance(layer, nn.MultiheadAttention)
    getattr(layer, "_reset_parameters" if attention else "reset_parameters")()


@pytest.mark.parametrize("retraction", ["exp", "householder"])
@pytest.mark.parametrize("what", LAYERS)
def test_reset_parameters_starts_at_the_nearest_matrix(what, retraction):
    """Reset after constraining agrees with constraining after the reset.

    It used to do nothing or, in recurrent modules, to fill the coordinates.
    """
    make, name = LAYERS[what]
    twin = make()
    layer = isometry.orthogonal(copy.deepcopy(twin), name, retraction)
    before = getattr(layer, name).detach().clone()
    for module in (layer, twin):
        reset(module)
    isometry.orthogonal(twin, name, retraction)
    assert torch.dist(getattr(layer, name), before) > 0.1
    assert isometry.diagnose(layer)[name].orthogonality_error <= 1e-6
    if what in RECURRENT:
        return
    assert torch.equal(getattr(layer, name), getattr(twin, name))
    plain = dict(twin.named_parameters())
    for key, p in layer.named_parameters():
        assert torch.equal(p, plain[key]), key


def test_reset_parameters_keeps_the_parameter_and_its_optimizer():
    layer = isometry.orthogonal(nn.Linear(5, 5), rebase_every=3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    X = layer.parametrizations.weight.original
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.ones(2, 5)).pow(3).sum().backward()
        optimizer.step()
    layer.reset_parameters()
    assert layer.parametrizations.weight.original is X
    before = layer.weight.detach().clone()
    assert orthonormality(before) <= 1e-6
    optimizer.zero_grad()
    layer(torch.ones(2, 5)).pow(3).sum().backward()
    optimizer.step()
    assert torch.dist(layer.weight, before) > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64], ids=str)
def test_reset_parameters_of_other_dtypes(dtype):
    layer = isometry.orthogonal(nn.Linear(6, 6, dtype=dtype))
    before = layer.weight.detach().clone()
    layer.reset_parameters()
    assert torch.dist(layer.weight, before) > 0.1
    wide = torch.complex128 if dtype.is_complex else torch.float64
    assert orthonormality(layer.weight.to(wide)) <= 6 * torch.finfo(dtype).eps


def test_reset_parameters_draws_again_where_init_says():
    def quarter_turns(shape, generator):
        return torch.full(shape, math.pi / 2)

    layer = isometry.orthogonal(nn.Linear(6, 6), init=quarter_turns)
    with torch.no_grad():
        layer.parametrizations.weight.original.normal_()
    layer.reset_parameters()
    angles = torch.linalg.eigvals(layer.weight.detach()).angle().abs()
    assert_close(angles, torch.full_like(angles, math.pi / 2))


def test_a_layer_made_on_meta_is_initialized_by_its_reset():
    """A layer made on meta is initialized by `to_empty` and `reset_parameters`."""
    with torch.device("meta"):
        layer = isometry.orthogonal(nn.Linear(6, 6))
        layer.reset_parameters()
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert orthonormality(layer.weight) <= 1e-6


def test_a_reset_that_leaves_the_weight_alone_keeps_its_bits():
    class Biased(nn.Linear):
        def reset_parameters(self) -> None:
            nn.init.ones_(self.bias)

    layer = Biased(4, 4)
    nn.init.normal_(layer.weight)
    isometry.orthogonal(layer, init="haar")
    with torch.no_grad():
        layer.parametrizations.weight.original.add_(0.1)
        layer.bias.zero_()
    state = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    assert torch.equal(layer.bias, torch.ones(4))
    for key in state.keys() - {"bias"}:
        assert torch.equal(layer.state_dict()[key], state[key])


def test_a_reset_that_fails_keeps_the_weight():
    class Broken(nn.Linear):
        broken = False

        def reset_parameters(self) -> None:
            super().reset_parameters()
            if self.broken:
                raise RuntimeError("broken")

    layer = isometry.orthogonal(Broken(4, 4))
    layer.broken = True
    before = layer.weight.detach().clone()
    with pytest.raises(RuntimeError, match="broken"):
        layer.reset_parameters()
    assert torch.equal(layer.weight, before)


FILLS = {
    "orthogonal_": init.orthogonal_,
    "orthogonal_ of .data": lambda p: init.orthogonal_(p.data),
    "a gain": lambda p: init.orthogonal_(p, gain=init.calculate_gain("tanh")),
    "leaky": lambda p: init.orthogonal_(p, gain=init.calculate_gain("leaky_relu")),
    "eye_": init.eye_,
    "gate by gate": lambda p: [init.orthogonal_(part) for part in p.data.chunk(4)],
}


@pytest.mark.errors
@pytest.mark.parametrize(
    ("fill", "retraction"),
    [
        (fill, retraction)
        for fill in FILLS
        for retraction in ("exp", "householder")
        # ones on the diagonal may be meant as the vectors of reflections
        if (fill, retraction) != ("eye_", "householder")
    ],
)
@pytest.mark.parametrize("read", [True, False])
def test_coordinates_that_are_initialized_like_a_weight_are_refused(
    read, fill, retraction
):
    """Coordinates initialized like a weight are refused.

    The usual loop finds them, since their name contains `weight_hh`; the weight used to
    be the exponential of what was asked for.
    """
    rnn = isometry.orthogonal(nn.LSTM(4, 8), "weight_hh_l0", retraction)
    x = torch.ones(3, 2, 4)
    if read:
        rnn(x)
    for name, p in rnn.named_parameters():
        if "weight_hh" in name:
            FILLS[fill](p)
    with pytest.raises(ValueError, match=r"as if they were.*torch\.empty\(32, 8\)"):
        rnn(x)
    rnn.weight_hh_l0 = init.orthogonal_(torch.empty(32, 8))
    rnn(x)
    init.orthogonal_(rnn.parametrizations.weight_hh_l0.original)
    with pytest.raises(ValueError, match="as if they were the weight"):
        rnn(x)


@pytest.mark.errors
@pytest.mark.parametrize("shape", [(64, 64), (256, 64), (64, 256)], ids=str)
def test_large_coordinates_that_are_initialized_like_a_weight_are_refused(shape, rng):
    """Q from `orthogonal_` is recognized at any size, though |Q^T Q - I| grows with it.

    At 8 x 8 the defect is 3 to 13 eps, and at 64 x 64 it is 25 to 31 eps (30 seeds).
    """
    layer = isometry.orthogonal(nn.Linear(*shape))
    init.orthogonal_(layer.parametrizations.weight.original, generator=rng)
    with pytest.raises(ValueError, match="as if they were the weight"):
        _ = layer.weight


@pytest.mark.errors
@pytest.mark.parametrize("kind", [isometry.nn.ExpRNN, isometry.nn.ExpLSTM])
def test_the_loop_over_a_recurrent_layer_of_ours(kind):
    layer = kind(3, 6)
    for name, p in layer.named_parameters():
        if "weight_hh" in name:
            init.orthogonal_(p)
    with pytest.raises(ValueError, match="as if they were the weight"):
        layer(torch.ones(3, 2, 3))


@pytest.mark.parametrize("retraction", MAPS)
def test_other_values_of_the_coordinates_are_not_refused(retraction, rng):
    """Gaussian coordinates, signs times a rate, and orthogonal skew ones are accepted.

    Adam's first step makes signs times a rate.
    """
    J = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    signs = torch.tensor([[1.0, 1], [1, -1], [1, 1], [1, -1]])
    for value in (torch.randn(6, 3, generator=rng), 0.01 * signs, J, J.new_ones(4, 4)):
        layer = isometry.orthogonal(
            Weight(torch.randn(value.shape)), "weight", retraction
        )
        with torch.no_grad():
            layer.parametrizations.weight.original.copy_(value)
        assert orthonormality(layer.weight) <= 1e-5


def test_a_fixed_base_reads_orthogonal_logarithms():
    """exp(J) has the coordinates J, which are orthogonal and right."""
    J = torch.block_diag(*[torch.tensor([[0.0, -1.0], [1.0, 0.0]])] * 3)
    Q = torch.matrix_exp(J)
    layer = isometry.constrain(Weight(Q), SO(6), use_trivialization=False)
    assert_close(layer.weight, Q, rtol=0, atol=1e-6)
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(J)
    assert_close(layer.weight, Q, rtol=0, atol=1e-6)


def test_a_weight_of_zeros_starts_at_the_identity():
    """A weight of zeros starts at the identity, as the docstring says.

    It has no nearest orthogonal matrix.
    """
    for shape in ((4, 4), (6, 3), (3, 6)):
        layer = isometry.orthogonal(Weight(torch.zeros(shape)))
        assert_close(layer.weight, torch.eye(*shape), rtol=0, atol=1e-6)
    # a weight of rank one starts at a nearest orthogonal Q: |W - Q|^2 = 4 - 2 + 1
    W = torch.zeros(4, 4)
    W[0, 1] = 1.0
    Q = isometry.orthogonal(Weight(W.clone())).weight.detach()
    assert_close(float(torch.dist(W, Q)), 3**0.5)


class OptionalReset(nn.Linear):
    """A layer whose `reset_parameters` has an argument called `reset`."""

    def reset_parameters(self, reset: bool = True) -> None:
        if reset:
            super().reset_parameters()


def test_reset_parameters_takes_any_argument():
    layer = isometry.orthogonal(OptionalReset(4, 4))
    before = layer.weight.detach().clone()
    layer.reset_parameters(reset=False)
    assert torch.equal(layer.weight, before)
