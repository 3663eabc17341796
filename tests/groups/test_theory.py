"""The paper's theory, in numbers: sections 3.3 and 4, appendices A to D [LM19]."""

import math

import pytest
import torch
from torch import Tensor
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.groups import SO, SU, AbstractGroup, Sp, Sphere, Stiefel, Torus, U
from isometry.linalg import expm_skew, expm_skew_frechet, logm_unitary
from isometry.testing._case import Case
from isometry.testing._geometry import orthonormal
from tests.groups.algebra import HALVES, double_dtype_of, element, inner, slope
from tests.groups.registry import Quadrupole, dtype_of
from tests.helpers import eps, new_generator

GROUPS = [SO(2), SO(3), SO(8), U(1), U(2), U(5), SU(3), Sp(2), Torus(4)]
NAMED = ["exp", "cayley", "pade-2", "pade-3", "polar", "qr"]


def basis(group: AbstractGroup) -> Tensor:
    """An orthonormal basis of the algebra, by QR of projected Gaussians."""
    rng = new_generator(1)
    shape = (group.dimension, *group.shape)
    A = group.algebra_projection(
        torch.randn(shape, dtype=double_dtype_of(group), generator=rng)
    )
    parts = torch.view_as_real(A) if A.is_complex() else A
    # QR, rather than a factor of the Gram matrix, whose condition is squared
    columns = torch.linalg.qr(parts.flatten(1).mT).Q
    parts = columns.mT.reshape(parts.shape)
    return torch.view_as_complex(parts) if A.is_complex() else parts


def dexp(group: AbstractGroup, A: Tensor) -> Tensor:
    """The matrix of e^-A d exp_A in an orthonormal basis of the algebra."""
    E = basis(group)
    Q, L = expm_skew_frechet(A.expand_as(E), E)
    return inner(E[:, None], (Q.mH @ L)[None])


@pytest.mark.parametrize("group", [*GROUPS, Quadrupole()], ids=str)
def test_exp_is_onto(group, rng):
    """Theorem 3.1: every Haar sample is the exponential of something in the algebra."""
    Q = group.random(200, generator=rng, dtype=double_dtype_of(group))
    A = group.algebra_log(Q)
    n = group.size
    # 20.2: twice the worst over 20 seeds, 10.1 (SU(3))
    gap = matrix_norm(torch.linalg.matrix_exp(A) - Q)
    assert (gap <= 20.2 * n * eps(Q.dtype)).all()
    assert_close(group.algebra_projection(A), A, rtol=0, atol=1e-13)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_exp_is_one_to_one_inside_the_domain(group, rng):
    """Appendix D: log exp A = A while all angles are below pi, and not beyond."""
    one = group.origin(dtype=double_dtype_of(group))
    for norm in (0.1, 3.0, math.pi - 1e-3):
        A = element(group, rng, norm=norm)
        assert float(group.border_distance(one, A)) == pytest.approx(math.pi - norm)
        # an angle pi - delta amplifies errors by 1 / delta; twice the worst, 6.7e-13
        assert_close(group.algebra_log(expm_skew(A)), A, rtol=0, atol=1.4e-12)
    A = element(group, rng, norm=math.pi + 0.5)
    assert float(group.border_distance(one, A)) < 0
    assert matrix_norm(logm_unitary(expm_skew(A)) - A) > 1


def largest_root(group: AbstractGroup, theta: Tensor) -> float:
    """The largest |eigenvalue| of ad at the torus element with these angles.

    The eigenvalues are differences of angles; in SO(n) also sums, and single angles if
    n is odd; in Sp(n) also sums and doubles.
    """
    if isinstance(group, SO):
        top = theta.abs().sort(descending=True).values
        return float(top[:2].sum())
    if isinstance(group, Sp):
        return 2 * float(theta.abs().max())
    return float(theta.max() - theta.min())


