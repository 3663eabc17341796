"""The skew matrix with given free coordinates."""

from typing import Any

import torch
from torch import Tensor

from isometry._backend import backend_for, plain_skew
from isometry._checks import check_square, is_finite
from isometry._torch import is_batched_gradient, needs_plain_operations
from isometry._typing import Square

# with fewer rows than this, torch's operations are as fast as `LowerTriangle`
SMALLEST = 32


def skew(X: Square) -> Square:
    r"""Skew matrix with the strictly lower triangle of `X`.

    With $L$ the strictly lower triangle of $X$,

    $$ \operatorname{skew} X = L - L^H
       \;(+\; i \operatorname{diag}(\operatorname{Re} x_{jj})
       \text{ if } X \text{ is complex}). $$

    The map is linear, and its image is the whole Lie algebra. The other entries of `X`
    do not matter, and their gradient is zero. Cost: no products.

    Args:
        X: free coordinates; any square matrix.

    Returns:
        A matrix with $A^H = -A$ to the last bit.

    Raises:
        TypeError: if `X` has an integer dtype.
        ValueError: if `X` is not square.
    """
    check_square(X, name="X")
    if X.shape[-1] < SMALLEST or X.is_complex() or needs_plain_operations(X):
        return plain_skew(X)
    return LowerTriangle.apply(X)


def skew_eigh(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Angles and eigenvectors of skew matrices: $-iA = V \Theta V^H$.

    LAPACK refuses NaN and infinity, so a matrix that contains them is replaced with
    zero.

    Returns:
        The angles in ascending order, the unitary $V$, and whether each matrix is
        finite, in shape `(*batch, 1, 1)`.
    """
    finite = is_finite(A)
    # -iA is Hermitian, and `eigh` (unlike `eig`) returns a unitary V
    theta, V = torch.linalg.eigh(-1j * torch.where(finite, A, 0))
    return theta, V, finite


def with_skew_gradient(A: Tensor) -> Tensor:
    """`A`, but gradients and tangents are projected onto skew matrices."""
    skew_part = (A - A.mH) / 2
    # For a skew A, the detached difference is zero to the last bit. If A is not skew,
    # the difference restores its value: only derivatives are projected.
    return skew_part + (A - skew_part).detach()


class LowerTriangle(torch.autograd.Function):
    """X -> L - L^T for real matrices, where L is the strictly lower triangle of X.

    The C kernel makes one pass over memory, where torch's operations make three.
    """

    @staticmethod
    def forward(_: Any, X: Tensor) -> Tensor:
        return backend_for(X).skew(X)

    @staticmethod
    def backward(_: Any, G: Tensor) -> Tensor:
        if torch.is_grad_enabled() or is_batched_gradient(G):
            return (G - G.mT).tril(-1)
        return backend_for(G).skew_adjoint(G)
