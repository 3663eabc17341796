"""The inverse of Pade's approximants on orthogonal and unitary matrices."""

import math

import mpmath
import pytest
import torch
from torch import Tensor
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.linalg._cayley import cayley_inverse
from isometry.linalg._pade import _inverse_phase, pade, pade_inverse
from tests.helpers import (
    DTYPES,
    double_dtype,
    eps,
    random_skew,
    random_unitary,
)
from tests.linalg.reference import edge_skew, expm

# degrees that differ visibly from the exponential, and two that do not
DEGREES = [2, 3, 4, 5, 8, 13]


def rotation(n: int, *, dtype: torch.dtype, rng: torch.Generator, batch=()) -> Tensor:
    """Haar matrices, with determinant 1 if real."""
    Q = random_unitary(n, dtype=dtype, rng=rng, batch=batch)
    if not dtype.is_complex and n > 0:
        Q[..., 0] *= torch.linalg.det(Q).sign()[..., None]
    return Q


def check_inverse(Q: Tensor, degree: int) -> Tensor:
    """Assert r_m(A) = Q, with A skew to the last bit and at most sqrt(12) long."""
    A = pade_inverse(Q, degree=degree)
    assert A.dtype == Q.dtype
    assert torch.equal(A, -A.mH)
    n = Q.shape[-1]
    # 43: twice the worst over 40 seeds, 21.3 (complex128, n = 7, angle pi), which is
    # the error of the logarithm
    error = matrix_norm(pade(A, degree=degree) - Q)
    assert (error <= 43 * math.sqrt(n) * eps(Q.dtype)).all()
    # The phase of degree 2 reaches pi at sqrt 12, and earlier for the other degrees.
    # 8.6: twice the worst over 40 seeds, 4.3 (complex64, n = 7).
    assert (matrix_norm(A, 2) <= math.sqrt(12) + 8.6 * n * eps(Q.dtype)).all()
    return A


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
def test_the_approximant_of_the_inverse_is_q(n, degree, dtype, rng):
    """pade(pade_inverse(Q)) = Q for Haar matrices."""
    check_inverse(rotation(n, dtype=dtype, rng=rng, batch=(2, 3)), degree)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("angle", [0.0, 1e-9, 1.0, math.pi - 1e-4, math.pi])
def test_repeated_angles_up_to_pi_are_reached(angle, degree, dtype, rng):
    """All angles are equal, up to pi: from degree 2 on every Q can be reached."""
    A = edge_skew(7, norm=angle, dtype=double_dtype(dtype), rng=rng)
    check_inverse(expm(A).to(dtype), degree)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", DEGREES)
def test_permutations_and_signs(degree, dtype):
    """I, -I, a cycle and pairs of reflections have eigenvalues 1, -1, i exactly."""
    eye = torch.eye(6, dtype=dtype)
    assert torch.equal(pade_inverse(eye, degree=degree), torch.zeros_like(eye))
    A = check_inverse(-eye, degree)
    # every angle is pi, where the solution is known: x = sqrt(12) and sqrt(10)
    x = {2: math.sqrt(12), 3: math.sqrt(10)}.get(degree)
    if x is not None:
        assert_close(matrix_norm(A, 2), torch.tensor(x, dtype=A.real.dtype))
    check_inverse(eye[[1, 2, 0, 4, 5, 3]], degree)
    check_inverse(torch.diag(torch.tensor([1, -1, -1, 1, -1, -1.0])).to(dtype), degree)
    if dtype.is_complex:
        check_inverse(1j * eye, degree)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("norm", [0.0, 1e-8, 0.1, 1.0, 3.0])
def test_the_inverse_of_the_approximant_is_a(norm, degree, dtype, rng):
    """pade_inverse(pade(A)) = A for norms at which the phase is below pi."""
    A = random_skew(7, norm=norm, dtype=dtype, rng=rng, batch=(3,))
    B = pade_inverse(pade(A, degree=degree), degree=degree)
    # 13: twice the worst over 40 seeds, 6.4 (complex128, degree 3, norm 3, whose angles
    # are 0.15 from pi)
    assert (matrix_norm(A - B) <= 13 * 7 * eps(dtype)).all()


