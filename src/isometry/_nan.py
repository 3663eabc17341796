"""NaN for matrices that contain NaN or infinity, and for results out of reach.

Most functions of matrices return NaN where they cannot compute a result. LAPACK alone
does not ensure this: for a matrix that contains NaN, it may return finite numbers, and
MKL's eigenvalue solver ends the process.
"""

import torch
from torch import Tensor


def is_finite(X: Tensor) -> Tensor:
    """For each matrix, whether all its entries are finite; shape `(*batch, 1, 1)`."""
    return X.isfinite().all(-1).all(-1)[..., None, None]


def nan_unless_finite(X: Tensor) -> Tensor:
    """Zero for each matrix whose entries are all finite, and NaN for the others.

    Several maps add this number to their result. The number is also NaN if the sum of
    the entries overflows. It is not computed as `0 * sum`, which Inductor simplifies to
    0.

    Returns:
        Shape `(*batch, 1, 1)`.
    """
    return nan_unless(X.detach().sum(dim=(-2, -1), keepdim=True).isfinite(), like=X)


def nan_unless(condition: Tensor, *, like: Tensor) -> Tensor:
    """Zero where `condition` holds, and NaN elsewhere, in the dtype of `like`."""
    # The square root of -1 gives the NaN. Inductor would simplify `0 / condition` to
    # zero, and torch before 2.10 cannot save an exported program with the constant NaN.
    poison = torch.where(condition, 0.0, -1.0).to(like.real.dtype).sqrt()
    return torch.complex(poison, poison) if like.is_complex() else poison
