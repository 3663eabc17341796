"""The nearest rotation or unitary matrix, determinants, norms, and normal parts.

A matrix that contains NaN does not affect the results for the other matrices of its
batch.
"""

import math

import torch
from torch import Tensor

from isometry._checks import is_finite
from isometry._orthonormal import identity
from isometry._torch import refuse_nested_forward_mode
from isometry.groups._basis import gaussian
from isometry.linalg import polar
from isometry.linalg._implicit import traceable
from isometry.linalg._polar import PolarFactor

# dimension of the Krylov space in `krylov_norm`
_KRYLOV = 12


def nearest_rotation(X: Tensor) -> Tensor:
    r"""The rotation, or for complex `X` the unitary matrix, nearest to `X`.

    With the singular value decomposition $X = USV^H$, the result is
    $U \operatorname{diag}(1, \ldots, 1, d) V^H$. For complex `X`, $d = 1$. For real
    `X`, $d$ is the sign that makes the determinant 1: where the polar factor is a
    reflection, the singular vector of the smallest singular value is reversed. A matrix
    that is not finite gives NaN. The derivative is correct even where singular values
    are equal, as they are for a rotation. It is infinite or NaN only where `X` is
    singular, or where the nearest matrix is not unique.
    """
    refuse_nested_forward_mode("nearest")
    finite = is_finite(X)
    # LAPACK raises for the whole batch if one matrix contains NaN, so replace such a
    # matrix with the identity
    safe = torch.where(finite, X, identity(X))
    Q = polar(safe) if X.is_complex() else _nearest_rotation(safe)[0]
    return torch.where(finite, Q, math.nan)


def determinant(Q: Tensor) -> Tensor:
    """The determinant of a unitary matrix, computed without overflow or underflow.

    `torch.linalg.det` multiplies the pivots. The first pivots of a large orthogonal
    matrix are small, so in float32 their product underflows, for example at n = 512.
    """
    sign, logarithm = torch.linalg.slogdet(Q)
    return sign * logarithm.exp()


def turn_last_column(Q: Tensor) -> Tensor:
    """`Q` with its last column multiplied by the phase that makes the determinant 1."""
    phase = determinant(Q).sgn().conj()[..., None, None]
    return torch.cat([Q[..., :-1], Q[..., -1:] * phase], -1)


def _rotation_and_rest(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rotation Q in X = Q H, and the eigenvalues and eigenvectors of H.

    H is symmetric. Its last eigenvalue may have either sign.
    """
    U, s, Vh = torch.linalg.svd(X)
    sign = (determinant(U) * determinant(Vh)).sgn()[..., None]
    # singular values are in descending order, so the last one is the smallest
    U = torch.cat([U[..., :-1], U[..., -1:] * sign[..., None]], -1)
    s = torch.cat([s[..., :-1], s[..., -1:] * sign], -1)
    return U @ Vh, s, Vh.mH.contiguous()


class _NearestRotation(PolarFactor):
    """The nearest rotation Q, whose derivative follows from X = Q H, as in `polar`."""

    forward = staticmethod(_rotation_and_rest)


_nearest_rotation = traceable(_NearestRotation)


def spectral_norm(X: Tensor) -> Tensor:
    """Largest singular value; NaN for a matrix that is not finite."""
    # torch 2.7 refuses a matrix without entries
    if 0 in X.shape[-2:]:
        return X.real.new_zeros(X.shape[:-2])
    finite = is_finite(X)
    norm = torch.linalg.matrix_norm(torch.where(finite, X, 0), 2)
    return torch.where(finite[..., 0, 0], norm, math.nan)


def krylov_norm(A: Tensor) -> Tensor:
    r"""$\lVert V^H A V \rVert_2$, with $V$ a basis of a Krylov space of skew $A$.

    This number is at most the norm of $A$, up to rounding, and usually close to it. It
    is NaN for a matrix that is not finite. It costs only matrix-vector products. The
    first vector of the Krylov space depends only on the size and dtype of $A$.
    """
    n = A.shape[-1]
    v = gaussian(n, 1, dtype=A.dtype, seed=0).to(A.device)
    v = (v / torch.linalg.vector_norm(v)).expand(*A.shape[:-1], 1)
    V = v
    for _ in range(min(_KRYLOV, n) - 1):
        v = A @ v
        # Orthogonalize twice. If A has low rank, the first pass may leave only rounding
        # errors, which are not orthogonal to V.
        for _ in range(2):
            v = v - V @ (V.mH @ v)
        size = torch.linalg.vector_norm(v, dim=-2, keepdim=True)
        v = v / torch.where(size == 0, 1, size)
        V = torch.cat([V, v], -1)
    return spectral_norm(V.mH @ (A @ V))


def normal_part(Q: Tensor, X: Tensor) -> Tensor:
    r"""$Q \operatorname{sym}(Q^H X)$, the part of `X` that is normal at `Q`."""
    S = Q.mH @ X
    return Q @ ((S + S.mH) / 2)
