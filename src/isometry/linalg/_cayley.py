"""The Cayley map from skew to orthogonal matrices, and its inverse."""

import torch
from torch import Tensor

from isometry._checks import check_square
from isometry._dtypes import in_float32_or_wider
from isometry._nan import nan_unless, nan_unless_finite
from isometry._orthonormal import identity
from isometry._typing import Square
from isometry.linalg._skew import with_skew_gradient


def cayley(A: Square) -> Square:
    r"""Cayley transform of a skew matrix: an orthogonal or unitary matrix.

    $$ Q = \bigl(I + \tfrac12 A\bigr)\bigl(I - \tfrac12 A\bigr)^{-1}
         = 2 \bigl(I - \tfrac12 A\bigr)^{-1} - I, \qquad A^H = -A. $$

    The map agrees with $\exp A$ to second order, is injective, and reaches every $Q$
    without the eigenvalue $-1$. Gradients are skew matrices, and forward mode projects
    directions onto skew matrices. Rounding $A$ changes the result by up to about
    $\varepsilon \lVert A \rVert$: the error grows in proportion to the norm, and so
    does the defect $\lVert Q^H Q - I \rVert$. If an entry of a matrix is not finite, or
    the sum of its entries overflows, the result for this matrix is NaN; the other
    matrices of the batch are not affected.

    Cost: one inverse. The derivative along $E$ is $\frac14 (Q + I) E (Q + I)$, so the
    backward pass takes two products and no factorization.

    Args:
        A: skew-symmetric or skew-Hermitian; this is not checked (see `check_skew`).
            float16 and bfloat16 are computed in float32.

    Returns:
        $Q$ with $Q^H Q = I$, in the dtype of `A`.

    Raises:
        TypeError: if `A` has an integer dtype.
        ValueError: if `A` is not square.

    References:
        [LM19] section 4.2.
    """
    check_square(A, name="A")
    X = in_float32_or_wider(A)
    eye = identity(X)
    # autograd computes the derivative of the inverse from the inverse itself, so the
    # backward pass needs no factorization
    inverse = torch.linalg.inv_ex(eye - with_skew_gradient(X) / 2).inverse
    return (2 * inverse - eye + nan_unless_finite(X)).to(A.dtype)


def cayley_inverse(Q: Square) -> Square:
    r"""Skew matrix whose Cayley transform is `Q`.

    $$ A = 2 (Q - I) (Q + I)^{-1} = 2 I - 4 (Q + I)^{-1}, \qquad
       Q^H Q = I, \quad -1 \notin \sigma(Q). $$

    An eigenvalue $e^{i\theta}$ of $Q$ becomes $2i \tan(\theta/2)$. If an eigenvalue is
    at a small distance $\delta$ from $-1$, the relative error of $A$ is about
    $1/\delta$ times the error of $Q$. If $\delta \lesssim 4 n \varepsilon$, no digit of
    $A$ would be correct, and $Q$ is refused. Every real $Q$ with determinant $-1$ is
    refused, since it has the eigenvalue $-1$. Where values cannot be read (under
    `torch.compile`, `torch.vmap`, on the meta device) the result is NaN instead of an
    error. A matrix with an entry that is not finite gives NaN.

    Cost: one inverse; two products in the backward pass. Where values can be read, the
    check reads one flag from the device.

    Args:
        Q: orthogonal or unitary; this is not checked. float16 and bfloat16 are
            computed in float32.

    Returns:
        $A$ with $A^H = -A$ to the last bit.

    Raises:
        TypeError: if `Q` has an integer dtype.
        ValueError: if `Q` is not square or an eigenvalue is too close to $-1$.

    References:
        [LM19] section 4.2.
    """
    check_square(Q, name="Q")
    X = in_float32_or_wider(Q)
    eye = identity(X)
    inverse, info = torch.linalg.inv_ex(X + eye)
    A = 2 * eye - 4 * inverse
    # An eigenvalue of Q at a small distance from -1 becomes an eigenvalue of A of size
    # 4 / distance. The norm is taken before A is made skew: near the eigenvalue -1,
    # rounding gives A a huge Hermitian part, which (A - A^H) / 2 would hide.
    distance = 4 / torch.linalg.matrix_norm(A.detach(), keepdim=True)
    # if LAPACK finds that X + I is singular, `inverse` is meaningless, so the distance
    # is set to 0
    distance = torch.where(info[..., None, None] > 0, 0, distance)
    poison = nan_unless_finite(X)
    bound = 4 * max(X.shape[-1], 1) * torch.finfo(Q.dtype).eps
    # a matrix that contains NaN is not refused: its result is NaN
    near = ~(distance > bound) & ~poison.isnan()
    _refuse_eigenvalue_minus_one(near, distance, bound, dtype=Q.dtype)
    poison = poison + nan_unless(~near, like=X)
    return ((A - A.mH) / 2 + poison).to(Q.dtype)


def _refuse_eigenvalue_minus_one(
    near: Tensor, distance: Tensor, bound: float, *, dtype: torch.dtype
) -> None:
    """Raise if `near` is True for any matrix; if values cannot be read, do nothing."""
    if torch.compiler.is_compiling():
        return
    try:
        is_near = bool(near.any())
    # the values of meta and fake tensors, and of tensors inside `vmap`, cannot be read
    except RuntimeError:
        return
    if is_near:
        worst = float(distance[near].nan_to_num(0.0).min())
        raise ValueError(
            f"`Q` must not have the eigenvalue -1, which the Cayley map never reaches; "
            f"got one at distance about {worst:.1e}, within {bound:.1e} for {dtype}. "
            f"Use `isometry.linalg.logm_unitary` and the exponential instead."
        )