# In WORST the largest root is twice the largest angle, so it is 2 pi on the border; in
# MILD it is smaller.
WORST = [
    (SO(4), [1.0, 1.0]),
    (SO(5), [1.0, -1.0]),
    (U(2), [1.0, -1.0]),
    (U(4), [1.0, 0.3, -1.0, 0.2]),
    (SU(2), [1.0, -1.0]),
    (Sp(1), [1.0]),
    (Sp(2), [1.0, 0.4]),
]
MILD = [(SO(3), [1.0]), (SO(6), [1.0, 0.5, 0.1]), (U(2), [1.0, 0.0]), (U(1), [1.0])]


@pytest.mark.parametrize(("group", "angles"), WORST + MILD, ids=str)
def test_smallest_singular_value_of_dexp_is_a_sinc(group, angles, rng):
    """The smallest singular value of e^-A dexp_A is |sin(rho / 2) / (rho / 2)|.

    Here rho is the largest root of the group at A.
    """
    theta = torch.tensor(angles, dtype=torch.float64)
    V = group.random(generator=rng, dtype=double_dtype_of(group))
    A = V @ group.torus(theta).to(double_dtype_of(group)) @ V.mH
    for norm in (0.5, 1.0, 2.0, 3.0, math.pi):
        s = torch.linalg.svdvals(dexp(group, norm * A))
        half = norm * largest_root(group, theta) / 2
        assert float(s[0]) == pytest.approx(1.0, abs=1e-12)
        sinc = math.sin(half) / half if half else 1.0
        assert float(s[-1]) == pytest.approx(sinc, abs=1e-12)


@pytest.mark.parametrize(("group", "angles"), WORST, ids=str)
def test_dexp_is_singular_on_the_border_where_a_root_is_two_pi(group, angles):
    """Appendix D: dexp_A is singular once the largest root is 2 pi, and not before."""
    theta = torch.tensor(angles, dtype=torch.float64)
    A = group.torus(theta).to(double_dtype_of(group))
    for norm, floor in ((0.99 * math.pi, 1e-2), (math.pi, -1.0)):
        smallest = float(torch.linalg.svdvals(dexp(group, norm * A))[-1])
        assert smallest > floor
    # sin(pi) is rounded to 1e-16, not to 0
    assert smallest < 1e-14


