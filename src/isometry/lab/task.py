"""What a task is: its batches, its loss and what is measured."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Split = Literal["validation", "test"]

# streams of random numbers, which no seed or step makes meet
TRAIN, VALIDATION, TEST = 0, 1, 2


class Batch(NamedTuple):
    """Sequences and what is to be said about them; time comes first.

    Attributes:
        x: class indices (time, batch), or features (time, batch, d).
        y: classes (time, batch) or (batch,), or numbers (time, batch, k) or (batch, k).
        lengths: number of valid steps of each sequence, if they differ.
    """

    x: "Tensor"
    y: "Tensor"
    lengths: "Tensor | None" = None


@dataclass(frozen=True)
class AbstractTask(ABC):
    """A source of sequences with a loss. The fields of a dataclass are its options.

    A task of one's own is a frozen dataclass that derives from this class. It has to
    say where batches come from, what the loss is and how large inputs and outputs are;
    everything else has a default.

    Attributes:
        name: name on the command line.
        last_only: whether an answer is due at the last step alone.
        metric: the main metric: "accuracy", "mse" or "loss".
    """

    name: ClassVar[str]
    last_only: ClassVar[bool] = False
    metric: ClassVar[str] = "loss"

    @property
    def recipe(self) -> str:
        """The task of the paper whose rates and sizes the networks have here."""
        return self.name

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Features of an input, or the number of its classes."""

    @property
    @abstractmethod
    def output_size(self) -> int:
        """Features of an output."""

    @property
    def baseline(self) -> float | None:
        """Loss of the best answer that ignores the input, if it is known."""
        return None

    def check(self) -> None:  # noqa: B027 - most tasks need nothing
        """Raise if something is missing that the task needs, before a run begins.

        Raises:
            ImportError: if a package is not installed.
        """

    def epoch(self, size: int) -> int | None:  # noqa: ARG002 - data without an end
        """Batches of a size in one pass over the data; None if data has no end."""
        return None

    @abstractmethod
    def batch(
        self, step: int, *, size: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> Batch:
        """The training batch of a step: no state, so that a run can be resumed.

        Args:
            step: number of the step, from 0.
            size: sequences in the batch of all ranks.
            seed: seed of the run.
            rank: which part of the batch is wanted.
            ranks: number of parts.

        Returns:
            One part. The parts in order are the batch of one process.
        """

    @abstractmethod
    def evaluation(self, split: Split, size: int) -> Iterator[Batch]:
        """Sequences that training does not see, the same in every run."""

    @abstractmethod
    def loss(self, outputs: "Tensor", batch: Batch) -> "Tensor":
        """The mean loss of outputs (time, batch, k), or (batch, k) of the last step."""

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:  # noqa: ARG002 - a default
        """What is reported besides the loss, each a mean."""
        return {}

    def weights(self, batch: Batch) -> dict[str, int]:
        """For the loss and each metric, the number of terms that its mean is over."""
        return {"loss": batch.x.shape[1]}

    def final_scores(
        self,
        model: "Callable[[Tensor], Tensor]",  # noqa: ARG002 - a default
        split: Split,  # noqa: ARG002 - a default
        size: int,  # noqa: ARG002 - a default
    ) -> dict[str, float]:
        """What is measured once, when training ends, as it takes too long before.

        Args:
            model: outputs from inputs.
            split: "validation" or "test".
            size: sequences in a batch.

        Returns:
            Means by name; empty for most tasks.
        """
        return {}


class AbstractEndlessTask(AbstractTask):
    """A task whose sequences are drawn afresh for every batch.

    Attributes:
        held_out: sequences for validation, and as many for test.
    """

    held_out: int

    @abstractmethod
    def draw(self, rng: "np.random.Generator", size: int) -> Batch:
        """Draw new sequences.

        Args:
            rng: source of the numbers.
            size: how many sequences.

        Returns:
            The sequences. A longer draw must begin with the sequences of a shorter one.
        """

    def batch(
        self, step: int, *, size: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> Batch:
        """New sequences. Every rank draws the whole batch, which is cheap."""
        whole = self.draw(generator(seed, TRAIN, step), size)
        return self._take(whole, part(size, rank, ranks))

    def evaluation(self, split: Split, size: int) -> Iterator[Batch]:
        """The sequences of a split, which depend on neither seed nor size."""
        stream = {"validation": VALIDATION, "test": TEST}[split]
        whole = self.draw(generator(0, stream, 0), self.held_out)
        for start in range(0, self.held_out, size):
            yield self._take(whole, slice(start, start + size))

    def _take(self, whole: Batch, mine: slice) -> Batch:
        y = whole.y[mine] if self.last_only else whole.y[:, mine]
        return Batch(whole.x[:, mine].contiguous(), y.contiguous())


def evaluate(
    task: AbstractTask, model: "Callable[[Tensor], Tensor]", split: Split, size: int
) -> dict[str, float]:
    r"""Loss and metrics of a whole split.

    $$ \bar m = \sum_b w_b m_b \Big/ \sum_b w_b $$

    with the weights of the task, so that the size of the batches does not matter.

    Args:
        task: the task whose split it is.
        model: outputs from inputs.
        split: "validation" or "test".
        size: sequences in a batch.

    Returns:
        Means by name; empty if the split is.
    """
    import torch

    sums: dict[str, float] = {}
    totals: dict[str, int] = {}
    with torch.inference_mode():
        for batch in task.evaluation(split, size):
            outputs = model(batch.x)
            means = {"loss": task.loss(outputs, batch).item()}
            means |= task.metrics(outputs, batch)
            for name, weight in task.weights(batch).items():
                sums[name] = sums.get(name, 0.0) + weight * means[name]
                totals[name] = totals.get(name, 0) + weight
    return {name: sums[name] / totals[name] for name in sums}


def generator(seed: int, stream: int, index: int) -> "np.random.Generator":
    """Random numbers that depend on seed, stream and index, and on nothing else."""
    import numpy as np

    # a spawn key, unlike a longer seed, cannot be mistaken for another seed
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, index))
    return np.random.Generator(np.random.PCG64(sequence))


def part(total: int, rank: int, ranks: int) -> slice:
    """The rank-th of nearly equal parts of a batch."""
    if not 0 <= rank < ranks <= total:
        raise ValueError(
            f"`rank` must be in [0, ranks) and `ranks` at most the {total} sequences "
            f"of the batch; got rank {rank} of {ranks}. Use fewer processes or a "
            f"larger batch."
        )
    return slice(rank * total // ranks, (rank + 1) * total // ranks)


def check_positive(**options: int) -> None:
    """Raise unless all options are at least 1."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(
                f"`{name}` must be at least 1; got {value}. Leave it out for the "
                f"paper's."
            )


def last(outputs: "Tensor") -> "Tensor":
    """Outputs (batch, k) of the last step; a network may keep an axis for time."""
    return outputs[-1] if outputs.ndim == 3 else outputs


def batches_per_epoch(examples: int, size: int) -> int:
    """Batches in one pass over finite data; the last may be smaller."""
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
