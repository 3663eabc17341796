"""Gradients that `check_manifold` leaves out: borders, second order, other modes."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from isometry.groups import SO, SU, AbstractManifold, O, Sp, Sphere, Stiefel
from isometry.linalg import expm_skew
from isometry.testing._case import Case
from tests.groups.registry import MANIFOLDS, Quadrupole, dtype_of
from tests.helpers import gradcheck_options

STIEFEL = [
    Stiefel(6, 2),
    Stiefel(4, 3),
    O(3),
    Stiefel(5, 2, is_complex=True),
]


class Pair:
    """Two points at a distance, each as a function of free coordinates around it."""

    def __init__(self, M: AbstractManifold, rng: torch.Generator, *, angle: float):
        self.M = M
        case = Case(M, dtype_of(M, torch.float64), rng)
        self.Q = case.points()
        self.P = M.exp(self.Q, case.tangent(self.Q, angle=angle))
        self.zeros = [torch.zeros_like(self.Q).requires_grad_() for _ in range(2)]

    def log(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.M.log(self.M.point(X, self.Q), self.M.point(Y, self.P))

    def distance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.M.distance(self.M.point(X, self.Q), self.M.point(Y, self.P))


@pytest.mark.parametrize("manifold", STIEFEL, ids=str)
def test_stiefel_logarithm_has_gradients_of_first_and_second_order(manifold, rng):
    """The logarithm and the distance have first and second derivatives in both points.

    The distance used to have the gradient of its metric only (-0.167 along a direction
    where differences say -0.644 in Stiefel(6, 2)), and the logarithm none (issue 14).
    """
    pair = Pair(manifold, rng, angle=1.2)
    options = gradcheck_options(torch.complex128)
    assert gradcheck(pair.log, pair.zeros, check_forward_ad=True, **options)
    assert gradcheck(pair.distance, pair.zeros, check_forward_ad=True, **options)
    assert gradgradcheck(pair.log, pair.zeros, **options)
    assert gradgradcheck(pair.distance, pair.zeros, **options)


@pytest.mark.parametrize("manifold", STIEFEL, ids=str)
def test_derivatives_of_the_stiefel_distance_at_the_other_point(manifold, rng):
    """grad_P d(Q, P) = -log(P, Q) / d, the velocity of the geodesic on arrival."""
    pair = Pair(manifold, rng, angle=1.5)
    P = pair.P.clone().requires_grad_()
    d = manifold.distance(pair.Q, P)
    (G,) = torch.autograd.grad(d, P)
    expected = -manifold.log(pair.P, pair.Q) / d.detach()
    # twice the worst over 20 seeds, 9.2e-15
    assert (manifold.gradient(pair.P, G) - expected).norm() <= 1.9e-14


def test_transforms_of_the_stiefel_logarithm(rng):
    """Forward over reverse mode agrees with reverse over reverse, vmap with a loop."""
    pair = Pair(Stiefel(5, 2), rng, angle=1.0)

    def f(X: Tensor) -> Tensor:
        return pair.distance(pair.zeros[0].detach(), X)

    X = pair.zeros[1].detach()
    twice = torch.func.jacrev(torch.func.jacrev(f))(X)
    assert torch.allclose(torch.func.hessian(f)(X), twice, rtol=0, atol=1e-11)
    one = torch.func.grad(f)(X)
    many = torch.vmap(torch.func.grad(f))(X.expand(3, 5, 2))
    assert torch.allclose(many, one.expand(3, 5, 2), rtol=0, atol=1e-13)


@pytest.mark.parametrize("manifold", MANIFOLDS, ids=str)
def test_minimizing_a_distance_ends_at_the_point(manifold, rng):
    """The gradient of the distance of a point to itself is 0, in single precision too.

    It used to be NaN in SO(3): the root of 0 has an infinite derivative (issue 14).
    """
    for precision in (torch.float32, torch.float64):
        dtype = dtype_of(manifold, precision)
        Q = manifold.random(5, generator=rng, dtype=dtype)
        Q, P = Q.clone().requires_grad_(), Q.clone().requires_grad_()
        d = manifold.distance(Q, P)
        assert (d <= manifold.tolerance(dtype)).all()
        for G in torch.autograd.grad(d.sum(), (Q, P)):
            assert (G == 0).all()


@pytest.mark.parametrize("gap", [0.5, 0.05, 0.01])
def test_symplectic_logarithm_near_pi_has_a_gradient(gap, rng):
    """The gradient is right near angle pi.

    If an angle was above pi - 0.1, its part of the gradient used to be missing.
    """
    group = Sp(2)
    theta = torch.tensor([math.pi - gap, 1.0], dtype=torch.float64)
    V = group.random(generator=rng, dtype=torch.complex128)
    Q = V @ expm_skew(group.torus(theta)) @ V.mH
    X = torch.zeros_like(Q).requires_grad_()

    def f(X: Tensor) -> Tensor:
        return group.algebra_log(group.point(X, Q))

    # Differences with steps of 1e-6 have the error of a third derivative, 1 / gap^3.
    assert gradcheck(f, X, eps=1e-6, atol=1e-11 / gap**3 + 1e-7, fast_mode=True)


@pytest.mark.parametrize("angles", [(2.5, 2.0, -4.5), (0.0, 0.0, 0.0)], ids=str)
def test_special_unitary_logarithm_has_a_gradient(angles, rng):
    """The gradient is right for angles beyond pi, and for equal eigenvalues.

    For equal eigenvalues it used to be NaN, because of `eigh`.
    """
    group = SU(3)
    theta = torch.tensor(angles, dtype=torch.float64)
    V = group.random(generator=rng, dtype=torch.complex128)
    Q = V @ expm_skew(group.torus(theta)) @ V.mH
    X = torch.zeros_like(Q).requires_grad_()
    assert gradcheck(
        lambda X: group.algebra_log(group.point(X, Q)),
        X,
        **gradcheck_options(torch.complex128),
    )


def test_a_quarter_turn_of_quadrupoles_has_a_gradient():
    """The logarithm has a gradient at angle pi of this representation, and beyond.

    The principal logarithm of orthogonal matrices has no gradient at angle pi. The
    gradient used to be zero wherever Newton's method found the logarithm.
    """
    group = Quadrupole()
    A = torch.zeros(5, 5, dtype=torch.float64)
    for turn in (math.pi / 2, 2.5):
        A[1, 0] = turn
        Q = expm_skew(group.algebra(A))
        X = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda X, Q=Q: group.algebra_log(group.point(X, Q)), X)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_nearest_rotation_has_a_gradient(n, rng):
    """The gradient is right at rotations, whose singular values are equal.

    It is right at reflections too; both used to be NaN.
    """
    Q = SO(n).random(generator=rng, dtype=torch.float64)
    X = torch.randn(n, n, dtype=torch.float64, generator=rng)
    X = X * torch.linalg.det(X).sgn()
    X[:, 0] *= -1
    for start in (Q, X):
        leaf = start.clone().requires_grad_()
        assert gradcheck(SO(n).nearest, leaf, check_forward_ad=True)
        assert gradgradcheck(SO(n).nearest, leaf)


def test_logarithm_of_the_point_itself_on_a_sphere(rng):
    """At p = q, the derivative of log(q, p) in p is the projection I - q q^T.

    It used to be 0 if the computed sine of the angle was exactly 0.
    """
    sphere = Sphere(4)
    points = sphere.random(20, generator=rng, dtype=torch.float64)
    for q in (*points, sphere.origin(dtype=torch.float64)):
        J = torch.func.jacrev(lambda p, q=q: sphere.log(q, p))(q)
        expected = torch.eye(4) - torch.outer(q, q)
        # 6 eps: twice the worst over 1000 points
        assert (J - expected).abs().max() <= 6 * torch.finfo(torch.float64).eps


@pytest.mark.errors
def test_second_derivatives_that_are_not_there_say_so(rng):
    Q = Stiefel(6, 2).random(generator=rng, dtype=torch.float64)
    E = torch.randn(6, 2, dtype=torch.float64, generator=rng).requires_grad_()
    d = Stiefel(6, 2).border_distance(Q, E)
    (G,) = torch.autograd.grad(d, E, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        G.sum().backward()
    P = SO(3).random(generator=rng, dtype=torch.float64).requires_grad_()
    X = SO(3).coordinates(P, None, "pade-2")
    with pytest.raises(NotImplementedError, match=r"'exp' or 'cayley' .* got 'pade-2'"):
        X.sum().backward()
