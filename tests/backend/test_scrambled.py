"""The BLAS for `--blas=scrambled` is right, and its order of summation varies."""

import ctypes

import pytest
import torch
from torch import Tensor

from tests.backend.scrambled import library
from tests.helpers import eps

NAMES = {torch.float32: "sgemm_", torch.float64: "dgemm_"}


def times(
    X: Tensor, Y: Tensor, *, beta: float = 0.0, C: Tensor | None = None
) -> Tensor:
    """X Y + beta C for row-major matrices.

    A BLAS is column-major, so it gets Y^T and X^T.
    """
    C = X.new_full((len(X), Y.shape[1]), torch.nan) if C is None else C.clone()
    number = ctypes.c_float if X.dtype == torch.float32 else ctypes.c_double
    ops = [b"N" if M.is_contiguous() else b"T" for M in (Y, X)]
    sizes = [ctypes.c_long(s) for s in (Y.shape[1], len(X), len(Y))]
    strides = [ctypes.c_long(max(M.stride())) for M in (Y, X, C)]
    one, scale = number(1), number(beta)
    pointers = [ctypes.c_void_p(M.data_ptr()) for M in (Y, X, C)]
    getattr(library(), NAMES[X.dtype])(
        *(*ops, *map(ctypes.byref, (*sizes, one)), pointers[0]),
        *(ctypes.byref(strides[0]), pointers[1], ctypes.byref(strides[1])),
        *(ctypes.byref(scale), pointers[2], ctypes.byref(strides[2])),
    )
    return C


@pytest.mark.parametrize("dtype", NAMES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 7), (40, 33, 50), (17, 64, 0)])
def test_it_multiplies(shape, dtype, rng):
    """Products are right for all four combinations of transposes, with any beta."""
    m, n, k = shape
    X = torch.randn(m, k, dtype=dtype, generator=rng)
    Y = torch.randn(k, n, dtype=dtype, generator=rng)
    C = torch.randn(m, n, dtype=dtype, generator=rng)
    # the bound for the worst order of summation
    bound = (k + 2) * eps(dtype) * (X.abs() @ Y.abs() + C.abs())
    for left in (X, X.mT.contiguous().mT):
        for right in (Y, Y.mT.contiguous().mT):
            assert ((times(left, right) - X @ Y).abs() <= bound).all()
            sums = times(left, right, beta=0.5, C=C)
            assert ((sums - (X @ Y + 0.5 * C)).abs() <= bound).all()


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_no_order_can_be_relied_on(dtype, rng):
    """The last bits of S S are not symmetric for symmetric S, and depend on rows."""
    X = torch.randn(64, 64, dtype=dtype, generator=rng)
    S = X + X.mT
    square = times(S, S)
    assert not torch.equal(square, square.mT)
    assert not torch.equal(times(S[:32], S), square[:32])
    # equal calls still give equal bits
    assert torch.equal(times(S, S), square)
