"""Orthonormal columns: how far a matrix is from having them, and a step towards them.

The defect of a matrix is zero if its columns are orthonormal. A Newton-Schulz step
squares the defect, up to a factor.
"""

import torch
from torch import Tensor

from isometry._torch import autocast_off


def identity(X: Tensor) -> Tensor:
    """The k x k identity, for `X` with k columns, with the dtype and device of `X`."""
    return torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)


def defect(Q: Tensor) -> Tensor:
    r"""The matrix $I - Q^H Q$, which is zero if the columns of `Q` are orthonormal."""
    with autocast_off(Q.device):
        return identity(Q) - Q.mH @ Q


def unitarity_defect(Q: Tensor) -> Tensor:
    r"""The norm of the defect, $\lVert I - Q^H Q \rVert_F$, of each matrix."""
    return torch.linalg.matrix_norm(defect(Q))


def unitary_bound(n: int, dtype: torch.dtype) -> float:
    r"""Largest defect accepted as rounding: $10\, n \max(4, \sqrt n)\, \varepsilon$.

    The defect of a matrix $Q$ with $n$ rows is $\lVert Q^H Q - I \rVert_F$.
    """
    # The bound accepts the unitary matrices that torch computes. It was compared with
    # the defect of `matrix_exp` for Gaussian skew matrices, both unscaled and scaled to
    # norm pi. The defect was at most 0.66 of the bound (at n = 2, in 2000 samples), and
    # at most half of the bound from n = 16 to 512. The defect of qr, svd and
    # `nn.init.orthogonal_` is less than a tenth of the bound.
    return 10 * n * max(4.0, n**0.5) * torch.finfo(dtype).eps


def newton_schulz(Q: Tensor) -> Tensor:
    r"""A Newton-Schulz step, $Q (3I - Q^H Q) / 2$, which squares a small defect.

    Some functions contain this step and do not call `newton_schulz`, because they have
    already computed a part of it: the exponential has $Q - I$, for example, and the
    polar retraction has $Q^H Q$.
    """
    with autocast_off(Q.device):
        return Q + Q @ (defect(Q) / 2)


def converge(X: Tensor, e: float) -> Tensor:
    """`X` after more Newton-Schulz steps, until its defect is only a rounding error.

    The caller has made one Newton-Schulz step, whose result is `X`. Before this step,
    the norm of the defect was at most `e`, which must be below 1.
    """
    # a step takes a defect of norm e to a defect of at most this norm
    e = e * e * (3 + e) / 4
    # The threshold is eps / 4, not eps, because the true defect may be three times as
    # large as `e`: the bound that `Polar.step` passes holds for exact tangent vectors,
    # and computed vectors are tangent only up to rounding.
    if e <= torch.finfo(X.dtype).eps / 4:
        return X
    return converge(newton_schulz(X), e)


def unit_vectors(X: Tensor, *, dim: int = -1) -> Tensor:
    """The vectors along the axis `dim`, divided by their lengths; zero stays zero."""
    X = over_largest_entry(X, dim=dim)
    length = torch.linalg.vector_norm(X, dim=dim, keepdim=True)
    return X / torch.where(length == 0, 1, length)


def over_largest_entry(X: Tensor, *, dim: int) -> Tensor:
    """The vectors along the axis `dim`, each divided by its largest absolute value.

    The squared length of such a vector neither overflows nor underflows. In float32,
    the square of 1e-30 would underflow, and the square of 1e30 would overflow. Zero
    stays zero.
    """
    largest = X.detach().abs().amax(dim, keepdim=True)
    return X / torch.where(largest == 0, 1, largest)
