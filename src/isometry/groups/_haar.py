"""Haar measure on orthonormal frames, from Gaussian matrices."""

import torch
from torch import Tensor

from isometry.groups._maps.factors import q_factor
from isometry.groups._nearest import determinant


def check_batch(batch: tuple[int, ...]) -> None:
    """Raise unless `batch` holds sizes of axes."""
    if not all(hasattr(size, "__index__") and size >= 0 for size in batch):
        raise TypeError(
            f"`batch` must be sizes, one integer for each axis; got "
            f"{', '.join(map(repr, batch))}. Write `random(2, 3)` for a batch of 2 x 3."
        )


def gaussian(
    batch: tuple[int, ...],
    shape: tuple[int, ...],
    *,
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Tensor:
    """Independent standard normal entries."""
    check_batch(batch)
    return torch.randn(*batch, *shape, generator=generator, dtype=dtype, device=device)


def haar_frame(X: Tensor) -> Tensor:
    """Uniform matrix with orthonormal columns, from a Gaussian `X`.

    The Q factor with a positive diagonal of R commutes with rotations from the left,
    and the distribution of a Gaussian matrix is invariant under them. (LAPACK's factor
    does not have the positive diagonal, and is not uniform.)
    """
    return q_factor(X)


def flip_to_positive_determinant(Q: Tensor) -> Tensor:
    """The matrices, with the last column negated where the determinant is negative."""
    sign = determinant(Q).sgn()
    return torch.cat([Q[..., :-1], Q[..., -1:] * sign[..., None, None]], -1)
