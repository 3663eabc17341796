"""The formulas for short steps, against decompositions in double precision."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from isometry.groups import QR, SO, SU, Exp, Polar, Sp, Stiefel, Torus, U
from isometry.groups._maps.factors import q_factor
from isometry.linalg import polar
from isometry.linalg._expm.angles import samuelson_bound
from tests.helpers import DTYPES, double_dtype, eps, random_skew


def expm1(A: Tensor) -> Tensor:
    """exp(A) - I in double precision with all digits of A, since no 1 is subtracted."""
    theta, V = torch.linalg.eigh(-1j * A.to(double_dtype(A.dtype)))
    values = torch.complex(-2 * (theta / 2).sin() ** 2, theta.sin())
    N = (V * values[..., None, :]) @ V.mH
    return N if A.is_complex() else N.real


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [0.0, 1e-6, 1e-3, 0.01, 0.07, 0.1, 0.25, 0.5, 10.0])
@pytest.mark.parametrize("n", [1, 2, 7, 32])
def test_increments_have_the_digits_of_the_step(n, norm, dtype, rng):
    """exp(A) - I is None, or has an error of at most eps (|A| + sqrt(n))."""
    A = random_skew(n, norm=norm, dtype=dtype, rng=rng, batch=(3,))
    N = Exp().increment(A.clone())
    if N is None:
        # None if there may be angles above 0.347, or 0.0197 in double precision
        assert norm * n**0.25 > (0.347 if eps(dtype) > 1e-10 else 0.0197)
        return
    # 1: twice the worst over 30 seeds, 0.53 (float32, n = 7, norm 0.1)
    tol = eps(dtype) * (torch.linalg.matrix_norm(A) + n**0.5)
    assert (torch.linalg.matrix_norm(N - expm1(A)) <= tol).all()
    # a truncated series changes angles only, so I + N is still unitary
    R = (N + torch.eye(n)).to(double_dtype(dtype))
    assert (U(n).defect(R) <= 2 * tol).all()


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("n", [2, 3, 8, 33])
def test_angles_are_bounded_from_above(n, edge, rng):
    """The bound holds for random angles and for one plane.

    For one plane Samuelson's inequality is sharp.
    """
    for dtype in (torch.float64, torch.complex128):
        A = random_skew(n, norm=0.1, dtype=dtype, rng=rng)
        if edge:
            theta, V = torch.linalg.eigh(-1j * A)
            theta = torch.where(theta.abs() == theta.abs().max(), theta, 0)
            theta = theta if dtype.is_complex else theta - theta.flip(0)
            theta = 0.1 * theta / theta.abs().max()
            A = (V * (1j * theta)) @ V.mH
            A = A if dtype.is_complex else A.real
        bound = samuelson_bound(A[None], (A @ A)[None])
        # 1e-7: if all angles are equal, their variance, which is computed as a
        # difference, consists of rounding errors
        assert bound >= 0.1 * (1 - 1e-7)
        if edge:
            assert bound == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("retraction", ["cayley", "pade-2", "pade-3", "pade-5"])
@pytest.mark.parametrize("norm", [0.0, 1e-3, 0.3, 100.0])
def test_rational_increments_are_the_retraction_less_one(norm, retraction, rng):
    """r(A) - I for degrees 1 to 5; long steps return None."""
    A = random_skew(6, norm=norm, dtype=torch.float64, rng=rng, batch=(3,))
    phi = SO(6).resolve(retraction)
    N = phi.increment(A.clone())
    assert (N is None) == (norm == 100.0)
    if N is not None:
        expected = phi.at_identity(A) - torch.eye(6)
        # r(A) itself has errors of 1e-16 relative to the identity
        assert_close(N, expected, rtol=0, atol=2e-15)


def test_increments_of_what_is_not_finite_are_left_to_the_group():
    A = torch.zeros(2, 3, 3)
    A[1, 0, 1] = torch.nan
    for retraction in ("exp", "cayley", "pade-2"):
        assert SO(3).resolve(retraction).increment(A) is None


@pytest.mark.parametrize("step", [0.0, 1e-4, 0.02, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_polar_by_products_is_that_of_the_decomposition(dtype, step, rng):
    """The polar factor is U V^H of Q + E = U S V^H, for tangent E of any size."""
    for M in (
        (U(5), Stiefel(7, 3, is_complex=True), U(1))
        if dtype.is_complex
        else (SO(5), Stiefel(7, 3), Stiefel(4, 3), SO(1))
    ):
        Q, X = M.random(2, 4, dtype=dtype, generator=rng)
        E = step * M.project(Q, X)
        P = Polar().step(Q, E)
        expected = polar((Q + E).to(double_dtype(dtype)))
        # Twice the worst over 30 seeds: 6.9 at step 100; 30 in double precision, to
        # which the decomposition contributes.
        c = 14 if eps(dtype) > 1e-10 else 60
        assert_close(P.to(double_dtype(dtype)), expected, rtol=0, atol=c * eps(dtype))
        # twice the worst, 3.7 eps
        assert (M.defect(P.to(double_dtype(dtype))) < 8 * eps(dtype)).all()


def test_polar_ends_in_smaller_groups_too(rng):
    """Polar stays in smaller groups: determinants are divided out, Sp(n) is kept."""
    for group in (SU(3), Sp(2), Torus(3)):
        Q, X = group.random(2, 4, dtype=torch.complex128, generator=rng)
        E = group.project(Q, X)
        frame = group.frame()
        P, _ = frame.advance(Q, frame.reals(Q.mH @ E), 1.0, {}, Polar())
        assert group.contains(P).all()
        assert_close(P, group.retract(Q, E, "polar"), rtol=0, atol=1e-14)


def test_polar_of_what_is_hopeless_is_nan_and_alone(rng):
    """A step of 1e4 in float32 has no digits left: NaN, for that matrix only.

    If the step itself contains NaN, so does the result.
    """
    Q, X = SO(4).random(2, 4, generator=rng)
    E = SO(4).project(Q, X)
    E[0], E[1, 0, 0], E[2] = 1e6 * E[0], torch.nan, torch.inf
    P = Polar().step(Q, E)
    assert P[:3].isnan().all(-1).all(-1).all()
    assert_close(P[3], polar(Q[3] + E[3]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("step", [0.0, 1e-4, 0.02, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_qr_by_cholesky_is_that_of_the_decomposition(dtype, step, rng):
    """Q by Cholesky is the Q of Q + E with a positive diagonal of R, for any E."""
    for n, k in ((7, 3), (4, 3), (9, 1), (40, 12)):
        M = Stiefel(n, k, is_complex=dtype.is_complex)
        Q, X = M.random(2, 4, dtype=dtype, generator=rng)
        E = step * M.project(Q, X)
        P = QR().step(Q, E).to(double_dtype(dtype))
        Y = (Q + E).to(double_dtype(dtype))
        error = (P - q_factor(Y)).abs().amax((-2, -1))
        # twice the worst over 200 seeds: 4.0 (float64, 4 x 3, step 0.02)
        assert (error <= 8 * eps(dtype) * torch.linalg.cond(Y)).all()
        # twice the worst, 12 (complex64, 40 x 12, step 100)
        assert (M.defect(P) < 24 * eps(dtype)).all()


def test_qr_of_nan_is_nan_and_alone(rng):
    M = Stiefel(6, 2)
    Q, X = M.random(2, 2, generator=rng)
    E = 0.1 * M.project(Q, X)
    E[0, 0, 0] = torch.nan
    P = QR().step(Q, E)
    assert P[0].isnan().any()
    assert_close(P[1], q_factor(Q[1] + E[1]))
