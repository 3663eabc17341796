"""The square of a symmetric or skew matrix, by whoever computes it fastest."""

from torch import Tensor

from isometry._backend import backend_for


def square(A: Tensor, *, out: Tensor) -> Tensor:
    r"""$A^2$ for $A^H = \pm A$, (batch, n, n), written into other memory."""
    backend_for(A, out).square(A, out)
    return out
