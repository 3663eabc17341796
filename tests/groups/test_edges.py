"""Angle pi, opposite points, NaN, sizes 0 and 1, and the modes of torch."""

import math

import pytest
import torch
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.groups import (
    SO,
    SU,
    O,
    Product,
    Sp,
    Sphere,
    Stiefel,
    Torus,
    U,
    _derived,
    _stiefel_log,
)
from isometry.groups._derived import basis
from isometry.linalg import expm_skew
from isometry.testing._case import Case
from isometry.testing._points import methods
from tests.groups.registry import (
    GROUPS,
    MANIFOLDS,
    Adjoint,
    Helix,
    Quadrupole,
    Spin,
    dtype_of,
)
from tests.helpers import eps, new_generator

# Points on the CPU must have results on the CPU, whatever torch's default device is.
DEVICES = pytest.mark.parametrize("default_device", ["cpu", "meta"])


@DEVICES
@pytest.mark.parametrize(
    "group", [SO(2), SO(4), U(1), U(3), SU(2), SU(4), Sp(1), Sp(2), Torus(3)], ids=str
)
def test_minus_one_has_a_logarithm(group, default_device):
    """exp(log(-I)) = -I, with a logarithm in the algebra and all angles pi."""
    one = group.origin(dtype=dtype_of(group, torch.float64))
    with torch.device(default_device):
        A = group.log(one, -one)
    assert_close(expm_skew(A), -one)
    assert_close(group.algebra_projection(A), A)
    assert float(group.border_distance(one, A)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "gap", [0.0, 1e-15, 1e-14, 1e-13, 1e-12, 1e-8, 1e-4, 0.05, 0.075, 0.1]
)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_symplectic_logarithm_near_pi(n, gap, rng):
    """exp(log Q) = Q for two pairs of angles +-(pi - gap), with noise in all of Q.

    Rounding used to decide which eigenvectors belong to e^i theta and which to
    e^-i theta: for n = 2, |exp(log Q) - Q| was 2.8 at gap 1e-14, and 3e-6 at 1e-13.
    Angles within 0.1 of pi were treated separately. At gap 0.1, rounding put theta
    within this border and -theta beyond it, and a third of the logarithms raised.
    """
    group = Sp(n)
    for _ in range(10):
        theta = 3 * torch.rand(n, generator=rng, dtype=torch.float64)
        theta[:2] = math.pi - gap
        V = group.random(generator=rng, dtype=torch.complex128)
        Q = V @ expm_skew(group.torus(theta)) @ V.mH
        noise = torch.randn(Q.shape, dtype=Q.dtype, generator=rng)
        Q = Q + 1e-16 * noise
        A = group.log(group.origin(dtype=Q.dtype), Q)
        # 30: twice the worst, 15 (n = 1)
        assert matrix_norm(expm_skew(A) - Q) <= 30 * 2 * n * eps(Q.dtype)
        assert_close(group.algebra_projection(A), A)


