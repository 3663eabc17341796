"""Linear algebra in a Lie algebra that is known only through the method `algebra`."""

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from isometry.groups._group import AbstractGroup
    from isometry.groups._manifold import AbstractManifold


@functools.lru_cache(maxsize=64)
def basis(group: "AbstractGroup") -> tuple[Tensor, Tensor]:
    """Orthonormal rows that span the algebra, and the pseudoinverse of `algebra`.

    Both are for arrays flattened by `flat`, and in double precision. They are cached
    for the 64 groups used last.
    """
    # Later callers get the cached basis too, and their default device or autograd mode
    # may differ. So the basis must not depend on either.
    with torch.device("cpu"), torch.inference_mode(mode=False), torch.no_grad():
        A = group.algebra(ambient_basis(group))
        _check_skew(group, A)
        rows = flat(A, group)
        _, s, Vh = torch.linalg.svd(rows, full_matrices=False)
        rank = int((s > 1e-10 * s.max()).sum()) if A.numel() else 0
        return Vh[:rank], torch.linalg.pinv(rows, rtol=1e-10).mT


def _check_skew(group: "AbstractGroup", A: Tensor) -> None:
    """Raise unless the matrices `A` in the algebra of the group are skew."""
    defect = float((A + A.mH).abs().max()) if A.numel() else 0.0
    # The condition is written so that NaN fails. For the groups in tests/groups, the
    # defect is at most 2e-16.
    if not defect <= 1e-12:
        raise ValueError(
            f"`algebra` of {group} must be skew, A^H = -A; got an entry {defect:.1e} "
            f"in A + A^H. Only compact groups can be used; SE(3), say, is not compact."
        )


def ambient_basis(manifold: "AbstractManifold") -> Tensor:
    """Real basis of the arrays with the shape of a point, stacked along axis 0."""
    reals = math.prod(manifold.shape) * (1 + manifold.is_complex)
    return arrays(torch.eye(reals, dtype=torch.float64), manifold)


def flat(X: Tensor, manifold: "AbstractManifold") -> Tensor:
    """The arrays in `X`, each flattened to a row of real numbers."""
    X = torch.view_as_real(X.resolve_conj()) if X.is_complex() else X[..., None]
    return X.flatten(-1 - len(manifold.shape))


def arrays(rows: Tensor, manifold: "AbstractManifold") -> Tensor:
    """The arrays whose flattened forms are `rows`: the inverse of `flat`."""
    parts = rows.contiguous().unflatten(-1, (*manifold.shape, 1 + manifold.is_complex))
    return torch.view_as_complex(parts) if manifold.is_complex else parts[..., 0]


def gaussian(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Standard normal numbers on the CPU, whatever the default device is."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=rng, device="cpu")


def apply(matrix: Tensor, X: Tensor, manifold: "AbstractManifold") -> Tensor:
    """Apply a real linear map to `X`, given its `matrix` for flattened arrays."""
    rows = flat(X, manifold)
    return arrays(rows @ matrix.mT.to(rows), manifold)
