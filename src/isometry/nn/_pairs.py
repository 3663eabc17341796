"""Complex numbers as pairs of real ones, so that one real kernel serves both fields.

A complex matrix becomes a real one that does to pairs what it did to numbers: the same
arithmetic, in the same order.
"""

import torch
from torch import Tensor, nn

from isometry._backend.constants import takes_threshold
from isometry.nn._scan import Recurrence, Weights, scan


def scan_field(
    x: Tensor, weights: Weights, h0: Tensor, recurrence: Recurrence
) -> tuple[Tensor | None, Tensor]:
    """Run `scan` with real or with complex weights."""
    kernel, W, b = weights
    if not W.is_complex():
        return scan(x, weights, h0, recurrence)
    if b is not None and not takes_threshold(recurrence.sigma):
        b = torch.view_as_real(b).flatten()
    weights = Weights(input_form(kernel, x), real_form(W), b)
    H, last = scan(real_rows(x), weights, real_rows(h0), recurrence)
    return (None if H is None else complex_rows(H)), complex_rows(last)


def driven(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """T x + b for each row of x.

    Args:
        x: rows of numbers, or class indices, which stand for unit vectors. Rows may be
            real under a complex kernel.
        kernel: T.
        bias: b, if there is one.

    Returns:
        Rows in the dtype of the kernel.
    """
    if not (x.is_floating_point() or x.is_complex()):
        u = kernel.mT[x]
        return u if bias is None else u + bias
    if kernel.is_complex() and not x.is_complex():
        u = complex_rows(nn.functional.linear(x, input_form(kernel, x)))
        return u if bias is None else u + bias
    return nn.functional.linear(x, kernel, bias)


def real_rows(x: Tensor) -> Tensor:
    """Rows of pairs for rows of complex numbers; real rows stay as they are."""
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def complex_rows(h: Tensor) -> Tensor:
    """Rows of complex numbers for rows of pairs."""
    return torch.view_as_complex(h.unflatten(-1, (-1, 2)))


def real_form(W: Tensor) -> Tensor:
    """A real matrix (2m, 2n) that does to pairs what a complex (m, n) does to numbers.

    An entry a + ib becomes the block ((a, -b), (b, a)).
    """
    a, b = W.real, W.imag
    blocks = torch.stack((torch.stack((a, -b), -1), torch.stack((b, a), -1)), -3)
    # (m, 2, n, 2)
    return blocks.movedim(-3, 1).reshape(2 * W.shape[0], 2 * W.shape[1])


def input_form(kernel: Tensor, x: Tensor) -> Tensor:
    """A complex kernel T as a real one, whose outputs are pairs; x may be real."""
    if x.is_complex():
        return real_form(kernel)
    return torch.view_as_real(kernel).movedim(-1, 1).reshape(-1, kernel.shape[1])


def real_blocks(M: Tensor) -> Tensor:
    """Real blocks that do to rows of pairs what complex ones do to rows of numbers."""
    if not M.is_complex():
        return M
    both = torch.stack((torch.view_as_real(M), torch.view_as_real(1j * M)), 2)
    return both.flatten(3).flatten(1, 2)
