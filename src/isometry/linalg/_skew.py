"""The skew matrix with given coordinates, and tools for functions of skew matrices."""

from typing import Any

import torch
from torch import Tensor

from isometry._backend import backend_for, is_large
from isometry._checks import check_square
from isometry._nan import is_finite
from isometry._torch import is_batched_gradient, needs_plain_operations
from isometry._typing import Square


def skew(X: Square) -> Square:
    r"""Skew matrix with the strictly lower triangle of `X`.

    With $L$ the strictly lower triangle of $X$,

    $$ \operatorname{skew} X = L - L^H
       \;(+\; i \operatorname{diag}(\operatorname{Re} x_{jj})
       \text{ if } X \text{ is complex}). $$

    The map is linear over the real numbers, and every skew matrix is a value of it. The
    entries of `X` that do not occur in the formula have no effect, and their gradient
    is zero. Cost: no products.

    Args:
        X: free coordinates; any square matrix.

    Returns:
        A matrix with $A^H = -A$ to the last bit.

    Raises:
        TypeError: if `X` has an integer dtype.
        ValueError: if `X` is not square.
    """
    check_square(X, name="X")
    if is_large(X) and not X.is_complex() and not needs_plain_operations(X):
        return LowerTriangle.apply(X)
    L = X.tril(-1)
    A = L - L.mH
    if X.is_complex():
        A = A + torch.diag_embed(1j * X.diagonal(dim1=-2, dim2=-1).real)
    return A


def lower_triangle(A: Tensor) -> Tensor:
    """The lower triangular `X` with `skew(X) = A`, for a skew `A`."""
    X = A.tril(-1)
    if A.is_complex():
        X = X + torch.diag_embed(A.diagonal(dim1=-2, dim2=-1).imag)
    return X


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


def rotation_planes(V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Orthonormal vectors that span the planes in which a real skew matrix $A$ acts.

    If $(x + iy)/\sqrt2$ is an eigenvector of $-iA$ with angle $\theta$, the real
    vectors $x$ and $y$ span a plane, and $A y = \theta x$ and $A x = -\theta y$. LAPACK
    does not know that angles come in pairs. So if an angle is zero, up to rounding, $x$
    and $y$ may not be orthogonal, or may even be linearly dependent. QR makes the
    vectors of all planes orthonormal, beginning with the largest angles. It changes
    only vectors whose angles are zero up to rounding.

    Args:
        V: the eigenvectors, with the angles in ascending order, as from `skew_eigh`.

    Returns:
        Three matrices of columns: all $x$ and all $y$, in descending order of the
        angles, and the last vector of the basis if $n$ is odd, or no column if $n$ is
        even.
    """
    n = V.shape[-1]
    pairs = n // 2
    # the angles are in ascending order, so the positive ones come last
    positive = V[..., n - pairs :].flip(-1)
    columns = torch.view_as_real(positive).flatten(-2)
    Z, R = torch.linalg.qr(columns, mode="complete")
    # where the diagonal of R is negative, QR has changed the sign of x or y
    signs = R.diagonal(dim1=-2, dim2=-1).sign()
    signs = torch.where(signs == 0, 1, signs)[..., None, :]
    x, y = (Z[..., : 2 * pairs] * signs).unflatten(-1, (pairs, 2)).unbind(-1)
    return x, y, Z[..., 2 * pairs :]


def with_skew_gradient(A: Tensor) -> Tensor:
    """`A`, but gradients and tangents are projected onto skew matrices."""
    skew_part = (A - A.mH) / 2
    # For a skew A, the detached difference is zero to the last bit. If A is not skew,
    # adding the difference gives A again: only derivatives are projected.
    return skew_part + (A - skew_part).detach()


class LowerTriangle(torch.autograd.Function):
    """X -> L - L^T for real matrices, where L is the strictly lower triangle of X.

    The C kernel makes one pass over memory, where torch's operations make two.
    """

    @staticmethod
    def forward(_: Any, X: Tensor) -> Tensor:
        A = torch.empty_like(X, memory_format=torch.contiguous_format)
        backend_for(X).skew(X, A)
        return A

    @staticmethod
    def backward(_: Any, G: Tensor) -> Tensor:
        if torch.is_grad_enabled() or is_batched_gradient(G):
            return (G - G.mT).tril(-1)
        return backend_for(G).skew_adjoint(G)
