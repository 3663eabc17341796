"""The closest orthogonal or unitary matrix, and norms, where NaN stays alone."""

import math

import torch
from torch import Tensor


def nearest_rotation(X: Tensor) -> Tensor:
    r"""$U \operatorname{diag}(1, \ldots, 1, d) V^H$ of the decomposition $USV^H$.

    $d = 1$, but the sign that makes the determinant 1 if `X` is real: then the
    singular vector of the smallest singular value is turned round where the polar
    factor is a reflection. NaN for a matrix that is not finite.
    """
    finite = is_finite(X)
    eye = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    # LAPACK refuses NaN, with an exception for the whole batch
    U, _, Vh = torch.linalg.svd(torch.where(finite, X, eye))
    if not X.is_complex():
        # singular values descend: the last column is that of the smallest
        sign = (torch.linalg.det(U) * torch.linalg.det(Vh)).sgn()
        U = torch.cat([U[..., :-1], U[..., -1:] * sign[..., None, None]], -1)
    return torch.where(finite, U @ Vh, math.nan)


def spectral_norm(X: Tensor) -> Tensor:
    """Largest singular value; NaN for a matrix that is not finite."""
    finite = is_finite(X)
    norm = torch.linalg.matrix_norm(torch.where(finite, X, 0), 2)
    return torch.where(finite[..., 0, 0], norm, math.nan)


def is_finite(X: Tensor) -> Tensor:
    """Whether all entries are, for each matrix, as `(*batch, 1, 1)`."""
    return X.isfinite().all(-1).all(-1)[..., None, None]


def unitarity_defect(Q: Tensor) -> Tensor:
    r"""$\lVert Q^H Q - I \rVert_F$."""
    eye = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    return torch.linalg.matrix_norm(Q.mH @ Q - eye)


def newton_schulz(Q: Tensor) -> Tensor:
    r"""$Q (3I - Q^H Q) / 2$, which squares the distance to orthonormal columns."""
    eye = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    return Q + Q @ ((eye - Q.mH @ Q) / 2)
