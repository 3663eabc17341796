"""The order in which a run sees data that have an end."""

import functools
from typing import TYPE_CHECKING

from isometry.lab._task import TRAIN, generator, part

if TYPE_CHECKING:
    import numpy as np


def batches_per_epoch(examples: int, size: int) -> int:
    """Batches in one pass; the last may be smaller."""
    return -(-examples // size)


def training_rows(
    examples: int, step: int, *, size: int, seed: int, rank: int, ranks: int
) -> "np.ndarray":
    """Numbers of the examples in one part of the batch of a step.

    Each epoch is a permutation of all examples, cut into batches.
    """
    epoch, index = divmod(step, batches_per_epoch(examples, size))
    rows = _order(examples, epoch, seed)[index * size : (index + 1) * size]
    return rows[part(len(rows), rank, ranks)]


# the permutation of an epoch serves all of its batches
@functools.lru_cache(maxsize=2)
def _order(examples: int, epoch: int, seed: int) -> "np.ndarray":
    return generator(seed, TRAIN, epoch).permutation(examples)
