"""Which rows of a buffer belong to which step of time."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from isometry._backend.boundary import StepTable


@dataclass(frozen=True)
class Steps:
    """Sequences one step after the other, as in a `PackedSequence`.

    Step t holds `sizes[t]` rows, one of each sequence that is that long. They are
    sorted, the longest first, so sizes never grow.

    While a layer is exported, the batch may be a symbol. So the shape of a tensor is
    asked for here, and never its `len`, which would fix the number.
    """

    sizes: tuple[int, ...]

    @staticmethod
    def equal(steps: int, batch: int) -> "Steps":
        """All sequences of one length."""
        # Dynamo does not know caches of functions
        if torch.compiler.is_compiling():
            return Steps((batch,) * steps)
        return _equal(steps, batch)

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.sizes[0]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of each step, and the number of all rows."""
        return (0, *accumulate(self.sizes))

    @property
    def rows(self) -> int:
        """Number of rows of all steps together."""
        return self.starts[-1]

    @property
    def is_equal(self) -> bool:
        """Whether all sequences have one length."""
        return self.sizes[0] == self.sizes[-1]

    def part(self, begin: int, end: int) -> "Steps":
        """Some of the steps, for a buffer that begins with them."""
        if (begin, end) == (0, len(self.sizes)):
            return self
        return Steps(self.sizes[begin:end])

    def cut(self, length: int | None) -> list[tuple[int, int]]:
        """Begin and end of parts of at most so many steps."""
        steps = len(self.sizes)
        length = length or steps
        return [(t, min(t + length, steps)) for t in range(0, steps, length)]

    def last(self, X: Tensor) -> Tensor:
        """The last row of each sequence, of rows one step after the other."""
        if self.is_equal:
            return X[X.shape[0] - self.batch :]
        rows = self._row(self._lengths() - 1, _upto(self.batch))
        return X[rows.to(X.device)]

    def reversed(self, X: Tensor) -> Tensor:
        """The rows with each sequence backwards in time."""
        if self.is_equal:
            # export cannot follow the strides of a flip if the batch is free
            if torch.compiler.is_compiling():
                return torch.cat(X.split(self.sizes)[::-1])
            shape = (len(self.sizes), self.batch)
            return X.unflatten(0, shape).flip(0).flatten(0, 1)
        sizes = torch.tensor(self.sizes, device="cpu")
        time = torch.repeat_interleave(_upto(len(sizes)), sizes)
        which = _upto(self.rows) - self._row(time, 0)
        rows = self._row(self._lengths()[which] - 1 - time, which)
        return X[rows.to(X.device)]

    def _lengths(self) -> Tensor:
        """Lengths of the sequences, in steps."""
        sizes = torch.tensor(self.sizes, device="cpu")
        return (sizes[:, None] > _upto(self.batch)).sum(0)

    def _row(self, time: Tensor, which: Tensor | int) -> Tensor:
        """Where the step of a sequence is."""
        return torch.tensor(self.starts, device="cpu")[time] + which

    @cached_property
    def table(self) -> StepTable:
        """Starts and sizes, as the backends read them."""
        # no tensors: these are kept, and tensors would keep the mode and the device
        # under which they were made
        return StepTable(self.sizes)


def _upto(end: int) -> Tensor:
    # not on the default device, which may be another
    return torch.arange(end, device="cpu")


@lru_cache(maxsize=64)
def _equal(steps: int, batch: int) -> Steps:
    return Steps((batch,) * steps)
