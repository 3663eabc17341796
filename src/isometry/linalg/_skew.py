"""The skew matrix with given free coordinates."""

import torch

from isometry._checks import check_square
from isometry._typing import Square


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
    L = X.tril(-1)
    A = L - L.mH
    if X.is_complex():
        A = A + torch.diag_embed(1j * X.diagonal(dim1=-2, dim2=-1).real)
    return A
