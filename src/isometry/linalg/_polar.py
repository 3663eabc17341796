"""The polar factor: the nearest matrix with orthonormal columns."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from isometry._checks import check_matrix
from isometry._dtypes import in_float32_or_wider
from isometry._nan import nan_unless_finite
from isometry._orthonormal import identity
from isometry._torch import autocast_off, refuse_nested_forward_mode
from isometry._typing import Matrix
from isometry.linalg._implicit import Implicit, traceable


def polar(X: Matrix) -> Matrix:
    r"""Nearest matrix with orthonormal columns (rows, if `X` is wide).

    $$ X = Q H, \quad H = (X^H X)^{1/2}, \qquad
       Q = U V^H \text{ for the singular value decomposition } X = U S V^H. $$

    $Q$ minimizes $\lVert X - Q \rVert$ in every unitarily invariant norm. For a wide
    $X$, $Q$ is the conjugate transpose of the polar factor of $X^H$. The derivative
    along $E$ is

    $$ Q\,\Omega + (I - Q Q^H) E H^{-1}, \qquad
       H \Omega + \Omega H = Q^H E - E^H Q. $$

    This formula divides only by sums of singular values. So the derivatives of all
    orders are correct even if singular values are equal, as for $X = I$. If $X$ does
    not have full rank, then $Q$ is one of many nearest matrices and has no derivative:
    the gradient is NaN, infinite or huge. Forward and reverse mode can be nested, but
    not forward mode in forward mode. If an entry of a matrix is not finite, or the sum
    of its entries overflows, the result for this matrix is NaN; the other matrices of
    the batch are not affected.

    Cost: one thin singular value decomposition. The backward pass takes seven products,
    or 13 if `X` is not square.

    Args:
        X: any matrix. float16 and bfloat16 are computed in float32.

    Returns:
        $Q$, with the shape and dtype of `X`.

    Raises:
        NotImplementedError: inside two levels of `torch.func.jvp`.
        TypeError: if `X` has an integer dtype.
        ValueError: if `X` has fewer than two axes.

    References:
        [Hig08] section 8.1 for the nearest matrix, section 8.2 for the derivative.
    """
    check_matrix(X, name="X")
    refuse_nested_forward_mode("polar")
    Y = in_float32_or_wider(X)
    with autocast_off(Y.device):
        poison = nan_unless_finite(Y)
        # LAPACK raises for the whole batch if one matrix contains NaN, so such a matrix
        # is replaced with the identity
        eye = torch.eye(*Y.shape[-2:], dtype=Y.dtype, device=Y.device)
        Y = torch.where(poison.isnan(), eye, Y)
        Y = Y.mH if X.shape[-2] < X.shape[-1] else Y
        Q = _polar_factor(Y)[0]
        Q = Q.mH if X.shape[-2] < X.shape[-1] else Q
        return (Q + poison).to(X.dtype)


class PolarFactor(Function):
    """X -> Q for tall or square X = Q H, where H is positive semidefinite.

    The eigenvalues and eigenvectors of H are outputs too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        U, s, Vh = torch.linalg.svd(X, full_matrices=False)
        return U @ Vh, s, Vh.mH.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, G: Tensor, *_: Tensor) -> Tensor:
        X, Q, s, V = ctx.saved_tensors
        # the derivative is a self-adjoint map, so it also pulls gradients back
        return _derivative(X, Q, s, V, G)

    @staticmethod
    def jvp(ctx: Any, E: Tensor) -> tuple[Tensor, None, None]:
        X, Q, s, V = ctx.saved_tensors
        return _derivative(X, Q, s, V, E), None, None


_polar_factor = traceable(PolarFactor)


def _derivative(X: Tensor, Q: Tensor, s: Tensor, V: Tensor, E: Tensor) -> Tensor:
    """Derivative along E of the polar factor Q, where X = Q H and H = V diag(s) V^H.

    H is computed as Q^H X, not from s and V, so that the derivative can be
    differentiated again.
    """
    H = Q.mH @ X
    C = Q.mH @ E
    D = Q @ _lyapunov(H, s, V, C - C.mH)
    if X.shape[-2] > X.shape[-1]:
        # H Y + Y H = I has the solution Y = H^-1 / 2
        D = D + 2 * (E - Q @ C) @ _lyapunov(H, s, V, identity(X).expand_as(H))
    return D


class _Lyapunov(Implicit):
    """(H, s, V, C) -> the solution Y of H Y + Y H = C, given H = V diag(s) V^H."""

    @staticmethod
    def forward(_H: Tensor, s: Tensor, V: Tensor, C: Tensor) -> Tensor:
        sums = s[..., :, None] + s[..., None, :]
        return V @ ((V.mH @ C @ V) / sums) @ V.mH

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None, Tensor]:
        H, s, V, Y = ctx.saved_tensors
        C = _lyapunov(H, s, V, G)
        return -(C @ Y.mH + Y.mH @ C), None, None, C

    @staticmethod
    def jvp(ctx: Any, dH: Tensor, _ds: Any, _dV: Any, dC: Tensor) -> Tensor:
        H, s, V, Y = ctx.saved_tensors
        return _lyapunov(H, s, V, dC - dH @ Y - Y @ dH)


_lyapunov = traceable(_Lyapunov)
