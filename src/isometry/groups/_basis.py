"""Linear algebra of a Lie algebra that is known only by its function `algebra`."""

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from isometry.groups._group import AbstractGroup


@functools.lru_cache(maxsize=64)
def basis(group: "AbstractGroup") -> tuple[Tensor, Tensor]:
    """Orthonormal rows that span the algebra, and the pseudoinverse of `algebra`.

    Matrices are flattened to rows of real numbers in double precision. The basis is
    computed once for each group.
    """
    n = group.size
    reals = n * n * (2 if group.is_complex else 1)
    # The cache outlives the caller's default device and autograd mode. So the basis
    # must not depend on them.
    with torch.device("cpu"), torch.inference_mode(mode=False), torch.no_grad():
        units = torch.eye(reals, dtype=torch.float64)
        A = group.algebra(matrices(units, n, group.is_complex))
        _check_skew(group, A)
        rows = flat(A)
        _, s, Vh = torch.linalg.svd(rows, full_matrices=False)
        rank = int((s > 1e-10 * s.max()).sum()) if reals else 0
        return Vh[:rank], torch.linalg.pinv(rows, rtol=1e-10).mT


def _check_skew(group: "AbstractGroup", A: Tensor) -> None:
    """Raise unless the group is compact, that is, its algebra is skew."""
    defect = float((A + A.mH).abs().max()) if A.numel() else 0.0
    # written so that NaN fails; in tests/groups the defect is at most 2e-16
    if not defect <= 1e-12:
        raise ValueError(
            f"`algebra` of {group} must be skew, A^H = -A; got an entry {defect:.1e} "
            f"of A + A^H. Only compact groups can be used; SE(3), say, is not compact."
        )


def flat(X: Tensor) -> Tensor:
    """Matrices as rows of real numbers."""
    X = torch.view_as_real(X.resolve_conj()) if X.is_complex() else X[..., None]
    return X.flatten(-3)


def matrices(rows: Tensor, n: int, is_complex: bool) -> Tensor:
    """The inverse of `flat`."""
    parts = rows.contiguous().reshape(*rows.shape[:-1], n, n, 2 if is_complex else 1)
    return torch.view_as_complex(parts) if is_complex else parts[..., 0]


def apply(matrix: Tensor, X: Tensor) -> Tensor:
    """Apply a real linear map to `X`; its `matrix` acts on flattened matrices."""
    rows = flat(X)
    return matrices(rows @ matrix.mT.to(rows), X.shape[-1], X.is_complex())
