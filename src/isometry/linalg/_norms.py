"""Norms of batches of matrices, and bounds on norms and on moduli of eigenvalues."""

import math

import torch
from torch import Tensor

from isometry._nan import is_finite

# dimension of the Krylov space in `krylov_norm`
_KRYLOV = 12


def spectral_norm(X: Tensor) -> Tensor:
    """Largest singular value; NaN for a matrix that is not finite."""
    # torch 2.7 refuses a matrix without entries
    if 0 in X.shape[-2:]:
        return X.real.new_zeros(X.shape[:-2])
    finite = is_finite(X)
    norm = torch.linalg.matrix_norm(torch.where(finite, X, 0), 2)
    return torch.where(finite[..., 0, 0], norm, math.nan)


def krylov_norm(A: Tensor, start: Tensor) -> Tensor:
    r"""An estimate of the spectral norm of a skew $A$ by matrix-vector products.

    The estimate is $\lVert V^H A V \rVert_2$, where the columns of $V$ are an
    orthonormal basis of a Krylov space. It is at most the norm of $A$, up to rounding,
    and usually close to it. For a matrix that is not finite, it is NaN.

    Args:
        A: skew, `(*batch, n, n)`.
        start: the first vector of all Krylov spaces, `(n, 1)`.
    """
    n = A.shape[-1]
    v = (start / torch.linalg.vector_norm(start)).expand(*A.shape[:-1], 1)
    V = v
    for _ in range(min(_KRYLOV, n) - 1):
        v = A @ v
        # Orthogonalize twice. If the Krylov space is exhausted, as for an A of low
        # rank, the first pass leaves only rounding errors. The second pass then
        # shortens the vector by more than half. In that case, append zeros to V.
        once = v - V @ (V.mH @ v)
        v = once - V @ (V.mH @ once)
        first, size = (
            torch.linalg.vector_norm(w, dim=-2, keepdim=True) for w in (once, v)
        )
        v = torch.where(size > first / 2, v / size, 0)
        V = torch.cat([V, v], -1)
    return spectral_norm(V.mH @ (A @ V))


def one_norm(A: Tensor) -> Tensor:
    """The 1-norm of each matrix, an upper bound on the moduli of its eigenvalues.

    Returns:
        Shape `(*batch, 1, 1)`, without a gradient.
    """
    if A.shape[-1] == 0:
        return A.real.new_zeros(*A.shape[:-2], 1, 1)
    return A.detach().abs().sum(dim=-2, keepdim=True).amax(dim=-1, keepdim=True)


def gram_bound(S: Tensor) -> Tensor:
    r"""An upper bound on $\lVert X \rVert_2$, given $S = X^H X$; at least eps.

    Returns:
        Shape `(*batch, 1, 1)`.
    """
    info = torch.finfo(S.dtype)
    norm = torch.linalg.matrix_norm(S, keepdim=True).clamp(min=info.tiny)
    # sqrt(|S^2|_F) is closer to the spectral norm of S than |S|_F is: for a k x k
    # matrix S, the result is at most k^(1/8) times |X|_2.
    norm = norm * torch.linalg.matrix_norm((S / norm) @ (S / norm), keepdim=True).sqrt()
    return norm.sqrt().clamp(min=info.eps)
