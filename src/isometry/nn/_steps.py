"""Which rows of a buffer belong to which step of time."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Sequences one step after the other, as in a `PackedSequence`.

    Step t holds `sizes[t]` rows, one of each sequence that is that long. They are
    sorted, the longest first, so sizes never grow.
    """

    sizes: tuple[int, ...]

    @staticmethod
    @lru_cache(maxsize=64)
    def equal(steps: int, batch: int) -> "Steps":
        """All sequences of one length."""
        return Steps((batch,) * steps)

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
        """Of all steps."""
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

    @cached_property
    def last_rows(self) -> Tensor:
        """The row of the last step of each sequence."""
        if self.is_equal:
            return torch.arange(self.rows - self.batch, self.rows)
        rows = torch.empty(self.batch, dtype=torch.int64)
        for start, size in zip(self.starts, self.sizes, strict=False):
            rows[:size] = torch.arange(start, start + size)
        return rows

    @cached_property
    def reversed_rows(self) -> Tensor:
        """For each row, that of the same sequence as far from its other end."""
        starts, sizes = torch.tensor(self.starts[:-1]), torch.tensor(self.sizes)
        time = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        which = torch.arange(self.rows) - starts[time]
        lengths = (sizes[:, None] > torch.arange(self.batch)).sum(0)
        return starts[lengths[which] - 1 - time] + which

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Starts and sizes, for C."""
        return torch.tensor(self.starts), torch.tensor(self.sizes)
