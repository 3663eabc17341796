"""The skew matrix with given free coordinates."""

from typing import Any

import torch
from torch import Tensor

from isometry._backend.library import fits, kernels
from isometry._checks import check_square
from isometry._torch import has_tangent, is_batched_gradient, transforms
from isometry._typing import Square

# below, torch's operations are as fast
SMALLEST = 32


def skew(X: Square) -> Square:
    r"""Skew matrix whose lower triangle is that of `X`.

    With $L$ the strictly lower triangle of $X$,

    $$ \operatorname{skew} X = L - L^H
       \;(+\; i \operatorname{diag}(\operatorname{Re} x_{jj})
       \text{ if } X \text{ is complex}). $$

    It is linear and onto the Lie algebra; entries of `X` above the diagonal are not
    read and get no gradient. Cost: no products.

    Args:
        X: free coordinates; any square matrix.

    Returns:
        A matrix with $A^H = -A$ to the last bit.

    Raises:
        TypeError: if `X` has an integer dtype.
        ValueError: if `X` is not square.
    """
    check_square(X, name="X")
    if X.shape[-1] >= SMALLEST and is_plain(X) and kernels(X.dtype):
        return LowerTriangle.apply(X)
    L = X.tril(-1)
    A = L - L.mH
    if X.is_complex():
        A = A + torch.diag_embed(1j * X.diagonal(dim1=-2, dim2=-1).real)
    return A


def is_plain(X: Tensor) -> bool:
    """Whether X is ordinary memory, in eager mode."""
    return (
        not torch.compiler.is_compiling()
        and not transforms()
        and fits(X)
        and not has_tangent(X)
    )


def with_skew_gradient(A: Tensor) -> Tensor:
    """`A` itself, through which only the skew part of a gradient or tangent passes."""
    skew_part = (A - A.mH) / 2
    # the difference is zero, to the last bit, for a skew A; a matrix that is not skew
    # keeps its value and is not projected
    return skew_part + (A - skew_part).detach()


class LowerTriangle(torch.autograd.Function):
    """X -> L - L^T in one pass; torch takes three, two of them transposed."""

    @staticmethod
    def forward(_: Any, X: Tensor) -> Tensor:
        return _apply("skew", X)

    @staticmethod
    def backward(_: Any, G: Tensor) -> Tensor:
        if torch.is_grad_enabled() or is_batched_gradient(G) or not fits(G):
            return (G - G.mT).tril(-1)
        return _apply("skew_adjoint", G)


def _apply(name: str, X: Tensor) -> Tensor:
    out = torch.empty_like(X)
    getattr(kernels(X.dtype), name)(X, out)
    return out