@pytest.mark.parametrize(("group", "angles"), MILD, ids=str)
def test_dexp_is_regular_elsewhere_on_the_border(group, angles):
    """dexp_A stays regular at border points where no root is 2 pi.

    The paper says "singular on every matrix" of the border. This holds for the
    derivative on all matrices, since 2 pi i is an eigenvalue of ad, but not on skew
    directions: in SO(3) the smallest singular value is 2 / pi. Only injectivity is lost
    on the whole border.
    """
    theta = math.pi * torch.tensor(angles, dtype=torch.float64)
    A = group.torus(theta).to(double_dtype_of(group))
    assert float(torch.linalg.svdvals(dexp(group, A))[-1]) > 0.3
    theta[0] = -math.pi
    assert_close(expm_skew(group.torus(theta).to(A)), expm_skew(A), rtol=0, atol=1e-14)
    if isinstance(group, SO):
        n = group.n
        units = torch.eye(n * n, dtype=torch.float64).reshape(-1, n, n)
        L = expm_skew_frechet(A.expand_as(units), units)[1].reshape(n * n, n * n)
        assert float(torch.linalg.svdvals(L)[-1]) < 1e-14


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_gradient_of_the_composition(group, rng):
    """Proposition 4.1 with its sign corrected: grad(f o exp)(A) = Q dexp_-A(Omega).

    Here Omega = (Q^H G - G^H Q) / 2. The gradient is compared with autograd through
    torch's exponential; with the paper's sign, the result is -1 times that gradient.
    """
    A = element(group, rng, norm=2.0).requires_grad_()
    C = torch.randn(A.shape, dtype=A.dtype, generator=rng)

    def f(Q: Tensor) -> Tensor:
        return (C.conj() * Q).real.sum() + (C @ Q @ C @ Q).real.sum()

    (ambient,) = torch.autograd.grad(f(torch.linalg.matrix_exp(A)), A)
    A = A.detach()
    Q = expm_skew(A).requires_grad_()
    (G,) = torch.autograd.grad(f(Q), Q)
    Q = Q.detach()
    Omega = group.algebra_projection(Q.mH @ G)
    gradient = Q @ expm_skew_frechet(-A, Omega)[1]
    want = group.algebra_projection(ambient)
    # twice the worst over 300 seeds, 2.0e-14 (SO(8))
    tol = 4e-14 * float(matrix_norm(G))
    assert_close(gradient, want, rtol=0, atol=tol)
    if isinstance(group, SO | U):
        assert_close(Omega, (Q.mH @ G - G.mH @ Q) / 2)
    paper = Q @ expm_skew_frechet(-A, -Omega)[1]
    assert_close(paper, -want, rtol=0, atol=tol)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_connection_is_the_tangential_derivative(group, rng):
    """nabla_X Y = 1/2 [X, Y] is the projection of the ambient derivative of Q -> QY.

    This is the Levi-Civita connection of a submanifold (Gauss). Central differences
    converge to it with a fitted slope of 2.
    """
    Q = group.random(generator=rng, dtype=double_dtype_of(group))
    X, Y = (element(group, rng, norm=1.0) for _ in range(2))
    want = Q @ group.connection(X, Y)

    def error(t: float) -> Tensor:
        ahead, behind = group.exp(Q, t * Q @ X) @ Y, group.exp(Q, -t * Q @ X) @ Y
        return matrix_norm(group.project(Q, (ahead - behind) / (2 * t)) - want)

    assert slope(error, HALVES) >= 1.9
    assert_close(want, Q @ (X @ Y - Y @ X) / 2)


@pytest.mark.parametrize(
    "manifold",
    [
        SO(3),
        SO(5),
        U(2),
        SU(3),
        Sp(2),
        Sphere(4),
        Stiefel(6, 2),
        Stiefel(3, 2, is_complex=True),
    ],
    ids=str,
)
def test_curvature_is_that_of_geodesic_triangles(manifold, rng):
    """3 (2 t^2 - dist(exp tE, exp tF)^2) / t^4 -> K for orthonormal E, F, with slope 2.

    The mean over t and -t is taken, in which the odd powers cancel.
    """
    case = Case(manifold, dtype_of(manifold, torch.float64), rng)
    Q = case.points()
    E, F = orthonormal(case, Q)
    K = manifold.curvature(Q, E, F)

    def error(t: float) -> Tensor:
        squares = [
            manifold.distance(manifold.exp(Q, s * E), manifold.exp(Q, s * F)) ** 2
            for s in (t, -t)
        ]
        return (3 * (2 * t**2 - (squares[0] + squares[1]) / 2) / t**4 - K).abs()

    # for smaller t rounding, 1e-16 / t^2, would show
    assert slope(error, [2.0**-j for j in range(1, 6)]) >= 1.9
    if isinstance(manifold, AbstractGroup):
        X, Y = Q.mH @ E, Q.mH @ F
        bracket = X @ Y - Y @ X
        assert_close(K, inner(bracket, bracket) / 4)


