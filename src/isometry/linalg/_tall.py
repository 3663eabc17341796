"""Exponential map of the Stiefel manifold, computed with small matrices if n > 2k."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isometry._checks import check_same_shape, check_tall
from isometry._dtypes import PRECISIONS, in_float32_or_wider
from isometry._nan import nan_unless
from isometry._orthonormal import defect, identity
from isometry._torch import autocast_off
from isometry._typing import Matrix
from isometry.linalg._expm_skew import expm_skew
from isometry.linalg._norms import gram_bound, one_norm
from isometry.linalg._squaring import scaled_and_squared

# `_expm` halves a matrix until the bound on its spectral radius is at most this number.
# Up to this number, the Taylor polynomial is accurate. The degree of the polynomial is
# four times `taylor_blocks` in `isometry._dtypes`.
_THETA = 1.3

# the type of (M, c) -> the first c columns of f(M), for a function f of square matrices
FirstColumns = Callable[[Tensor, int], Tensor]


def expm_tall(X: Matrix, B: Matrix | None = None) -> Matrix:
    r"""Point reached from `B` along the Stiefel geodesic with initial velocity `X`.

    The Stiefel manifold is the set of $n \times k$ matrices with orthonormal columns,
    $B^H B = I$, here with the canonical metric. With $\Omega$ the skew part of $B^H X$
    and $X_\perp = X - B B^H X$,

    $$ Y = \exp(A) B, \qquad
       A = X_\perp B^H - B X_\perp^H + B \Omega B^H. $$

    If $n > 2k$, $A$ is not formed. It maps the span of $B$ and $X_\perp$ into itself,
    so with $S = X_\perp^H X_\perp$,

    $$ Y = B C + X_\perp D, \qquad
       \begin{pmatrix} C \\ D \end{pmatrix} = \exp \begin{pmatrix} \Omega & -S \\ I & 0
       \end{pmatrix} \begin{pmatrix} I \\ 0 \end{pmatrix}. $$

    Any `X` is allowed: the part $B \operatorname{sym}(B^H X)$ that is normal to the
    manifold drops out, and its gradient is zero. No step divides by the singular values
    of $X_\perp$, so $X = 0$ is not a special case: at 0, $dY = dX$ for tangent $dX$.
    The error grows in proportion to $\lVert X \rVert$, or to its square if $n > 2k$
    and the singular values of $X_\perp$ have very different sizes. The result for a
    matrix is NaN if the matrix is not finite or no digit would be correct: that is, if
    $\lVert X \rVert$ is above about $1/\varepsilon$, or if the computed $Y$ has a
    defect $\lVert Y^H Y - I \rVert_F$ of $1/2$ or more. The other matrices of the batch
    are not affected. The last step, $Y (3I - Y^H Y)/2$, makes $Y$ orthonormal up to
    rounding. Autograd treats the correction by this step as a constant, so the
    derivatives are the derivatives of $\exp(A) B$.

    Cost: seven products of $n k^2$ and about eight of $(2k)^3$; together with the
    backward pass, 14 and about 24. The number of squarings is read from the device. If
    $n \le 2k$, the cost is `expm_skew` and seven products.

    Args:
        X: velocity, or free coordinates; any tall or square matrix. float16 and
            bfloat16 are computed in float32.
        B: base point, with orthonormal columns; this is not checked. None means the
            first `k` columns of the identity, and saves three of the seven products, or
            five if $n \le 2k$.

    Returns:
        A matrix with orthonormal columns, in the dtype of `X`.

    Raises:
        TypeError: if `X` has an integer dtype.
        ValueError: if `X` is wide, or `B` differs from `X` in shape, dtype or device.

    References:
        [EAS98] corollary 2.2, which uses a QR factorization of $X_\perp$ instead of
        $S$.
    """
    return tall_map(
        X,
        B,
        of_skew=lambda A, count: expm_skew(A)[..., :count],
        of_block=lambda M, count: _expm(M)[..., :count],
    )


def tall_map(
    X: Matrix,
    B: Matrix | None,
    *,
    of_skew: FirstColumns,
    of_block: FirstColumns | None = None,
) -> Matrix:
    r"""The point $f(A) B$, with the $A$ of `expm_tall` and a function $f$ of matrices.

    $f$ must map skew matrices to unitary ones. It is passed as two functions that
    return the first columns of $f$ of a matrix. If $n \le 2k$, `of_skew` is called with
    $A$ itself. If $n > 2k$, `of_block` is called with a matrix similar to the
    $2k \times 2k$ matrix of `expm_tall`, which has imaginary eigenvalues but is not
    normal. Without `of_block`, $A$ is formed for every $n$. Arguments, result, errors
    and the last step are as in `expm_tall`.
    """
    check_tall(X, name="X")
    if B is not None:
        check_same_shape(X, B, names=("X", "B"))
    if X.numel() == 0:
        return X.clone()
    base = None if B is None else in_float32_or_wider(B)
    n, k = X.shape[-2:]
    with autocast_off(X.device):
        Omega, X_perp = _along_and_across(in_float32_or_wider(X), base)
        if n > 2 * k and of_block is not None:
            Y = _in_the_span(Omega, X_perp, base, of_block)
        else:
            Y = _in_the_group(Omega, X_perp, base, of_skew)
        return (Y + _rounding(Y.detach())).to(X.dtype)


def _along_and_across(X: Tensor, B: Tensor | None) -> tuple[Tensor, Tensor]:
    """The matrices Omega and X_perp of `expm_tall`.

    If B is None, the first k rows of X_perp are zero, and the result leaves them out.
    """
    k = X.shape[-1]
    along = X[..., :k, :] if B is None else B.mH @ X
    X_perp = X[..., k:, :] if B is None else X - B @ along
    return (along - along.mH) / 2, X_perp


def _in_the_span(
    Omega: Tensor, X_perp: Tensor, B: Tensor | None, columns: FirstColumns
) -> Tensor:
    """f(A) B = B C + X_perp D with [[C], [D]] = f([[Omega, -S], [I, 0]]) [[I], [0]]."""
    S = X_perp.mH @ X_perp
    sigma = gram_bound(S.detach())
    # In the basis (B, X_perp / sigma), the norms of both off-diagonal blocks are about
    # the norm of X_perp.
    top = torch.cat([Omega, -S / sigma], -1)
    bottom = torch.cat([sigma * identity(S), torch.zeros_like(S)], -1)
    C, D = columns(torch.cat([top, bottom], -2), S.shape[-1]).chunk(2, -2)
    D = D / sigma
    return torch.cat([C, X_perp @ D], -2) if B is None else B @ C + X_perp @ D


def _in_the_group(
    Omega: Tensor, X_perp: Tensor, B: Tensor | None, columns: FirstColumns
) -> Tensor:
    """f(A) B by the definition, with the n x n skew matrix A."""
    # A = P - P^H with P = (X_perp + B Omega / 2) B^H
    if B is None:
        k = Omega.shape[-1]
        P = torch.cat([Omega / 2, X_perp], -2)
        P = torch.nn.functional.pad(P, (0, P.shape[-2] - k))
        return columns(P - P.mH, k)
    P = (X_perp + B @ (Omega / 2)) @ B.mH
    return columns(P - P.mH, P.shape[-1]) @ B


def _rounding(Y: Tensor) -> Tensor:
    """The change that a Newton-Schulz step makes to `Y`; NaN if the defect is large."""
    D = defect(Y)
    # With a defect of 0.5 or more, no digit of Y is correct. The step would reduce the
    # defect and so hide the error, so the result is NaN instead.
    near = torch.linalg.matrix_norm(D, keepdim=True) < 0.5
    return Y @ (D / 2) + nan_unless(near, like=Y)


def _expm(M: Tensor) -> Tensor:
    """The exponential of any square matrices `M`, normal or not."""
    M2 = M @ M
    M4 = M2 @ M2
    # the spectral radius of M is at most the fourth root of a norm of M^4
    norm = one_norm(M4).sqrt().sqrt()
    powers = {1: M, 2: M2, 4: M4}
    return scaled_and_squared(_taylor, powers, norm=norm, theta=_THETA)


def _taylor(M: Tensor, M2: Tensor, M4: Tensor) -> Tensor:
    blocks = PRECISIONS[M.real.dtype].taylor_blocks
    M3 = M2 @ M
    eye = identity(M)
    P = M4 / math.factorial(4 * blocks)
    for j in reversed(range(blocks)):
        c = [1 / math.factorial(4 * j + i) for i in range(4)]
        P = P + c[0] * eye + c[1] * M + c[2] * M2 + c[3] * M3
        P = P @ M4 if j > 0 else P
    return P
