r"""The loop over time, in torch's operations or in C.

Forward, a buffer that holds $u_t$ becomes $h_t = \sigma(W h_{t-1} + u_t)$; backward,
one becomes the gradient at $u_t$. Both work on states as rows, step after step.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from isometry._backend.library import Kernels, fits, kernels
from isometry.nn._sigma import KINDS, Sigma, activate, pull_back
from isometry.nn._steps import Steps

# steps whose products with the states before them make one product for the gradient of
# W, while they are in the cache
_TOGETHER = 8
# rows that C gathers for the same purpose
_ROWS_TOGETHER = 512


class Cell(NamedTuple):
    """One step: the recurrent weight, the nonlinearity, its threshold if it has one."""

    W: Tensor
    sigma: Sigma
    b: Tensor | None


class Gradients(NamedTuple):
    """Those of a cell's weight and threshold, and of the states before the first."""

    W: Tensor
    b: Tensor | None
    h0: Tensor


def run(H: Tensor, cell: Cell, h0: Tensor, steps: Steps) -> None:
    """Make the states of what drives them, in place."""
    W, sigma, b = cell
    native = _native(H, W, h0, b)
    if native is None:
        _run_in_torch(H, cell, h0, steps)
        return
    kind, threads = KINDS[sigma], _threads(steps)
    native.scan(H, W, b, h0, steps.table, kind=kind, threads=threads)


def run_back(
    D: Tensor,
    H: Tensor,
    cell: Cell,
    h0: Tensor,
    steps: Steps,
    *,
    every: Tensor | None,
    last: Tensor | None,
) -> Gradients:
    """Write the gradient at what drives the states into D.

    Args:
        D: room for it.
        H: the states.
        cell: the recurrence.
        h0: the states before these steps.
        steps: which rows belong to which time.
        every: the gradient at every state, or none.
        last: that at the last state of each sequence in these steps, or none.
    """
    W, sigma, b = cell
    native = _native(D, H, W, h0, b, every, last)
    if native is None:
        return _run_back_in_torch(D, H, cell, h0, steps, every=every, last=last)
    n, threads = W.shape[0], _threads(steps)
    # one for each thread
    dW, db = W.new_zeros(threads, n, n), W.new_zeros(threads, n)
    most = max(_ROWS_TOGETHER, -(-steps.batch // threads))
    room, dh0 = W.new_empty(threads * 2 * most, n), torch.empty_like(h0)
    native.scan_adjoint(
        *(D, H, W, b, h0),
        table=steps.table,
        every=every,
        last=last,
        gradients=(dW, db, dh0),
        room=room,
        kind=KINDS[sigma],
    )
    return Gradients(dW.sum(0), None if b is None else db.sum(0)[: len(b)], dh0)


def _native(*tensors: Tensor | None) -> Kernels | None:
    there = [X for X in tensors if X is not None]
    return kernels(there[0].dtype) if fits(*there) else None


def _threads(steps: Steps) -> int:
    return max(1, min(torch.get_num_threads(), steps.batch))


def _run_in_torch(H: Tensor, cell: Cell, h0: Tensor, steps: Steps) -> None:
    before, Wt = h0, cell.W.mT
    for start, size in zip(steps.starts, steps.sizes, strict=False):
        h = H[start : start + size]
        h.addmm_(before[:size], Wt)
        activate(h, cell.b, cell.sigma)
        before = h


def _run_back_in_torch(
    D: Tensor,
    H: Tensor,
    cell: Cell,
    h0: Tensor,
    steps: Steps,
    *,
    every: Tensor | None,
    last: Tensor | None,
) -> Gradients:
    W, sigma, b = cell
    dW, db = torch.zeros_like(W), None if b is None else torch.zeros_like(b)
    starts, sizes = steps.starts, steps.sizes
    after = 0
    for t in reversed(range(len(sizes))):
        begin, end = starts[t], starts[t + 1]
        d = D[begin:end]
        d.copy_(every[begin:end]) if every is not None else d.zero_()
        if last is not None and sizes[t] > after:
            d[after:] += last[after : sizes[t]]
        if after:
            d[:after].addmm_(D[end : end + after], W)
        slope = pull_back(d, H[begin:end], b, sigma)
        if db is not None and slope is not None:
            db += slope
        after = sizes[t]
        if t == 0:
            break
        if not steps.is_equal:
            dW.addmm_(d.mT, H[starts[t - 1] :][: sizes[t]])
        elif (t - 1) % _TOGETHER == 0:
            upto = starts[min(t + _TOGETHER, len(sizes))]
            dW.addmm_(D[begin:upto].mT, H[starts[t - 1] :][: upto - begin])
    first = D[: sizes[0]]
    dW.addmm_(first.mT, h0)
    return Gradients(dW, db, first @ W)