def test_curvature_of_known_spaces():
    """The curvature of SO(3) is 1/8.

    It is a sphere of radius sqrt(8) whose opposite points are identified.
    """
    E = torch.zeros(2, 3, 3, dtype=torch.float64)
    E[0, 1, 0], E[0, 0, 1] = 1.0, -1.0
    E[1, 2, 0], E[1, 0, 2] = 1.0, -1.0
    Q = torch.eye(3, dtype=torch.float64)
    assert float(SO(3).curvature(Q, *E)) == pytest.approx(1 / 8)
    # Stiefel(3, 1) is the unit sphere, which has curvature 1
    E = torch.tensor([[[0.0], [1.0], [0.0]], [[0.0], [0.0], [1.0]]])
    assert float(Stiefel(3, 1).curvature(torch.eye(3, 1), *E)) == pytest.approx(1.0)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_three_exponentials_are_one(group, rng):
    """The Riemannian, the Lie and the matrix exponential agree.

    They are a geodesic, a one-parameter subgroup and a power series.
    """
    A = element(group, rng, norm=2.0)
    one = group.origin(dtype=A.dtype)
    assert_close(group.exp(one, A), torch.linalg.matrix_exp(A))
    whole = group.exp(one, 1.3 * A)
    assert_close(group.exp(one, 0.9 * A) @ group.exp(one, 0.4 * A), whole)
    Q = group.random(generator=rng, dtype=A.dtype)

    def acceleration(t: float) -> Tensor:
        line = [group.exp(Q, s * Q @ A) for s in (0.7 - t, 0.7, 0.7 + t)]
        second = (line[0] - 2 * line[1] + line[2]) / t**2
        return matrix_norm(group.project(line[1], second))

    # The acceleration Q A^2 and the truncation error, a multiple of Q A^4, are normal
    # to the group. What is left is a rounding error divided by t^2. 3.3e-9: twice the
    # worst over 20 seeds, 1.6e-9.
    assert float(acceleration(1e-3)) < 3.3e-9


@pytest.mark.parametrize("group", [SO(2), U(1), Torus(3)], ids=str)
def test_the_exponential_update_is_riemannian_if_abelian(group, rng):
    """Theorem C.12 in abelian groups: the update is exp(A - eta grad(f o exp)(A)).

    It equals Q exp(-eta Q^H grad f(Q)).
    """
    A = element(group, rng, norm=2.0)
    for eta in (1e-3, 0.1, 1.0):
        assert_close(*updates(group, A, eta, rng), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "group", [SO(3), SO(4), U(2), SU(2), Sp(1), Quadrupole()], ids=str
)
def test_the_exponential_update_is_no_retraction_else(group, rng):
    """In other groups the update is off to first order, by eta |(D D^T - I) u|.

    Here D is the matrix of dexp_A, and u has the coordinates of Q^H grad f(Q). D D^T
    has the eigenvalues sinc^2(rho / 2), so the update is too short in directions in
    which the root rho is not 0.
    """
    A = element(group, rng, norm=2.0)
    etas = [2.0**-j for j in range(8, 16)]
    D, Q = dexp(group, A), expm_skew(A)
    state = rng.get_state()
    predicted = 0.0
    # Along A the update is exact, so draw until the cotangent has another direction.
    while predicted < 0.01:
        state = rng.get_state()
        G = cotangent(group, rng)
        u = inner(basis(group), group.algebra_projection(Q.mH @ G))
        predicted = float(torch.linalg.vector_norm(D @ D.mT @ u - u))

    def error(eta: float) -> Tensor:
        rng.set_state(state)
        exponential, riemannian = updates(group, A, eta, rng)
        return matrix_norm(exponential - riemannian)

    assert slope(error, etas) == pytest.approx(1.0, abs=0.02)
    assert float(error(etas[-1])) / etas[-1] == pytest.approx(predicted, rel=1e-3)


def cotangent(group: AbstractGroup, rng: torch.Generator) -> Tensor:
    G = torch.randn(group.shape, dtype=double_dtype_of(group), generator=rng)
    return G / matrix_norm(G)


def updates(
    group: AbstractGroup, A: Tensor, eta: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A step for f(Q) = <G, Q> through the exponential, and a Riemannian one."""
    G = cotangent(group, rng)
    X = A.clone().requires_grad_()
    f = inner(G, torch.linalg.matrix_exp(X))
    (ambient,) = torch.autograd.grad(f, X)
    through = expm_skew(A - eta * group.algebra_projection(ambient))
    Q = expm_skew(A)
    return through, group.exp(Q, -eta * group.gradient(Q, G))
