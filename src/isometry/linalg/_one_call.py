"""A polynomial of one matrix: one call to C.

For small matrices calls would be most of the work. For large ones C goes through memory
less often than torch's operations do: 8 percent of a layer's step at n = 1024.
"""

import ctypes
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from isometry._native import Kernels, fits, kernels
from isometry.linalg._scheme import Scheme, stages_of
from isometry.linalg._scratch import recycled, scratch


def in_one_call(*tensors: Tensor) -> Kernels | None:
    """The kernels in C, if these are of a single matrix that they can read."""
    X = tensors[-1]
    return kernels(X.dtype) if len(X) == 1 and fits(*tensors) else None


def powers_of_one(
    native: Kernels, A: Tensor, slots: int, *, tiny: float, triangle: bool = False
) -> tuple[Tensor, tuple[float, float, float] | None]:
    """A, A^2 and, unless all angles are tiny, A^4 in slots; and the power sums then.

    With `triangle`, A is the skew matrix that `skew` makes of what is given.
    """
    W = recycled((slots, *A.shape), A)
    # s2, s3, s4, and the largest s2 of angles that are tiny
    numbers = (ctypes.c_double * 4)(0, 0, 0, tiny**4)
    sums = ctypes.addressof(numbers)
    native.powers(
        *(native.product, A.data_ptr(), W.data_ptr()),
        *(sums, sums + 3 * ctypes.sizeof(ctypes.c_double), triangle, A.shape[-1]),
    )
    s2, s3, s4, least = numbers
    return W, None if s2 <= least else (s2, s3, s4)


def evaluate_one(native: Kernels, scheme: Scheme, W: Tensor, squarings: int) -> Tensor:
    """`_polynomial.evaluate`."""
    table, *counts = _numbers(scheme, squarings, W.dtype)
    Q = W.new_empty(W.shape[1:])
    # L and R
    with scratch(Q, 2) as room:
        pointers = (X.data_ptr() for X in (W, Q, room, table))
        native.evaluate(native.product, *pointers, *counts, W.shape[-1])
    return Q


def pull_back_one(
    native: Kernels,
    scheme: Scheme,
    W: Tensor,
    squarings: int,
    H: Tensor,
    *,
    triangle: bool = False,
) -> Tensor:
    """`_polynomial.pull_back` of the transpose; with `triangle` through `skew`, too."""
    table, *counts = _numbers(scheme, squarings, W.dtype)
    X = torch.empty_like(H)
    # L, R, the gradient of L, and those of the slots
    with scratch(X, 3 + scheme.products) as room:
        pointers = (Y.data_ptr() for Y in (W, H, X, room, table))
        native.pull_back(native.product, *pointers, *counts, triangle, W.shape[-1])
    return X


def multiply(
    native: Kernels, X: Tensor, Y: Tensor, *, transposed: bool = False
) -> Tensor:
    """X Y, or X^T Y, of single matrices."""
    C, n = torch.empty_like(Y), Y.shape[-1]
    native.multiply(
        *(native.product, X.data_ptr(), transposed, Y.data_ptr(), C.data_ptr(), n)
    )
    return C


class _Numbers(NamedTuple):
    """A scheme as C reads it; see polynomial.h."""

    table: Tensor
    powers: int
    stages: int
    squares: int


@lru_cache(maxsize=256)
def _numbers(scheme: Scheme, squarings: int, dtype: torch.dtype) -> _Numbers:
    stages = stages_of(scheme, squarings, dtype, torch.device("cpu"))
    # what C takes for granted: sums of at most four terms (MOST), and a last product
    # that is none of a matrix with itself
    assert scheme.products <= 4
    assert not stages[-1].is_square
    numbers: list[float] = []
    for stage in stages:
        L, R = stage.factors.expand(2, -1).tolist()
        numbers += [stage.identity, *L, *R, *stage.final.flatten().tolist()]
    mask = sum(stage.is_square << s for s, stage in enumerate(stages))
    table = torch.tensor(numbers, dtype=dtype, device="cpu")
    return _Numbers(table, scheme.powers, len(stages), mask)
