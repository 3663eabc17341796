"""The mean of points on a manifold, by iteration."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isometry._checks import check_has_numbers, check_is_tensor

if TYPE_CHECKING:
    from isometry.groups._manifold import AbstractManifold

# Limit on the iterations. In SO(3), each iteration divides the distance to the mean by
# at least 1200 if all points are within 0.1 radians of the mean, and by at least 5.9 if
# they are within 1.4 radians.
_ITERATIONS = 100


def mean(manifold: "AbstractManifold", Q: Tensor, weights: Tensor | None) -> Tensor:
    """Check all arguments, and return the mean of `Q` along its first axis."""
    manifold.check_tensor(Q, name="Q")
    check_has_numbers(Q, name="Q")
    manifold.check_point(Q.detach(), name="Q")
    if Q.ndim == len(manifold.shape) or len(Q) == 0:
        raise ValueError(
            f"`Q` must have points along its first axis; got shape {[*Q.shape]}."
        )
    if weights is None:
        weights = torch.ones(len(Q), dtype=Q.dtype, device=Q.device)
    _check_weights(weights, len(Q))
    w = (weights / weights.sum()).reshape(-1, *[1] * (Q.ndim - 1)).to(Q.dtype)
    M = manifold.nearest((w * Q).sum(0))
    step = Q.new_zeros(())
    for _ in range(_ITERATIONS):
        E = (w * manifold.log(M.expand_as(Q), Q)).sum(0)
        M = manifold.polish(manifold.exp(M, E))
        step = E.detach().abs().max() if E.numel() else step
        # written so that NaN ends the loop
        if not bool(step > manifold.tolerance(Q.dtype)):
            return M
    raise ValueError(
        f"`Q` must be points near each other; got points whose mean still moved "
        f"by {float(step):.1e} after {_ITERATIONS} iterations."
    )


def _check_weights(weights: Tensor, count: int) -> None:
    """Raise unless there is one finite weight for each point, and the sum is not 0."""
    check_is_tensor(weights, name="weights")
    if tuple(weights.shape) != (count,):
        raise ValueError(
            f"`weights` must have shape ({count},), one weight for each point along "
            f"the first axis of `Q`; got {tuple(weights.shape)}. For several sets of "
            f"weights, call `mean` once for each set."
        )
    check_has_numbers(weights, name="weights")
    w = weights.detach().cpu()
    w = w if w.is_complex() else w.double()
    total, size = w.sum().abs(), w.abs().sum()
    # If weights cancel, their sum is only a rounding error: in float32, about 1e-7
    # times the sum of their absolute values. The condition is written so that NaN
    # fails.
    if not bool(total > 1e-6 * size) or not bool(size.isfinite()):
        raise ValueError(
            f"`weights` must be finite, and their sum, by which they are divided, "
            f"must not be 0; got the sum {w.sum().item():.2g}. Pass positive weights."
        )
