"""A polynomial of one matrix: one call to C.

For small matrices calls would be most of the work. For large ones C goes through memory
less often than torch's operations do: 8 percent of a layer's step at n = 1024.
"""

from functools import lru_cache

import torch
from torch import Tensor

from isometry._backend.library import Kernels, PolynomialTable, fits, kernels
from isometry._backend.memory import recycled, scratch
from isometry.linalg._expm.scheme import Scheme, stages_of


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
    # the largest s2 of angles that are tiny
    least = tiny**4
    s2, s3, s4 = native.powers(A, W, tiny=least, triangle=triangle)
    return W, None if s2 <= least else (s2, s3, s4)


def evaluate_one(native: Kernels, scheme: Scheme, W: Tensor, squarings: int) -> Tensor:
    """`_polynomial.evaluate`."""
    Q = W.new_empty(W.shape[1:])
    # L and R
    table = _table(scheme, squarings, W.dtype)
    with scratch(Q, 2) as room:
        native.evaluate(W, Q, room, table)
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
    X = torch.empty_like(H)
    # L, R, the gradient of L, and those of the slots
    table = _table(scheme, squarings, W.dtype)
    with scratch(X, 3 + scheme.products) as room:
        native.pull_back(W, H, X, room, table, triangle=triangle)
    return X


def multiply(
    native: Kernels, X: Tensor, Y: Tensor, *, transposed: bool = False
) -> Tensor:
    """X Y, or X^T Y, of single matrices."""
    C = torch.empty_like(Y)
    native.multiply(X, Y, C, transposed=transposed)
    return C


@lru_cache(maxsize=256)
def _table(scheme: Scheme, squarings: int, dtype: torch.dtype) -> PolynomialTable:
    stages = stages_of(scheme, squarings, dtype, torch.device("cpu"))
    numbers: list[float] = []
    for stage in stages:
        L, R = stage.factors.expand(2, -1).tolist()
        numbers += [stage.identity, *L, *R, *stage.final.flatten().tolist()]
    # the multiple of I in the result, as `evaluate` says
    numbers.append(float(squarings == 0))
    squares = sum(stage.is_square << s for s, stage in enumerate(stages))
    return PolynomialTable(
        numbers, dtype, powers=scheme.powers, stages=len(stages), squares=squares
    )
