"""Batches of tasks whose sequences are drawn afresh."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Protocol

from isometry.lab._task import TEST, TRAIN, VALIDATION, Batch, Split, generator, part

if TYPE_CHECKING:
    import numpy as np


class Endless(Protocol):
    """A task that can draw any number of sequences."""

    last_only: ClassVar[bool]

    @property
    def held_out(self) -> int: ...

    def draw(self, rng: "np.random.Generator", size: int) -> Batch:
        """As many new sequences."""
        ...


def training_batch(
    task: Endless, step: int, *, size: int, seed: int, rank: int, ranks: int
) -> Batch:
    """Part of the batch of a step; every rank draws all of it, which is cheap."""
    whole = task.draw(generator(seed, TRAIN, step), size)
    return _take(task, whole, part(size, rank, ranks))


def held_out_batches(task: Endless, split: Split, size: int) -> Iterator[Batch]:
    """The sequences of a split, which depend on neither seed nor size."""
    stream = {"validation": VALIDATION, "test": TEST}[split]
    whole = task.draw(generator(0, stream, 0), task.held_out)
    for start in range(0, task.held_out, size):
        yield _take(task, whole, slice(start, start + size))


def _take(task: Endless, whole: Batch, mine: slice) -> Batch:
    y = whole.y[mine] if task.last_only else whole.y[:, mine]
    return Batch(whole.x[:, mine].contiguous(), y.contiguous())
