r"""The loop $h_t = \sigma(W h_{t-1} + u_t)$ over time, in torch's operations.

The drive $u_t$ is the term that comes from the input. In the forward pass, the states
$h_t$ overwrite the drive. In the backward pass, the gradient with respect to $u_t$ is
written to another buffer. States are rows, one time step after the other. The
derivative of sigma can be computed from its value, so the backward pass needs only the
states. A complex state is a row of pairs of real and imaginary parts.
"""

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from isometry._backend.constants import Sigma
from isometry._backend.nonlinearities import NONLINEARITIES

# The gradient with respect to W is a sum of products d_t^T h_{t-1} over all time steps
# t, where d_t is the gradient with respect to the drive u_t. If all sequences have the
# same length, the terms of this many time steps are added as one product, as soon as
# their rows d_t are known.
_TIME_STEPS_TOGETHER = 8


class Cell(NamedTuple):
    """One time step: the weight, and the nonlinearity with its threshold `b`."""

    W: Tensor
    sigma: Sigma
    b: Tensor | None


class Gradients(NamedTuple):
    """Gradients with respect to a cell's weight, its threshold and the first states."""

    W: Tensor
    b: Tensor | None
    h0: Tensor


class TimeStepTable:
    """Which rows of a buffer of states belong to which time step; see scan.h.

    Args:
        sizes: the number of rows of each time step.

    Raises:
        ValueError: if a size is negative or larger than the one before.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        sizes = list(sizes)
        if sizes != sorted(sizes, reverse=True) or min(sizes, default=0) < 0:
            raise ValueError(f"`sizes` must neither grow nor be negative; got {sizes}.")
        starts = [0, *accumulate(sizes)]
        self.batch, self.rows = max(sizes, default=0), starts[-1]
        self.starts, self.sizes = tuple(starts), tuple(sizes)
        # whether all sequences have the same length
        self.is_equal = not sizes or sizes[0] == sizes[-1]
        # the arguments `starts`, `sizes` and `steps` of the C functions
        arrays = ((ctypes.c_long * len(row))(*row) for row in (starts, sizes))
        self.arguments = (*arrays, len(sizes))


def scan(H: Tensor, cell: Cell, h0: Tensor, time_steps: TimeStepTable) -> None:
    """Overwrite the drive in H with the states.

    Args:
        H: on entry, the drive u_t of every time step; on return, the states h_t.
        cell: the recurrence.
        h0: the states before the first time step.
        time_steps: the rows of each time step.
    """
    previous, Wt = h0, cell.W.mT
    apply_ = NONLINEARITIES[cell.sigma].apply_
    for start, size in zip(time_steps.starts, time_steps.sizes, strict=False):
        h = H[start : start + size]
        h.addmm_(previous[:size], Wt)
        apply_(h, cell.b)
        previous = h


def scan_adjoint(
    D: Tensor,
    H: Tensor,
    cell: Cell,
    h0: Tensor,
    time_steps: TimeStepTable,
    *,
    dH: Tensor | None,
    dh_last: Tensor | None,
) -> Gradients:
    """Write the gradient with respect to the drive into D; return the other gradients.

    Args:
        D: memory for the gradient with respect to the drive.
        H: the states.
        cell: the recurrence.
        h0: the states before the first time step.
        time_steps: the rows of each time step.
        dH: the gradient with respect to every state, or None.
        dh_last: the gradient with respect to the last state of each sequence, or None.
    """
    W, sigma, b = cell
    adjoint_ = NONLINEARITIES[sigma].adjoint_
    dW, db = torch.zeros_like(W), None if b is None else torch.zeros_like(b)
    starts, sizes = time_steps.starts, time_steps.sizes
    rows_after = 0
    for t in reversed(range(len(sizes))):
        begin, end = starts[t], starts[t + 1]
        d = D[begin:end]
        d.copy_(dH[begin:end]) if dH is not None else d.zero_()
        # sequences that have no time step t + 1 end here
        if dh_last is not None and sizes[t] > rows_after:
            d[rows_after:] += dh_last[rows_after : sizes[t]]
        if rows_after:
            d[:rows_after].addmm_(D[end : end + rows_after], W)
        adjoint_(d, H[begin:end], b, db)
        rows_after = sizes[t]
        if t == 0:
            break
        if not time_steps.is_equal:
            dW.addmm_(d.mT, H[starts[t - 1] :][: sizes[t]])
        elif (t - 1) % _TIME_STEPS_TOGETHER == 0:
            upto = starts[min(t + _TIME_STEPS_TOGETHER, len(sizes))]
            dW.addmm_(D[begin:upto].mT, H[starts[t - 1] :][: upto - begin])
    first = D[: time_steps.batch]
    dW.addmm_(first.mT, h0)
    return Gradients(dW, db, first @ W)
