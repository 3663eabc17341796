import math

import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.linalg._polar import polar
from tests.helpers import DTYPES, double_dtype, eps, gradcheck_options, random_unitary

SHAPES = [(1, 1), (4, 4), (9, 4), (4, 9), (5, 1), (32, 32)]


def conditioned(n: int, k: int, s: Tensor, *, dtype, rng) -> tuple[Tensor, Tensor]:
    """A matrix with the given singular values, and its polar factor."""
    r = min(n, k)
    U = random_unitary(n, k=r, dtype=double_dtype(dtype), rng=rng)
    V = random_unitary(k, k=r, dtype=double_dtype(dtype), rng=rng)
    return ((U * s) @ V.mH).to(dtype), U @ V.mH


def reference_gradient(X: Tensor, G: Tensor) -> Tensor:
    """By SciPy: Q K + (I - Q Q^H) G H^-1, where K H + H K = Q^H G - G^H Q."""
    X, G = X.to(double_dtype(X.dtype)), G.to(double_dtype(G.dtype))
    if X.shape[0] < X.shape[1]:
        return reference_gradient(X.mH.resolve_conj(), G.mH).mH
    Q, H = (torch.from_numpy(part) for part in scipy.linalg.polar(X.numpy()))
    C = (Q.mH @ G - G.mH @ Q).resolve_conj().numpy()
    K = torch.from_numpy(scipy.linalg.solve_sylvester(H.numpy(), H.numpy(), C))
    normal = G - Q @ (Q.mH @ G)
    return Q @ K + torch.linalg.solve(H, normal, left=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spread", [1.0, 1e3])
def test_value_and_gradient_are_those_of_scipy(spread, shape, dtype, rng):
    """Value and gradient agree with SciPy; small singular values enlarge the error."""
    n, k = shape
    r = min(n, k)
    s = torch.logspace(0, -math.log10(spread), r, dtype=torch.float64)
    X, expected = conditioned(n, k, s, dtype=dtype, rng=rng)
    X.requires_grad_()
    G = torch.randn(n, k, dtype=dtype, generator=rng)

    Q = polar(X)
    (g,) = torch.autograd.grad(Q, X, G)

    Q = Q.detach().to(double_dtype(dtype))
    # twice the worst over 100 seeds: value 4.0, orthogonality 5.0, gradient 6.1 (all
    # for 1 x 1 complex, where LAPACK's phase is not the best)
    unit = n * eps(dtype)
    assert matrix_norm(Q - expected) <= 8 * unit * spread
    gram = Q.mH @ Q if n >= k else Q @ Q.mH
    assert matrix_norm(gram - torch.eye(r)) <= 10 * unit
    error = matrix_norm(g - reference_gradient(X.detach(), G))
    assert error <= 12.2 * unit * spread**2 * matrix_norm(G)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (6, 3), (3, 6), (2, 3, 3)], ids=str)
def test_gradient_at_the_identity(shape, dtype, rng):
    """D polar(I)[E] = (E - E^H) / 2.

    All singular values are equal there, and the gradient of svd is NaN.
    """
    X = torch.eye(*shape[-2:], dtype=dtype).expand(shape).clone().requires_grad_()
    G = torch.randn(shape, dtype=dtype, generator=rng)
    (g,) = torch.autograd.grad(polar(X), X, G)
    r = min(shape[-2:])
    expected = G.clone()
    square = G[..., :r, :r]
    expected[..., :r, :r] = (square - square.mH) / 2
    assert_close(g, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fixed_points_and_scale(dtype, rng):
    """polar(Q) = Q; polar(c X) = polar(X) for c > 0; polar(U X) = U polar(X)."""
    Q = random_unitary(6, k=4, dtype=dtype, rng=rng, batch=(2,))
    # 2.6: twice the worst over 100 seeds, 1.3 (float64, U X)
    tol = 2.6 * 6 * eps(dtype)
    assert (matrix_norm(polar(Q) - Q) <= tol).all()
    for scale in (1e-20, 1e20):
        assert (matrix_norm(polar(scale * Q) - Q) <= tol).all()
    U = random_unitary(6, dtype=dtype, rng=rng)
    assert (matrix_norm(polar(U @ Q) - U @ Q) <= tol).all()


def test_nearest(rng):
    """No other orthogonal matrix is closer than the polar factor."""
    X = torch.randn(5, 5, dtype=torch.float64, generator=rng)
    others = random_unitary(5, dtype=torch.float64, rng=rng, batch=(500,))
    assert (matrix_norm(X - polar(X)) <= matrix_norm(X - others)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_rank_deficient_matrices_have_an_orthogonal_value(rank, dtype, rng):
    s = torch.cat([torch.ones(rank), torch.zeros(4 - rank)]).double()
    X, _ = conditioned(6, 4, s, dtype=dtype, rng=rng)
    Q = polar(X).to(double_dtype(dtype))
    # 4.4: twice the worst over 100 seeds, 2.2 (float32, rank 1)
    assert matrix_norm(Q.mH @ Q - torch.eye(4)) <= 4.4 * 6 * eps(dtype)


def test_gradient_at_zero_is_not_finite():
    """`polar` has no gradient at zero; autograd returns nothing finite."""
    X = torch.zeros(3, 3, requires_grad=True)
    (g,) = torch.autograd.grad(polar(X).sum(), X)
    assert not g.isfinite().any()


@pytest.mark.once
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("equal", [False, True])
def test_gradients_of_any_order(equal, shape, rng):
    """Derivatives are right at equal singular values too, where svd has NaN."""
    for dtype in (torch.float64, torch.complex128):
        X = torch.randn(shape, dtype=dtype, generator=rng)
        X = (torch.eye(*shape, dtype=dtype) if equal else X).requires_grad_()
        how = gradcheck_options(dtype)
        first = {"check_forward_ad": True, "check_batched_grad": True}
        assert gradcheck(polar, X, **first, **how)
        assert gradgradcheck(polar, X, check_fwd_over_rev=True, **how)
