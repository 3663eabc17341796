"""How far rounding moves a point off its manifold, and what `tolerance` accepts."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

from isometry.groups import SO, SU, AbstractGroup, O, Sp, Sphere, Stiefel, Torus, U
from isometry.linalg import expm_skew, skew
from isometry.testing._points import maps_of
from tests.groups.registry import (
    MANIFOLDS,
    Adjoint,
    DiagonalRotations,
    Helix,
    Quadrupole,
    dtype_of,
)
from tests.helpers import eps

CLOSED = [
    SO(2),
    SO(3),
    SO(64),
    U(1),
    U(3),
    U(64),
    SU(2),
    SU(16),
    Sp(1),
    Sp(8),
    Torus(1),
    Torus(16),
    Sphere(3),
    Sphere(100),
    Stiefel(100, 1),
    Stiefel(64, 16),
    Stiefel(5, 3, is_complex=True),
]
PRECISIONS = [torch.float32, torch.float64]


def unit(manifold, dtype):
    return max(1, *manifold.shape) * eps(dtype)


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("manifold", CLOSED, ids=str)
def test_one_operation_uses_a_quarter_of_the_tolerance(manifold, precision, rng):
    """Samples, products, and retractions by angles up to pi have a defect <= 10 n eps.

    This is a quarter of the tolerance, or less. The worst of 1000 samples and 5 seeds,
    in units of n eps: sample 4.0, product 6.0, retraction 7.5, all in U(1).
    """
    dtype = dtype_of(manifold, precision)
    Q = manifold.random(100, generator=rng, dtype=dtype)
    X = torch.randn(Q.shape, dtype=dtype, generator=rng)
    E = manifold.project(Q, X)
    E = E / (math.pi - manifold.border_distance(Q, E)).reshape(
        -1, *[1] * len(manifold.shape)
    )
    E = manifold.project(Q, E)
    results = [Q, manifold.polish(Q), manifold.nearest(Q + 0.1 * X / X.norm())]
    results += [manifold.retract(Q, E, phi) for phi in maps_of(manifold)]
    if isinstance(manifold, AbstractGroup):
        results += [Q @ Q.roll(1, 0), Q.mH]
    for P in results:
        assert (manifold.defect(P) <= 10 * unit(manifold, dtype)).all()
        assert manifold.contains(P).all()


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize(
    "group", [Quadrupole(), Helix(), DiagonalRotations(), Adjoint(SU(3))], ids=str
)
def test_groups_without_closed_forms_contain_their_products(group, precision, rng):
    """Products of Haar samples are points of groups without closed forms.

    Their defect is computed through a logarithm: up to 15 n eps (the octet).
    """
    dtype = dtype_of(group, precision)
    Q = group.random(50, generator=rng, dtype=dtype)
    assert group.contains(Q).all()
    assert group.contains(Q @ Q.roll(1, 0)).all()
    assert not group.contains(1.1 * Q).any()
    # The octet represents SU(3) / Z_3, which has no element of order 2 in its center.
    # In five dimensions -I has determinant -1.
    if group in (Quadrupole(), Adjoint(SU(3))):
        assert not group.contains(-Q).any()


@pytest.mark.parametrize("n", [1, 7, 512])
def test_tolerance_covers_what_torch_computes(n, rng):
    """One tolerance serves points, assignments and `logm_unitary`."""
    expected = 10 * n * max(4.0, n**0.5) * eps(torch.float32)
    assert SO(n).tolerance(torch.float32) == expected
    Q = torch.nn.init.orthogonal_(torch.empty(n, n), generator=rng)
    assert O(n).contains(Q)


@pytest.mark.parametrize("manifold", CLOSED, ids=str)
def test_what_is_not_finite_is_no_point(manifold):
    """NaN is not a point, though it compares false with every bound.

    The other points of its batch stay points.
    """
    for bad in (math.nan, math.inf):
        Q = manifold.origin(3)
        Q[1] = bad
        assert manifold.contains(Q).tolist() == [True, False, True]


def test_reflections_are_no_rotations():
    """A reflection is not in SO(n), although its columns are orthonormal."""
    R = torch.diag(torch.tensor([1.0, 1.0, -1.0]))
    assert not SO(3).contains(R)
    assert O(3).contains(R)
    assert U(3).contains(R.to(torch.complex64))
    assert not SU(3).contains(R.to(torch.complex64))


def test_orthonormal_columns_suffice_for_unrestricted_manifolds_only():
    """Stiefel, O, SO and U are unrestricted, and other manifolds are not.

    On an unrestricted group, a weight is computed without a call of `algebra`.
    """
    unrestricted = [SO(3), O(3), U(3), Stiefel(4, 2)]
    restricted = [SU(3), Sp(1), Torus(3), Sphere(3), Quadrupole()]
    assert all(manifold.is_unrestricted for manifold in unrestricted)
    assert not any(manifold.is_unrestricted for manifold in restricted)


class PairsOfAxes:
    """The algebra of a maximal torus, to be mixed into a group."""

    def algebra(self, X: torch.Tensor) -> torch.Tensor:
        pairs = torch.arange(X.shape[-1]) // 2
        return skew(torch.where(pairs[:, None] == pairs, X, 0))


@dataclass(frozen=True)
class Inherited(PairsOfAxes, SO):
    """A group with an algebra from another class."""


def test_an_inherited_algebra_counts():
    """A group is restricted also if its algebra comes from another class.

    That algebra used to be ignored, and points were outside of the group.
    """
    group = Inherited(4)
    X = torch.ones(4, 4)
    assert not group.is_unrestricted
    assert_close(group.point(X, None), expm_skew(group.algebra(X)))


@pytest.mark.parametrize("scale", [5e-44, 1e-25, 1.0, 1e25])
def test_the_nearest_unit_vector_does_not_depend_on_the_length(scale):
    """(3, 4, 0) s is nearest to (.6, .8, 0) for any s > 0, also in single precision.

    The squares of 1e-25 underflow and those of 1e25 overflow: the results were
    (inf, inf, nan) and (0, 0, 0). On the torus, a subnormal number gave infinity.
    """
    x = torch.tensor([3.0, 4.0, 0.0]) * scale
    # at scale 5e-44 the entries are about 100 times the smallest float32, 1.4e-45, and
    # so have only two digits
    tolerance = 0.1 if scale < 1e-38 else 1e-6
    expected = torch.tensor([0.6, 0.8, 0.0])
    assert_close(Sphere(3).nearest(x), expected, rtol=0, atol=tolerance)
    z = torch.complex(x[0], x[1]).reshape(1, 1)
    phase = torch.tensor([[0.6 + 0.8j]])
    assert_close(Torus(1).nearest(z), phase, rtol=0, atol=tolerance)
    assert Sphere(3).contains(Sphere(3).nearest(x))
    assert Torus(1).contains(Torus(1).nearest(z))


@pytest.mark.parametrize("manifold", [m for m in MANIFOLDS if all(m.shape)], ids=str)
def test_every_manifold_has_a_point_for_zero(manifold):
    """The nearest point of 0 is a point: many are equally near, and one is chosen.

    On the sphere it used to be NaN.
    """
    zero = torch.zeros(2, *manifold.shape, dtype=dtype_of(manifold, torch.float64))
    manifold.check_point(manifold.nearest(zero), name="Q")


@pytest.mark.errors
def test_the_torus_refuses_real_matrices():
    with pytest.raises(TypeError, match=r"`X` must have a complex dtype for Torus"):
        Torus(2).nearest(torch.eye(2))


def test_zero_among_vectors_goes_to_the_origin(rng):
    """The zero vector goes to (1, 0, ..., 0) with gradient 0; others are unaffected."""
    sphere = Sphere(4)
    X = torch.randn(3, 4, dtype=torch.float64, generator=rng)
    X[1] = 0
    X.requires_grad_()
    Q = sphere.nearest(X)
    assert torch.equal(Q[1], sphere.origin(dtype=X.dtype))
    assert_close(Q[::2], X[::2] / X[::2].norm(dim=-1, keepdim=True))
    (g,) = torch.autograd.grad(Q.sum(), X)
    assert torch.equal(g[1], torch.zeros_like(g[1]))
    assert g.isfinite().all()


def test_a_huge_step_on_the_sphere_ends_on_it():
    """q + s e is nearest to e for a huge s; in single precision it was zero."""
    q, e = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.6, 0.8, 0.0])
    for name in ("polar", "qr"):
        assert_close(Sphere(3).retract(q, 1e25 * e, name), e)
