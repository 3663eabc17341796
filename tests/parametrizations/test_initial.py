import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry.groups import SU, Sp, Sphere
from isometry.parametrizations._initial import henaff_angles
from tests.helpers import new_generator
from tests.parametrizations.cases import Weight, orthonormality


def angles(W: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvals(W.detach()).angle().sort().values


def generator() -> torch.Generator:
    return new_generator(7)


@pytest.mark.parametrize("trivialize", [True, False])
@pytest.mark.parametrize("init", ["haar", "identity", "henaff", "cayley"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_init_is_drawn_from_the_generator(dtype, init, trivialize):
    """Equal seeds give equal weights, with and without a base."""
    weights = [
        isometry.orthogonal(
            Weight(torch.randn(8, 8, dtype=dtype)),
            init=init,
            generator=generator(),
            det=None if dtype.is_complex else 1,
            use_trivialization=trivialize,
        ).weight
        for _ in range(2)
    ]
    assert torch.equal(*weights)
    assert orthonormality(weights[0]) <= 1e-13


def test_identity():
    layer = isometry.orthogonal(nn.Linear(3, 5), init="identity")
    assert torch.equal(layer.weight, torch.eye(5, 3))


def test_henaff_angles_are_uniform():
    """The angles s are uniform in (-pi, pi), in planes (2j, 2j + 1)."""
    layer = isometry.orthogonal(
        Weight(torch.zeros(400, 400)), init="henaff", generator=generator()
    )
    theta = angles(layer.weight)
    positive = theta[theta > 0]
    assert len(positive) == 200
    # the mean of |s| is right within 4 standard errors, and its deviation within 0.2
    assert abs(positive.mean() - math.pi / 2) < 4 * math.pi / 12**0.5 / 200**0.5
    assert abs(positive.std() - math.pi / 12**0.5) < 0.2
    inside = layer.weight.detach().view(200, 2, 200, 2).transpose(1, 2)
    off = inside[~torch.eye(200, dtype=torch.bool)]
    assert torch.equal(off, torch.zeros_like(off))


def test_henaff_angles_are_in_one_turn():
    """As many angles lie in each quarter of (-pi, pi), within 4 standard errors.

    The angles of the eigenvalues, above, are the same after a full turn.
    """
    theta = henaff_angles((4000,), generator())
    quarters = torch.histc(theta, 4, -math.pi, math.pi)
    assert quarters.sum() == 4000
    assert (quarters - 1000).abs().max() < 4 * 4000**0.5 * (1 / 4 * 3 / 4) ** 0.5


def test_cayley_angles_are_those_of_the_paper():
    """s = -sqrt((1 - cos u) / (1 + cos u)) with u uniform in (0, pi / 2)."""
    layer = isometry.orthogonal(
        Weight(torch.zeros(400, 400, dtype=torch.float64)),
        init="cayley",
        generator=generator(),
        use_trivialization=False,
    )
    s = layer.parametrizations.weight.original.detach().diagonal(-1)[::2]
    # in double precision: 1 - cos u loses the digits of a small u
    u = math.pi / 2 * torch.rand(200, generator=generator()).double()
    expected = -torch.sqrt((1 - u.cos()) / (1 + u.cos()))
    assert_close(s, expected, rtol=0, atol=1e-6)


def test_any_angle_sampler(rng):
    layer = isometry.orthogonal(
        Weight(torch.zeros(6, 6)), init=lambda shape, _: torch.full(shape, 0.5)
    )
    expected = torch.tensor([-0.5] * 3 + [0.5] * 3)
    assert_close(angles(layer.weight), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(7, 3), (7, 4), (3, 7), (5, 5), (2, 6, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_rectangular_init_is_the_first_columns_of_the_square_one(shape, dtype):
    """A tall init has the first columns of the square one, of the larger size."""
    n, k = max(shape[-2:]), min(shape[-2:])
    layer = isometry.orthogonal(
        Weight(torch.zeros(shape, dtype=dtype)), init="henaff", generator=generator()
    )
    square = isometry.orthogonal(
        Weight(torch.zeros(*shape[:-2], n, n, dtype=dtype)),
        init="henaff",
        generator=generator(),
    )
    W = layer.weight.mT if shape[-2] < shape[-1] else layer.weight
    assert_close(W, square.weight[..., :k], rtol=0, atol=1e-14)


def test_init_on_other_groups():
    dtype = torch.complex128
    for group, size in ((SU(4), 4), (Sp(2), 4)):
        layer = Weight(torch.randn(size, size, dtype=dtype))
        isometry.constrain(layer, "weight", group, init="henaff", generator=generator())
        assert group.contains(layer.weight.detach()).all()


def test_zero_rows_of_an_embedding_start_at_the_origin():
    """A row of zeros starts at (1, 0, ..., 0), also after a reset; it once was NaN."""

    class Zeros(nn.Embedding):
        def reset_parameters(self) -> None:
            nn.init.zeros_(self.weight)

    rows = nn.Embedding(5, 4)
    with torch.no_grad():
        rows.weight[2] = 0
    expected = torch.nn.functional.normalize(rows.weight.detach())
    expected[2, 0] = 1
    isometry.constrain(rows, Sphere(4))
    assert_close(rows.weight.detach(), expected)
    zeros = isometry.constrain(Zeros(5, 4), Sphere(4))
    zeros.reset_parameters()
    assert torch.equal(zeros.weight, torch.eye(4)[0].expand(5, 4))


@dataclass(frozen=True)
class Punctured(Sphere):
    """The sphere, as a user may write it: without a point for the zero vector."""

    def nearest(self, X: torch.Tensor) -> torch.Tensor:
        return X / X.norm(dim=-1, keepdim=True)


@pytest.mark.errors
def test_a_weight_without_a_nearest_point_is_refused():
    """If `nearest` of a user's manifold is NaN, the weight does not become NaN."""
    message = r"have a nearest point on Punctured\(n=3\); got .* 1 of 3 .*init='haar'"
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight[1] = 0
    with pytest.raises(ValueError, match=message):
        isometry.constrain(layer, Punctured(3))
    assert type(layer) is nn.Linear
    isometry.constrain(layer, Punctured(3), init="haar")
    assert Punctured(3).contains(layer.weight.detach()).all()


@pytest.mark.errors
def test_bad_inits_say_what_is_known():
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"`init` must be None.*'haar'.*got 'hear'"):
        isometry.orthogonal(layer, init="hear")
    with pytest.raises(ValueError, match=r"angles of shape \(2,\); got \(3,\)"):
        isometry.orthogonal(layer, init=lambda *_: torch.zeros(3))
    with pytest.raises(ValueError, match=r"maximal torus; got Sphere\(n=4\)"):
        isometry.constrain(layer, "weight", Sphere(4), init="henaff")
    assert type(layer) is nn.Linear


@pytest.mark.errors
def test_the_advice_for_a_weight_that_cannot_be_reached_works():
    """The advice for a weight out of reach works.

    It used to recommend `init='henaff'`, which fails for a tall weight too.
    """
    W = torch.diag(torch.tensor([-1.0, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"use_trivialization=True`, or .* \(`det=1`"):
        isometry.orthogonal(Weight(W.clone()), use_trivialization=False)
    isometry.orthogonal(Weight(W.clone()), use_trivialization=False, det=1)
    tall = Weight(-torch.eye(6, 3))
    for options in ({}, {"init": "henaff", "generator": generator()}):
        with pytest.raises(ValueError, match=r"use_trivialization=True`\.$"):
            isometry.orthogonal(
                tall, "weight", "cayley", use_trivialization=False, **options
            )
    isometry.orthogonal(tall, "weight", "cayley", use_trivialization=True)
