"""The nearest rotation or unitary matrix, determinants, and normal parts.

A matrix that contains NaN does not affect the results for the other matrices of its
batch.
"""

import math

import torch
from torch import Tensor

from isometry._nan import is_finite
from isometry._orthonormal import identity
from isometry._torch import refuse_nested_forward_mode
from isometry.linalg import polar
from isometry.linalg._implicit import traceable
from isometry.linalg._polar import PolarFactor


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
    finite_X = torch.where(finite, X, identity(X))
    Q = polar(finite_X) if X.is_complex() else _nearest_rotation(finite_X)[0]
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


def normal_part(Q: Tensor, X: Tensor) -> Tensor:
    r"""$Q \operatorname{sym}(Q^H X)$, the part of `X` normal to the manifold at `Q`.

    The manifold is the set of matrices with orthonormal columns, and sym denotes the
    Hermitian part.
    """
    S = Q.mH @ X
    return Q @ ((S + S.mH) / 2)
