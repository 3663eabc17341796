"""Cayley and Pade retractions of the Stiefel manifold, in n x k and 2k x 2k."""

import torch
from torch import Tensor

from isometry._typing import Matrix
from isometry.linalg._pade import check_degree
from isometry.linalg._pade_factors import pade_factors
from isometry.linalg._precision import nan_unless_finite
from isometry.linalg._tall import tall_map


def rational_tall(X: Matrix, B: Matrix | None = None, *, degree: int) -> Matrix:
    r"""Point reached from `B` with initial velocity `X`, by a Pade approximant.

    The matrices with orthonormal columns, $B^H B = I$. With the skew matrix $A$ of
    `expm_tall` and $r_m$ of `pade` in the place of the exponential,

    $$ Y = r_m(A) B = \prod_j (I - u_j A + w_j A^2)^{-1} (I + u_j A + w_j A^2)\, B. $$

    Every factor is unitary; degree 1 is the Cayley map, one factor with $u = 1/2$,
    $w = 0$. If $n > 2k$, $A$ is not formed: with $X_\perp$, $\Omega$ and $S$ of
    `expm_tall`,

    $$ Y = B C + X_\perp D, \qquad
       \begin{pmatrix} C \\ D \end{pmatrix} = r_m \begin{pmatrix} \Omega & -S \\ I & 0
       \end{pmatrix} \begin{pmatrix} I \\ 0 \end{pmatrix}. $$

    It agrees with the geodesic to order $2m$. Any `X` is a coordinate, as for
    `expm_tall`: the normal part drops out, and $X = 0$ is a point as any other.
    Digits are lost as there, in proportion to $\lVert X \rVert$ or, if $X_\perp$ is
    nearly singular, to its square; `X` with none left or not finite gives NaN for that
    matrix only. The same last step removes the rounding error of the orthogonality: up
    to norm 100, $\lVert Y^H Y - I \rVert_F \le 2 k \varepsilon$ for all degrees was
    measured, and $7 k \varepsilon$ for singular $X_\perp$ in single precision.

    Cost: seven products of $n k^2$ and, for each of the $\lceil m/2 \rceil$ factors,
    one inverse and one product of $(2k)^3$. It reads nothing from the device. If
    $n \le 2k$, the same with $n$ for $2k$.

    Args:
        X: velocity, or free coordinates; any tall or square matrix. float16 and
            bfloat16 are computed in float32.
        B: base point, with orthonormal columns; this is not checked. None stands for
            the first `k` columns of the identity, and saves four products.
        degree: $m$.

    Returns:
        A matrix with orthonormal columns, in the dtype of `X`.

    Raises:
        TypeError: if `X` has an integer dtype.
        ValueError: if `X` is wide, `B` differs from it in shape, dtype or device, or
            `degree` is not positive.

    References:
        [EAS98] for $A$; [LM19] section 4.2 for the square case.
    """
    check_degree(degree)

    def columns(M: Tensor, count: int) -> Tensor:
        return _columns(M, count, degree)

    return tall_map(X, B, of_skew=columns, of_block=columns)


def _columns(M: Tensor, count: int, degree: int) -> Tensor:
    """The first columns of r_m(M), factor by factor.

    One quotient of polynomials would have terms of all sizes up to that of M^m, and at
    norm 100 no digit left from degree 5 on in float32.
    """
    eye = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    M2 = M @ M if degree > 1 else torch.zeros_like(M)
    R = eye[..., :count]
    for u, w in pade_factors(degree):
        # an inverse and not a solve, whose nested derivatives torch 2.13 gets wrong
        inverse = torch.linalg.inv_ex(eye + w * M2 - u * M).inverse
        R = R + inverse @ (M @ (2 * u * R))
    # the inverse of an infinite square is 0, and R would be finite
    return R + nan_unless_finite(M2)