@pytest.mark.parametrize("n", [3, 6, 20])
def test_symplectic_logarithm_with_angles_pi_and_smaller_ones(n, rng):
    """exp(log Q) = Q if half of the angles are exactly pi, and others are near 2.5.

    Rounding errors of the smaller angles used to decide the signs of the angles pi. For
    1 of 50 matrices with n = 3, and half of them with n = 20, |exp(log Q) - Q| was 2.8.
    """
    group = Sp(n)
    theta = 2 + torch.rand(200, n, generator=rng, dtype=torch.float64)
    theta[:, : (n + 1) // 2] = math.pi
    V = group.random(200, generator=rng, dtype=torch.complex128)
    Q = V @ expm_skew(group.torus(theta)) @ V.mH
    A = group.log(group.origin(200, dtype=Q.dtype), Q)
    # 30: twice the worst, 15 (n = 3)
    assert (matrix_norm(expm_skew(A) - Q) <= 30 * 2 * n * eps(Q.dtype)).all()
    assert_close(group.algebra_projection(A), A)


def test_opposite_points_of_a_sphere(rng):
    """log(q, -q) is orthogonal to q and has length pi.

    It used to be pi q: the direction was P - q q^T P with P = -q, which is
    (|q|^2 - 1) q, and so consists of rounding errors only.
    """
    sphere = Sphere(5)
    q = sphere.random(100, generator=rng, dtype=torch.float64)
    e = sphere.log(q, -q)
    assert ((q * e).sum(-1).abs() < 1e-14).all()
    assert_close(e.norm(dim=-1), torch.full((100,), math.pi, dtype=torch.float64))
    assert_close(sphere.exp(q, e), -q)


@DEVICES
@pytest.mark.parametrize("start", ["torus", "random"])
def test_logarithm_of_a_rotation_between_quadrupoles(
    start, default_device, monkeypatch
):
    """The logarithm is in the algebra, although the principal logarithm is not.

    A rotation by 3 turns quadrupoles by 6; the principal logarithm says 6 - 2 pi.
    """
    if start == "random":
        monkeypatch.setattr(_derived, "torus_log", lambda *_, **__: None)
    group = Quadrupole()
    X = torch.zeros(5, 5, dtype=torch.float64)
    X[1, 0] = 3.0
    A = group.algebra(X)
    assert float(matrix_norm(A, 2)) == pytest.approx(6)
    with torch.device(default_device):
        B = group.algebra_log(expm_skew(A))
    assert_close(expm_skew(B), expm_skew(A))
    assert_close(group.algebra_projection(B), B)


@pytest.mark.parametrize(
    "group", [Spin(4), Spin(7), Spin(9), Adjoint(SU(3)), Adjoint(SO(5))], ids=str
)
def test_logarithm_in_representations(group, rng):
    """Every Haar sample has a logarithm, even if its angles are several half turns.

    Newton's method with only random starts found none for 7 of 100 samples of Spin(9).
    """
    Q = group.random(30, generator=rng, dtype=dtype_of(group, torch.float64))
    A = group.algebra_log(Q)
    # 30: twice the worst over 300 samples, 11 n eps for Spin(4), and a margin for exp
    tol = 30 * group.size * eps(Q.dtype)
    assert (matrix_norm(torch.linalg.matrix_exp(A) - Q) <= tol).all()
    assert_close(group.algebra_projection(A), A)
    N = torch.randn(Q.shape, dtype=Q.dtype, generator=rng)
    P = group.nearest(Q + 0.01 * N)
    assert (matrix_norm(P - Q) <= 0.01 * matrix_norm(N)).all()


def test_the_nearest_point_of_a_group_with_one_element(rng):
    """The nearest point is the identity; from far away it used to be NaN.

    The random starts of Newton's method are zero, and were divided by their norm.
    """
    X = torch.randn(20, 1, 1, dtype=torch.complex128, generator=rng)
    assert_close(Spin(1).nearest(X), torch.ones_like(X))
    assert Spin(1).contains(X).tolist() == [False] * 20


def test_logarithm_of_a_helix(rng):
    """The logarithm of diag(e^it, e^2it), t = 3, has its second angle beyond pi."""
    Q = torch.diag(torch.exp(1j * torch.tensor([3.0, 6.0], dtype=torch.float64)))
    A = Helix().algebra_log(Q)
    assert_close(A, torch.diag(1j * torch.tensor([3.0, 6.0], dtype=torch.float64)))


@pytest.mark.parametrize("manifold", [m for m in MANIFOLDS if all(m.shape)], ids=str)
def test_not_finite_stays_in_its_matrix(manifold):
    """NaN in one point of a batch gives NaN for that point only, and no exception."""
    dtype = dtype_of(manifold, torch.float64)
    rng = new_generator(0)
    Q = manifold.random(3, generator=rng, dtype=dtype)
    good = Q[::2].clone()
    Q[(1, *[0] * len(manifold.shape))] = math.nan
    for f in (manifold.nearest, manifold.polish):
        assert f(Q)[1].isnan().any()
        assert_close(f(Q)[::2], f(good))
    distance = manifold.border_distance(Q, torch.zeros_like(Q))
    assert distance.isnan().tolist()[::2] == [False, False]


@pytest.mark.parametrize("manifold", MANIFOLDS, ids=str)
def test_no_method_depends_on_the_default_device(manifold, rng):
    """Methods of points on the CPU return tensors on the CPU.

    Random starts and the form of Sp(n) used to be on the default device.
    """
    case = Case(manifold, dtype_of(manifold, torch.float64), rng)
    Q, X, Y = case.points(2), case.ambient(2), case.ambient(2)
    P = manifold.exp(Q, case.tangent(Q, angle=1.0))
    with torch.device("meta"):
        for name, method in methods(manifold):
            assert not method(Q, P, X, Y).is_meta, name


@pytest.mark.parametrize("group", [g for g in GROUPS if g.size > 0], ids=str)
def test_logarithm_of_nan_is_nan(group):
    Q = group.origin(3, dtype=dtype_of(group, torch.float64))
    Q[1, 0, 0] = math.nan
    A = group.algebra_log(Q)
    assert A[1].isnan().any()
    assert_close(A[::2], torch.zeros_like(A[::2]))


def test_stiefel_logarithm_in_single_precision(rng):
    """log(Q, exp(Q, E)) = E for float32.

    It used to raise, since float32 columns are not orthonormal to double precision.
    """
    manifold = Stiefel(6, 2)
    Q = manifold.random(generator=rng)
    E = 0.3 * manifold.project(Q, torch.randn(6, 2, generator=rng))
    assert_close(manifold.log(Q, manifold.exp(Q, E)), E, rtol=0, atol=1e-6)


FAR = [
    Stiefel(3, 2),
    Stiefel(4, 2),
    Stiefel(6, 3),
    Stiefel(10, 5),
    Stiefel(5, 2, is_complex=True),
]


@pytest.mark.parametrize(
    "manifold", [Stiefel(3, 2), Stiefel(6, 3), Stiefel(5, 2, is_complex=True)], ids=str
)
def test_stiefel_logarithm_of_far_points(manifold, rng):
    """exp(Q, log(Q, P)) = P for uniform pairs, far beyond where convergence is proven.

    None of 500 pairs failed. That the geodesic is the shortest one is not claimed.
    """
    dtype = dtype_of(manifold, torch.float64)
    Q, P = (manifold.random(10, generator=rng, dtype=dtype) for _ in range(2))
    # twice the worst of the 500, 2.4e-14
    assert_close(manifold.exp(Q, manifold.log(Q, P)), P, rtol=0, atol=4.8e-14)
    minus = manifold.log(Q, -Q)
    assert_close(manifold.exp(Q, minus), -Q, rtol=0, atol=4.8e-14)


@pytest.mark.parametrize("manifold", FAR, ids=str)
def test_stiefel_logarithm_at_distance_pi(manifold, rng):
    """exp(Q, log(Q, P)) = P for points at distance pi.

    Of 300 pairs 9 used to raise, 6 of them about a `Q` that was not the user's (issue
    14).
    """
    dtype = dtype_of(manifold, torch.float64)
    Q = manifold.random(50, generator=rng, dtype=dtype)
    E = manifold.project(Q, torch.randn(Q.shape, dtype=dtype, generator=rng))
    E = E * (math.pi / manifold.inner(Q, E, E).sqrt())[:, None, None]
    P = manifold.exp(Q, E)
    # 1e-14 k: twice the worst over 36 seeds, 4.5e-15 k
    gap = matrix_norm(manifold.exp(Q, manifold.log(Q, P)) - P)
    assert (gap <= 1e-14 * manifold.k).all()


@DEVICES
def test_the_last_start_of_the_stiefel_logarithm_counts(
    default_device, monkeypatch, rng
):
    """A geodesic that only the last start finds is returned.

    It used to be refused, with a residual below the bound in the same message.
    """
    shoot = _stiefel_log._shoot
    calls = []

    def fail_first(E, P):
        calls.append(E)
        E, gap = shoot(E, P)
        return E, gap if len(calls) > 1 else torch.full_like(gap, 1.0)

    monkeypatch.setattr(_stiefel_log, "_shoot", fail_first)
    monkeypatch.setattr(_stiefel_log, "_RESTARTS", 1)
    manifold = Stiefel(5, 2)
    Q, P = manifold.random(2, 3, generator=rng, dtype=torch.float64)
    with torch.device(default_device):
        E = manifold.log(Q, P)
    assert_close(manifold.exp(Q, E), P, rtol=0, atol=1e-13)
    assert len(calls) == 2


def test_stiefel_logarithm_of_nan_is_nan(rng):
    """NaN in one pair of a batch gives NaN for that pair only."""
    Q, P = Stiefel(5, 2).random(2, 3, generator=rng, dtype=torch.float64)
    P[1, 0, 0] = math.nan
    E = Stiefel(5, 2).log(Q, P)
    assert E[1].isnan().all()
    assert_close(E[::2], Stiefel(5, 2).log(Q[::2], P[::2]), rtol=0, atol=1e-13)


def test_stiefel_logarithm_of_the_point_itself(rng):
    """log(Q, Q) = 0.

    There is no part orthogonal to Q, so the frame is completed by any columns.
    """
    Q = Stiefel(7, 3).random(2, generator=rng, dtype=torch.float64)
    assert_close(Stiefel(7, 3).log(Q, Q), torch.zeros_like(Q), rtol=0, atol=1e-14)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_group_remembers_outlives_the_mode(mode):
    """A basis cached in inference mode or on meta still serves training later."""
    basis.cache_clear()
    with mode(), torch.device("meta"):
        Quadrupole().dimension  # noqa: B018 - reading it raises
    X = torch.randn(5, 5, requires_grad=True)
    (g,) = torch.autograd.grad(Quadrupole().algebra_projection(X).sum(), X)
    assert g.isfinite().all()


def test_groups_without_closed_forms_compile(no_shape_hook, rng):
    """A cached basis is a constant of the graph, even if compiling computes it."""
    basis.cache_clear()
    torch.compiler.reset()
    group = Quadrupole()
    Q = group.origin()

    def step(X: torch.Tensor) -> torch.Tensor:
        return group.point(X, None) + group.project(Q, X)

    X = torch.randn(5, 5, generator=rng)
    assert_close(torch.compile(step, fullgraph=True, backend="eager")(X), step(X))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_logarithm_in_sp(backend, no_shape_hook, rng):
    """A compiled logarithm used to raise NameError: Dynamo printed NaN + NaN j."""
    torch.compiler.reset()
    Q, P = Sp(2).random(2, 3, dtype=torch.complex128, generator=rng)
    assert_close(torch.compile(Sp(2).log, backend=backend)(Q, P), Sp(2).log(Q, P))


def test_tall_points_by_every_retraction(rng):
    """`point` maps to tall points by polar and qr.

    It used to refuse both, with a message about Pade.
    """
    manifold = Stiefel(5, 2)
    X = torch.randn(3, 5, 2, generator=rng)
    for name in ("polar", "qr"):
        assert manifold.contains(manifold.point(X, None, name)).all()


def test_products_keep_their_blocks(rng):
    """A point of a product has points of its factors as blocks, else zeros."""
    group = Product(SO(2), SO(3))
    Q = group.random(2, generator=rng)
    assert_close(Q[:, :2, 2:], torch.zeros(2, 2, 3))
    assert SO(2).contains(Q[:, :2, :2]).all()
    assert SO(3).contains(Q[:, 2:, 2:]).all()
    assert group.rank == 2
    assert repr(group) == "Product(SO(n=2), SO(n=3))"
    assert group.dimension == 4


@pytest.mark.parametrize("group", [SO(512), SU(512)], ids=str)
def test_the_determinant_of_a_large_matrix_does_not_underflow(group, rng):
    """Samples and nearest points of n = 512 in float32 have determinant 1, not 0.

    The product of the pivots used to be 0: `SO(512).random` returned a matrix with a
    last column of zeros, and a reflection passed for a rotation.
    """
    dtype = dtype_of(group, torch.float32)
    Q = group.random(dtype=dtype, generator=rng)
    group.check_point(Q, name="Q")
    reflected = torch.cat([-Q[:, :1], Q[:, 1:]], -1)
    assert float(group.defect(reflected)) > 1
    group.check_point(group.nearest(reflected), name="Q")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_component_of_a_square_weight_is_that_of_its_base(sign, rng):
    """Retractions and weights with coordinates keep the determinant of the base."""
    Q = O(4).nearest(torch.randn(4, 4, generator=rng))
    Q[:, 0] *= sign * torch.linalg.det(Q).sgn()
    X = torch.randn(5, 4, 4, generator=rng)
    for name in ("exp", "cayley", "pade-3", "polar", "qr"):
        P = O(4).retract(Q, O(4).project(Q, X), name)
        assert_close(torch.linalg.det(P), torch.full((5,), sign))
        assert_close(torch.linalg.det(O(4).point(X, Q, name)), torch.full((5,), sign))


def test_samples_of_both_components(rng):
    """Half of the samples have determinant -1.

    The number of these among 10000 samples has the standard deviation 50.
    """
    negative = (torch.linalg.det(O(3).random(10000, generator=rng)) < 0).sum()
    assert abs(int(negative) - 5000) < 300
