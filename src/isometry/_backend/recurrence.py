r"""The arguments of the recurrence $h_t = \sigma(W h_{t-1} + u_t)$.

The drive $u_t$ is the term that comes from the input. In the forward pass, the states
$h_t$ overwrite the drive. In the backward pass, the gradient with respect to $u_t$ is
written to another buffer. States are rows, one time step after the other. The
derivative of sigma can be computed from its value, so the backward pass needs only the
states. The exception is smooth modReLU, for which the forward pass also writes the
moduli $m = \sqrt{|z|^2 + \epsilon}$ of its arguments $z$. A complex state is a row of
pairs of real and imaginary parts.
"""

import ctypes
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isometry._backend.nonlinearities import Sigma


@dataclass(frozen=True)
class TimeSteps:
    """The number of rows at each time step, for rows sorted as in a `PackedSequence`.

    Time step t has `sizes[t]` rows, one for each sequence that is longer than t. The
    longest sequences come first, so the sizes never increase.

    During export the batch size may be symbolic. Read it from the shape of a tensor and
    never with `len`, which would turn it into a constant.
    """

    sizes: tuple[int, ...]

    @staticmethod
    def equal(length: int, batch: int) -> "TimeSteps":
        """The time steps of `batch` sequences that all have this length."""
        # a graph does not call `_equal`: Dynamo ignores `lru_cache`, with a warning
        if torch.compiler.is_compiling():
            return TimeSteps((batch,) * length)
        return _equal(length, batch)

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.sizes[0] if len(self.sizes) > 0 else 0

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The index of each time step's first row, then the total number of rows."""
        return (0, *accumulate(self.sizes))

    @cached_property
    def rows(self) -> int:
        """The total number of rows, over all time steps."""
        return self.starts[-1]

    @property
    def is_equal(self) -> bool:
        """Whether all sequences have the same length."""
        # `not self.sizes` would be shorter, but Dynamo cannot trace it
        return len(self.sizes) == 0 or self.sizes[0] == self.sizes[-1]

    def cut(self, length: int | None) -> list[tuple["TimeSteps", slice]]:
        """Consecutive parts of at most `length` time steps, with the rows of each part.

        If `length` is None, there is only one part.
        """
        if length is None or length >= len(self.sizes):
            return [(self, slice(None))]
        cuts = []
        for t in range(0, len(self.sizes), length):
            part = TimeSteps(self.sizes[t : t + length])
            cuts.append((part, slice(self.starts[t], self.starts[t] + part.rows)))
        return cuts

    def last(self, X: Tensor) -> Tensor:
        """The row of `X` that belongs to the last time step of each sequence."""
        if self.is_equal:
            # if the batch size is symbolic, torch 2.7 cannot export the slice below
            if torch.compiler.is_compiling():
                return X.split(self.sizes)[-1]
            return X[X.shape[0] - self.sizes[0] :]
        rows = self._row(self._lengths() - 1, _upto(self.batch))
        return X[rows.to(X.device)]

    def reversed(self, X: Tensor) -> Tensor:
        """The rows `X` with every sequence reversed in time."""
        if self.is_equal:
            # if the batch size is symbolic, torch cannot export the strides of a flip
            if torch.compiler.is_compiling():
                return torch.cat(X.split(self.sizes)[::-1])
            shape = (len(self.sizes), self.batch)
            return X.unflatten(0, shape).flip(0).flatten(0, 1)
        sizes = torch.tensor(self.sizes, device="cpu")
        time = torch.repeat_interleave(_upto(len(sizes)), sizes)
        sequence = _upto(self.rows) - self._row(time, 0)
        rows = self._row(self._lengths()[sequence] - 1 - time, sequence)
        return X[rows.to(X.device)]

    def _lengths(self) -> Tensor:
        """The lengths of the sequences, in time steps."""
        sizes = torch.tensor(self.sizes, device="cpu")
        return (sizes[:, None] > _upto(self.batch)).sum(0)

    def _row(self, time: Tensor, sequence: Tensor | int) -> Tensor:
        """The index of the row that holds time step `time` of a sequence."""
        return torch.tensor(self.starts, device="cpu")[time] + sequence

    @cached_property
    def arguments(self) -> tuple[Any, Any, int]:
        """The fields `starts`, `sizes` and `length` of `recurrence_t` in scan.h.

        Raises:
            ValueError: if a size is negative or larger than the one before.
        """
        sizes = [*self.sizes]
        if sizes != sorted(sizes, reverse=True) or min(sizes, default=0) < 0:
            raise ValueError(f"`sizes` must neither grow nor be negative; got {sizes}.")
        # C arrays instead of tensors: this property is cached, and a tensor would
        # depend on the mode (such as inference mode) and on the default device that
        # were active when it was created.
        arrays = [(ctypes.c_long * len(row))(*row) for row in (self.starts, sizes)]
        return arrays[0], arrays[1], len(sizes)


class Recurrence(NamedTuple):
    """The arguments of a recurrence, except its drive.

    `W` is (n, n). `b` is the threshold of the nonlinearity, or None if it has none.
    `h0`, of shape (batch, n), holds the states before the first time step. `m`, of
    shape (rows, n / 2), is memory for the moduli from which the derivative of smooth
    modReLU is computed, and None for other nonlinearities.
    """

    W: Tensor
    sigma: Sigma
    b: Tensor | None
    h0: Tensor
    time_steps: TimeSteps
    m: Tensor | None = None

    def smoothing(self, begin: int, end: int) -> tuple[float, Tensor] | None:
        """Epsilon and the moduli of some rows, for smooth modReLU; otherwise None."""
        return None if self.m is None else (self.sigma.epsilon, self.m[begin:end])


class Gradients(NamedTuple):
    """Gradients with respect to the fields of a `Recurrence` with these names."""

    W: Tensor
    b: Tensor | None
    h0: Tensor


def _upto(end: int) -> Tensor:
    # stay on the CPU, even if the user has set another default device
    return torch.arange(end, device="cpu")


@lru_cache(maxsize=64)
def _equal(length: int, batch: int) -> TimeSteps:
    return TimeSteps((batch,) * length)
