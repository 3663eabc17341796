"""What a task is: its batches, its loss and what is measured."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Split = Literal["validation", "test"]

# streams of random numbers, which differ for every seed and step
TRAIN, VALIDATION, TEST = 0, 1, 2


class Batch(NamedTuple):
    """Sequences and the answers to them; the time axis comes first.

    Attributes:
        x: class indices (time, batch), or features (time, batch, d).
        y: classes (time, batch) or (batch,), or numbers (time, batch, k) or (batch, k).
        lengths: number of valid time steps of each sequence, if they differ.
    """

    x: "Tensor"
    y: "Tensor"
    lengths: "Tensor | None" = None


@dataclass(frozen=True)
class AbstractTask(ABC):
    """A source of sequences with a loss. The fields of a dataclass are its options.

    A task of your own is a frozen dataclass that derives from this class. It has to say
    where batches come from, what the loss is and how large inputs and outputs are;
    everything else has a default.

    Attributes:
        name: its name, in reports and in the names of folders.
        last_only: whether the answer is due at the last time step alone.
        metric: the main metric, by which the best weights are chosen.
        larger_is_better: whether larger values of the main metric are better; if None,
            those of "accuracy" alone.
        reported: the metric that reports compare, smaller values being better; the main
            metric if None.
        headings: for each other metric or final score that reports show, the heading
            of its column.
        neutral: options that change neither the task nor its numbers, such as where
            the data is.
        selecting: options that change how a number is selected. The paper's numbers
            still stand beside it.
    """

    name: ClassVar[str] = ""
    last_only: ClassVar[bool] = False
    metric: ClassVar[str] = "loss"
    larger_is_better: ClassVar[bool | None] = None
    reported: ClassVar[str | None] = None
    headings: ClassVar[Mapping[str, str]] = {}
    neutral: ClassVar[frozenset[str]] = frozenset()
    selecting: ClassVar[frozenset[str]] = frozenset({"held_out"})

    @property
    def recipe(self) -> str:
        """The task whose rates and sizes the paper's networks have here."""
        return "adding"

    def is_better(self, new: float, old: float) -> bool:
        """True if a value of the main metric is better than another."""
        return new > old if self._larger() else new < old

    def _larger(self) -> bool:
        larger = self.larger_is_better
        return self.metric == "accuracy" if larger is None else larger

    def title(self) -> tuple[str, str, frozenset[str]]:
        """How reports name the task.

        Returns:
            A short name for files, a heading, and the options that both tell.
        """
        name = self.name or type(self).__name__
        return name, name.capitalize(), frozenset()

    def about(self) -> dict[str, Any]:
        """What a report needs to know about the task. `config.json` keeps it.

        Returns:
            Values that JSON can hold.
        """
        key, heading, told = self.title()
        options = {k: v for k, v in asdict(self).items() if k not in self.neutral}
        # {} is the default of a field whose default is made by a function
        usual = {
            f.name: {} if f.default is MISSING else f.default for f in fields(self)
        }
        unusual = {k: v for k, v in options.items() if v != usual[k] and k not in told}
        words = (f", {name.replace('_', ' ')} {v}" for name, v in unusual.items())
        return {
            "key": key,
            "title": heading + "".join(words),
            "as_in_paper": not unusual.keys() - self.selecting,
            "metric": self.reported or self.metric,
            "larger_is_better": self._larger() and self.reported is None,
            "headings": dict(self.headings),
            "options": options,
            "baseline": self.baseline,
        }

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
        """Raise if something that the task needs is missing, before a run begins.

        Raises:
            ImportError: if a package is not installed.
        """

    def epoch(self, size: int) -> int | None:  # noqa: ARG002 - endless data
        """Batches of a size in one pass over the data; None if data is endless."""
        return None

    @abstractmethod
    def batch(
        self, step: int, *, size: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> Batch:
        """The training batch of a step, a function of its arguments alone.

        Since there is no state, a run can be resumed at any step.

        Args:
            step: number of the step, from 0.
            size: sequences in the batch of all ranks.
            seed: seed of the run.
            rank: which part of the batch is wanted.
            ranks: number of parts.

        Returns:
            One part. All parts in order are the batch of a single process.
        """

    @abstractmethod
    def evaluation(self, split: Split, size: int) -> Iterator[Batch]:
        """Sequences that training does not see, the same in every run."""

    @abstractmethod
    def loss(self, outputs: "Tensor", batch: Batch) -> "Tensor":
        """The mean loss of outputs.

        Args:
            outputs: (time, batch, k); time may be one, or left out, if the answer is
                due at the last time step alone.
            batch: the sequences and their answers.

        Returns:
            A number.
        """

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:  # noqa: ARG002 - a default
        """Metrics by name besides the loss, each a mean over the batch."""
        return {}

    def weights(self, batch: Batch) -> dict[str, int]:
        """For the loss and each metric, the number of terms in its mean.

        A metric that is not named has as many as the loss.
        """
        return {"loss": batch.x.shape[1]}

    def final_scores(
        self,
        model: "Callable[[Tensor], Tensor]",  # noqa: ARG002 - a default
        split: Split,  # noqa: ARG002 - a default
        size: int,  # noqa: ARG002 - a default
    ) -> dict[str, float]:
        """Scores that take too long to measure more than once, when training ends.

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
            weights = task.weights(batch)
            for name, value in means.items():
                weight = weights.get(name, weights["loss"])
                sums[name] = sums.get(name, 0.0) + weight * value
                totals[name] = totals.get(name, 0) + weight
    return {name: sums[name] / totals[name] for name in sums}


def generator(seed: int, stream: int, index: int) -> "np.random.Generator":
    """Random numbers that depend on seed, stream and index, and on nothing else."""
    import numpy as np

    # a spawn key, unlike a longer seed, cannot be mistaken for another seed
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, index))
    return np.random.Generator(np.random.PCG64(sequence))


def part(total: int, rank: int, ranks: int) -> slice:
    """The part of a batch that belongs to a rank; all parts are nearly equal."""
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
    """Outputs (batch, k) of the last time step, with or without an axis for time."""
    return outputs[-1] if outputs.ndim == 3 else outputs


def batches_per_epoch(examples: int, size: int) -> int:
    """Batches in one pass over finite data; the last may be smaller."""
    return -(-examples // size)


def training_rows(
    examples: int, step: int, *, size: int, seed: int, rank: int, ranks: int
) -> "np.ndarray":
    """Numbers of the examples in a training batch of finite data.

    Each epoch is a new permutation of all examples, cut into batches. The last batch of
    an epoch may be smaller.

    Args:
        examples: how many examples there are.
        step: number of the step, from 0.
        size: examples in the batch of all ranks.
        seed: seed of the run.
        rank: which part of the batch is wanted.
        ranks: number of parts.

    Returns:
        Indices from 0 to `examples - 1`, as NumPy's int64.

    Raises:
        ValueError: if the batch has fewer examples than there are ranks.
    """
    epoch, index = divmod(step, batches_per_epoch(examples, size))
    rows = _order(examples, epoch, seed)[index * size : (index + 1) * size]
    return rows[part(len(rows), rank, ranks)]


# the permutation of an epoch serves all of its batches
@functools.lru_cache(maxsize=2)
def _order(examples: int, epoch: int, seed: int) -> "np.ndarray":
    return generator(seed, TRAIN, epoch).permutation(examples)