@pytest.mark.once
@pytest.mark.parametrize("degree", DEGREES)
def test_the_scalar_inverse_is_that_of_mpmath(degree):
    """r_m(ix) = exp(i theta), solved in 40 digits; small theta keep all digits."""
    theta = [1e-12, 1e-3, 0.5, 1.0, 2.0, 3.0, 3.1415, math.pi]
    with mpmath.workdps(40):
        p, q = mpmath.pade(mpmath.taylor(mpmath.exp, 0, 2 * degree), degree, degree)

        def equation(x, t):
            z = mpmath.mpc(0, x)
            ratio = mpmath.polyval(p[::-1], z) / mpmath.polyval(q[::-1], z)
            return mpmath.arg(ratio * mpmath.expj(-t))

        expected = [
            float(mpmath.findroot(lambda x, t=t: equation(x, t), t)) for t in theta
        ]
    x = _inverse_phase(torch.tensor(theta, dtype=torch.float64), degree)
    assert_close(
        x, torch.tensor(expected, dtype=x.dtype), rtol=4 * eps(x.dtype), atol=0
    )
    assert torch.equal(_inverse_phase(-x, degree), -_inverse_phase(x, degree))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_degree_one_is_the_inverse_of_cayley(dtype, rng):
    Q = pade(random_skew(6, norm=3.0, dtype=dtype, rng=rng, batch=(2,)), degree=1)
    assert torch.equal(pade_inverse(Q, degree=1), cayley_inverse(Q))


@pytest.mark.parametrize("degree", [1, 2, 5])
def test_small_angles_keep_their_digits(degree):
    """An angle 1e-20 next to 1 keeps its digits, as Q does off the diagonal."""
    J = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    A = torch.block_diag(J, 1e-20 * J)
    B = pade_inverse(pade(A, degree=degree), degree=degree)
    assert_close(B[:2, :2], A[:2, :2], rtol=4 * eps(A.dtype), atol=eps(A.dtype))
    assert_close(B[2:, 2:], A[2:, 2:], rtol=4 * eps(A.dtype), atol=0)


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (0, 3, 3), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("degree", [1, 2])
def test_empty_and_single(shape, degree):
    Q = torch.eye(shape[-1]).expand(shape)
    assert torch.equal(pade_inverse(Q, degree=degree), torch.zeros(shape))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_matrix_that_is_not_finite_becomes_nan_alone(dtype, degree, bad, rng):
    Q = pade(random_skew(4, norm=1.0, dtype=dtype, rng=rng, batch=(3,)), degree=2)
    spoilt = Q.clone()
    spoilt[1, 2, 1] = bad
    A = pade_inverse(spoilt, degree=degree)
    assert A[1].isnan().all()
    assert_close(A[::2], pade_inverse(Q[::2], degree=degree))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, rng):
    """r_m(A) = Q to the rounding of half precision."""
    Q = rotation(4, dtype=torch.float32, rng=rng).to(dtype)
    A = pade_inverse(Q, degree=2)
    assert A.dtype == dtype
    # 4.2: twice the worst over 40 seeds, 2.1
    assert matrix_norm(pade(A.float(), degree=2) - Q) <= 4.2 * eps(dtype)


def test_no_gradient(rng):
    Q = rotation(4, dtype=torch.float64, rng=rng).requires_grad_()
    assert not pade_inverse(Q, degree=2).requires_grad


@pytest.mark.errors
def test_what_is_out_of_reach_is_refused():
    half_turn = torch.diag(torch.tensor([1.0, -1.0, -1.0]))
    with pytest.raises(ValueError, match="`Q` must not have the eigenvalue -1"):
        pade_inverse(half_turn, degree=1)
    reflection = torch.diag(torch.tensor([1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match="`Q` must have determinant 1 if real"):
        pade_inverse(reflection, degree=2)
    assert pade_inverse(reflection.to(torch.complex64), degree=2).isfinite().all()


@pytest.mark.errors
def test_arguments_are_checked():
    Q = torch.eye(3)
    with pytest.raises(ValueError, match="`degree` must be at least 1; got 0"):
        pade_inverse(Q, degree=0)
    with pytest.raises(ValueError, match=r"`Q` must have shape .* got \(3, 2\)"):
        pade_inverse(Q[:, :2], degree=2)
    with pytest.raises(ValueError, match="`Q` must be unitary"):
        pade_inverse(2 * Q, degree=2)
    with pytest.raises(TypeError, match="`Q` must have a floating-point"):
        pade_inverse(Q.long(), degree=2)
