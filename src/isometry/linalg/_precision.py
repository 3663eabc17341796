"""The precision in which maps compute: half precision, autocast and NaN."""

import contextlib

import torch
from torch import Tensor


def in_float32_or_wider(X: Tensor) -> Tensor:
    """`X`, in float32 if its dtype is narrower.

    Neither LAPACK nor cuSOLVER has routines for half precision.
    """
    return X.to(torch.promote_types(X.dtype, torch.float32))


def autocast_off(device: torch.device) -> contextlib.AbstractContextManager:
    """Products in the dtype of their factors, also inside `torch.autocast`."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    # entering torch's context takes as long as a small product, so it is entered only
    # where autocast is on
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def nan_unless_finite(X: Tensor) -> Tensor:
    """`(*batch, 1, 1)` zeros, or NaN for a matrix with an entry that is not finite.

    Every map adds this to its result, since LAPACK may return finite numbers for such
    a matrix. (Inductor folds `0 * sum` to zero: hence a comparison.)
    """
    return nan_unless(X.detach().sum(dim=(-2, -1), keepdim=True).isfinite(), like=X)


def nan_unless(condition: Tensor, *, like: Tensor) -> Tensor:
    """Zero where the condition holds, elsewhere NaN in both parts of a number."""
    poison = torch.where(condition, 0.0, torch.nan).to(like.real.dtype)
    return torch.complex(poison, poison) if like.is_complex() else poison
