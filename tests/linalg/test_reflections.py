"""Factors of matrices with orthonormal columns: products of reflections and phases."""

import math

import pytest
import torch
from torch import Tensor
from torch.linalg import matrix_norm, vector_norm
from torch.testing import assert_close

from isometry.linalg._householder import householder, reflections
from tests.helpers import DTYPES, double_dtype, eps, random_unitary

SHAPES = [(1, 1), (2, 1), (2, 2), (5, 3), (5, 5), (32, 32), (40, 8)]


def product(V: Tensor, phase: Tensor) -> Tensor:
    """H_1 ... H_k I diag(phase), one reflection after another, in double precision."""
    V, phase = V.to(double_dtype(V.dtype)), phase.to(double_dtype(V.dtype))
    Q = torch.eye(*V.shape[-2:], dtype=V.dtype) * phase[..., None, :]
    for j in reversed(range(V.shape[-1])):
        v = V[..., :, j : j + 1]
        Q = Q - 2 * v @ (v.mH @ Q) / (v.mH @ v)
    return Q


def check_factors(Q: Tensor) -> None:
    """Assert all that `reflections` promises about V and phase."""
    V, phase = reflections(Q)
    n, k = Q.shape[-2:]
    assert V.shape == Q.shape
    assert phase.shape == (*Q.shape[:-2], k)
    assert V.dtype == phase.dtype == Q.dtype
    assert torch.equal(V, V.tril())
    # the squared lengths are 2 + 2 |x_jj|; 12: twice the worst over 60 seeds, 6.0
    length = vector_norm(V, dim=-2)
    assert (length >= math.sqrt(2) - 12 * eps(Q.dtype)).all()
    assert (length <= 2 + 12 * eps(Q.dtype)).all()
    # 2: twice the worst over 60 seeds, 1.0
    modulus = phase.abs()
    assert_close(modulus, torch.ones_like(modulus), rtol=0, atol=2 * eps(Q.dtype))
    # 9.3: twice the worst over 60 seeds, 4.6 (complex128, 1 x 1)
    unit = n * eps(Q.dtype)
    assert (matrix_norm(product(V, phase) - Q) <= 9.3 * unit).all()
    Y = householder(V, columns=k) * phase[..., None, :]
    # 6.4: twice the worst over 60 seeds, 3.2 (complex128, 2 x 2)
    assert (matrix_norm(Y - Q) <= 6.4 * unit).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_product_is_q(shape, batch, dtype, rng):
    """householder(V, columns=k) * phase = Q, for Haar matrices of any determinant."""
    n, k = shape
    check_factors(random_unitary(n, k=k, dtype=dtype, rng=rng, batch=batch))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_the_product_is_q_at_the_edges(n, dtype, rng):
    """The product is Q for I, -I, a transposition, permutations, and their columns."""
    eye = torch.eye(n, dtype=dtype)
    for k in range(1, n + 1):
        check_factors(eye[:, :k])
        check_factors(-eye[:, :k])
        # x_jj = 0 in every step
        check_factors(eye.flip(0)[:, :k])
        check_factors(eye.roll(1, 0)[:, :k])
        check_factors(eye[torch.randperm(n, generator=rng)][:, :k])
        if dtype.is_complex:
            check_factors(1j * eye[:, :k])


@pytest.mark.parametrize("sign", [1, -1])
def test_real_phases_are_signs(sign, rng):
    """det Q = (-1)^n prod phase, and each phase is 1 or -1 exactly."""
    Q = random_unitary(5, dtype=torch.float64, rng=rng, batch=(8,))
    Q = Q * (sign * torch.linalg.det(Q).sign())[:, None, None]
    _, phase = reflections(Q)
    assert torch.equal(phase.abs(), torch.ones_like(phase))
    assert torch.equal(-phase.prod(-1), torch.full((8,), float(sign)).double())


def test_nearly_equal_columns_do_not_cancel(rng):
    """Near x = +-e_1, up to 1e-9, no digits cancel.

    The other choice of sign would lose nine digits.
    """
    A = 1e-9 * torch.randn(6, 6, dtype=torch.float64, generator=rng)
    Q = torch.linalg.matrix_exp(A - A.mT)
    check_factors(Q)
    check_factors(-Q)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, rng):
    """The product is Q up to the rounding of V and Q in half precision."""
    Q = random_unitary(6, k=4, dtype=torch.float32, rng=rng).to(dtype)
    V, phase = reflections(Q)
    assert V.dtype == phase.dtype == dtype
    # 2.2: twice the worst over 60 seeds, 1.07
    assert matrix_norm(product(V.float(), phase.float()) - Q) <= 2.2 * eps(dtype)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_matrix_that_is_not_finite_becomes_nan_alone(bad, dtype, rng):
    Q = random_unitary(5, k=3, dtype=dtype, rng=rng, batch=(3,))
    spoilt = Q.clone()
    spoilt[1, 3, 0] = bad
    V, phase = reflections(spoilt)
    Y = householder(V, columns=3) * phase[..., None, :]
    assert Y[1].isnan().all()
    expected = reflections(Q)
    assert torch.equal(V[::2], expected[0][::2])
    assert torch.equal(phase[::2], expected[1][::2])


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3, 2), (2, 0, 0)], ids=str)
def test_empty(shape):
    V, phase = reflections(torch.zeros(shape))
    assert V.shape == shape
    assert phase.shape == (*shape[:-2], shape[-1])


def test_no_gradient_and_no_effect(rng):
    """The factors are detached, and Q is not changed."""
    Q = random_unitary(4, dtype=torch.float64, rng=rng).requires_grad_()
    before = Q.detach().clone()
    V, phase = reflections(Q)
    assert not V.requires_grad
    assert not phase.requires_grad
    assert torch.equal(Q, before)


@pytest.mark.errors
def test_arguments_are_checked():
    message = r"`Q` must have at least as many rows as columns; got \(2, 3\)"
    with pytest.raises(ValueError, match=message):
        reflections(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"`Q` must have shape .* got \(3,\)"):
        reflections(torch.zeros(3))
    with pytest.raises(TypeError, match="`Q` must have a floating-point"):
        reflections(torch.zeros(3, 3, dtype=torch.int64))
