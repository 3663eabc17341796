import math

import pytest
import torch
from torch.testing import assert_close

from isometry._checks import check_skew
from isometry.linalg._skew import skew
from tests.helpers import DTYPES, eps, random_skew

HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", [*DTYPES, *HALF], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 3)], ids=str)
def test_entries(shape, dtype, rng):
    """Entries are X below the diagonal, minus conjugates above, and i Re X on it."""
    X = torch.randn(shape, generator=rng).to(dtype)
    if dtype.is_complex:
        X = X + 1j * torch.randn(shape, generator=rng).to(dtype)
    A = skew(X)
    n = shape[-1]
    assert A.dtype == dtype
    assert_close(A.tril(-1), X.tril(-1), rtol=0, atol=0)
    assert_close(A, -A.mH, rtol=0, atol=0)
    for j in range(n):
        diagonal = 1j * X[..., j, j].real if dtype.is_complex else 0 * X[..., j, j]
        assert_close(A[..., j, j], diagonal, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_the_lower_triangle_is_read(dtype, rng):
    """NaN above the diagonal has no effect, and the gradient there is zero."""
    X = torch.randn(4, 4, dtype=dtype, generator=rng)
    poisoned = torch.where(torch.ones(4, 4).triu(1) > 0, math.nan, X)
    assert_close(skew(poisoned), skew(X), rtol=0, atol=0)
    X.requires_grad_()
    G = torch.randn(4, 4, dtype=dtype, generator=rng)
    (g,) = torch.autograd.grad(skew(X), X, G)
    assert_close(g.triu(1), torch.zeros_like(g), rtol=0, atol=0)
    # the adjoint of X -> L - L^H
    assert_close(g.tril(-1), (G - G.mH).tril(-1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_onto(dtype, rng):
    """Every skew A is skew(X), with -i times the diagonal of A on the diagonal of X."""
    A = random_skew(5, norm=2.0, dtype=dtype, rng=rng)
    X = A.tril(-1)
    if dtype.is_complex:
        X = X + torch.diag(-1j * A.diagonal())
    assert_close(skew(X), A, rtol=0, atol=0)


def test_it_is_linear(rng):
    X, Y = torch.randn(2, 4, 4, dtype=torch.complex128, generator=rng)
    assert_close(skew(2 * X - 3 * Y), 2 * skew(X) - 3 * skew(Y))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_check_accepts_what_is_skew(dtype, rng):
    check_skew(random_skew(6, norm=1e6, dtype=dtype, rng=rng, batch=(2,)))
    check_skew(torch.zeros(2, 3, 3, dtype=dtype))
    check_skew(torch.zeros(0, 3, 3, dtype=dtype))
    check_skew(torch.zeros(2, 0, 0, dtype=dtype))


@pytest.mark.errors
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_check_names_the_defect(dtype, rng):
    """The error has the defect of the bad matrix in a batch, and its bound."""
    A = random_skew(4, norm=1.0, dtype=dtype, rng=rng, batch=(3,))
    A[1, 0, 1] += 100 * eps(dtype)
    message = r"`W` must be skew \(A\^H = -A\); got .* = \d.*, above \d.* for torch"
    with pytest.raises(ValueError, match=message):
        check_skew(A, name="W")
    A[1, 0, 1] = math.nan
    with pytest.raises(ValueError, match=r"got .* = nan, above nan"):
        check_skew(A)
