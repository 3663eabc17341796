"""Base classes of tasks, which define batches, a loss and metrics."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Split = Literal["validation", "test"]

# The streams of random numbers. `generator` returns a different generator for each
# combination of a stream, a seed and an index.
TRAIN, VALIDATION, TEST = 0, 1, 2


class Batch(NamedTuple):
    """Sequences and their answers; the time axis comes first.

    Attributes:
        x: class indices (time, batch), or vectors of d features (time, batch, d).
        y: classes (time, batch), or vectors of k real values (time, batch, k). There is
            no time axis if answers are due only at the last time step.
        lengths: number of valid time steps of each sequence; None if every time
            step is valid.
    """

    x: "Tensor"
    y: "Tensor"
    lengths: "Tensor | None" = None


@dataclass(frozen=True)
class TaskDescription:
    """What reports need to know about a task, as stored in `config.json`.

    JSON can store every attribute. The defaults are for runs without a stored
    description.

    Attributes:
        key: short name, for files.
        title: heading.
        as_in_paper: whether reports show the paper's numbers next to the run's own, if
            the paper has the task. True if every option has its default value, except
            options that the title shows, and the neutral and selecting options of
            `AbstractTask`.
        metric: the metric that reports compare.
        larger_is_better: whether larger values of the metric are better.
        metric_is_loss: whether the metric is the loss under another name.
        headings: column headings, keyed by the name of the metric or final score; see
            `AbstractTask`.
        options: the options of the task, without the neutral ones.
        baseline: loss of the best answer that ignores the input; None if unknown.
    """

    key: str
    title: str
    as_in_paper: bool = True
    metric: str = "loss"
    larger_is_better: bool = False
    metric_is_loss: bool = False
    headings: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    baseline: float | None = None


@dataclass(frozen=True)
class AbstractTask(ABC):
    """A source of sequences with a loss; the fields of the dataclass are its options.

    Your own task must be a frozen dataclass that derives from this class. It must
    define `batch`, `evaluation`, `loss`, `input_size` and `output_size`; everything
    else has a default.

    Attributes:
        name: name of the task in reports, and its default name in `register`. If empty,
            the name of the class is used.
        last_only: whether the answer is due only at the last time step.
        metric: the main metric, by which the best weights are chosen: "loss" or a name
            that `metrics` returns.
        larger_is_better: whether larger values of the main metric are better. If None,
            larger is better for "accuracy", and smaller for any other metric.
        reported: the metric that reports compare, if it is not the main metric. Smaller
            values of this metric must be better. If None, reports compare the main
            metric.
        metric_is_loss: whether the metric that reports compare is the loss under
            another name, such as "mse". The baseline is a loss, so reports compare a
            metric with the baseline only if `metric_is_loss` is True or the metric is
            "loss".
        headings: headings of additional columns in reports, keyed by the name of the
            metric or final score in the column. The compared metric already has a
            column, "Test ... at best validation". An entry for the compared metric only
            appends its text to that heading, and only if there are additional columns.
        neutral: options that change neither the task nor its results, such as the
            folder of the data.
        selecting: options that decide which data is held out, and thus how the reported
            number is selected. A run that changes them still counts as the paper's
            task, so reports show the paper's numbers next to the run's own.
        paths: options of type `str` that hold a path. The command line makes them
            absolute, so that a run can be resumed from any folder.
    """

    name: ClassVar[str] = ""
    last_only: ClassVar[bool] = False
    metric: ClassVar[str] = "loss"
    larger_is_better: ClassVar[bool | None] = None
    reported: ClassVar[str | None] = None
    metric_is_loss: ClassVar[bool] = False
    headings: ClassVar[Mapping[str, str]] = {}
    neutral: ClassVar[frozenset[str]] = frozenset()
    selecting: ClassVar[frozenset[str]] = frozenset({"held_out"})
    paths: ClassVar[frozenset[str]] = frozenset()

    @property
    def settings_of(self) -> str:
        """Name of the built-in task whose network settings this task uses.

        Each built-in network has learning rates, sizes and options for "copying",
        "adding", "mnist", "pmnist" (permuted MNIST) and "timit".
        """
        return "adding"

    def is_better(self, new: float, old: float) -> bool:
        """True if `new` is a better value of the main metric than `old`."""
        return new > old if self._larger() else new < old

    def _larger(self) -> bool:
        larger = self.larger_is_better
        return self.metric == "accuracy" if larger is None else larger

    def title(self) -> tuple[str, str, frozenset[str]]:
        """How reports name the task.

        Returns:
            A short name for files, a heading, and the names of the options whose values
            the name and the heading already show.
        """
        name = self.name or type(self).__name__
        return name, name.capitalize(), frozenset()

    def about(self) -> TaskDescription:
        """What reports need to know about the task."""
        key, heading, in_title = self.title()
        options = {k: v for k, v in asdict(self).items() if k not in self.neutral}
        usual = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        # a field without a plain default is assumed to have `default_factory=dict`, so
        # its usual value is an empty dictionary
        changed = {k: v for k, v in options.items() if v != usual.get(k, {})}
        unusual = {k: v for k, v in changed.items() if k not in in_title}
        words = (f", {name.replace('_', ' ')} {v}" for name, v in unusual.items())
        return TaskDescription(
            key=key,
            title=heading + "".join(words),
            as_in_paper=not unusual.keys() - self.selecting,
            metric=self.reported or self.metric,
            larger_is_better=self._larger() and self.reported is None,
            metric_is_loss=self.metric_is_loss,
            headings=dict(self.headings),
            options=options,
            baseline=self.baseline,
        )

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Number of features of an input; for class indices, the number of classes."""

    @property
    @abstractmethod
    def output_size(self) -> int:
        """Number of features of an output, or the number of classes to choose from."""

    @property
    def baseline(self) -> float | None:
        """Loss of the best answer that ignores the input; None if it is not known."""
        return None

    def check(self) -> None:  # noqa: B027 - most tasks have nothing to check
        """Raise an error if the task cannot run here. Called before a run begins.

        Raises:
            ImportError: if a package that the task needs is not installed.
        """

    def epoch(self, size: int) -> int | None:
        """Number of batches of `size` sequences in an epoch; None if data is endless.

        The last batch of an epoch may be smaller. The number is at least 1.
        """
        return None

    @abstractmethod
    def batch(
        self, step: int, *, size: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> Batch:
        """The training batch for a step, or one rank's part of that batch.

        The batch must depend only on the arguments and on the options of the task, so
        that a run can be resumed at any step.

        Args:
            step: index of the step, counting from 0.
            size: number of sequences in the whole batch, for all ranks together.
            seed: seed of the run.
            rank: index of the part to return, counting from 0.
            ranks: number of parts into which the batch is split.

        Returns:
            One part. All parts, concatenated in order along the batch axis, are the
            batch that a single process would get.
        """

    @abstractmethod
    def evaluation(self, split: Split, size: int) -> Iterator[Batch]:
        """The sequences of a split, in batches of `size`.

        The sequences must be the same in every run, and training must never use them.
        The last batch may be smaller.
        """

    @abstractmethod
    def loss(self, outputs: "Tensor", batch: Batch) -> "Tensor":
        """The mean loss of the outputs for a batch.

        Args:
            outputs: (time, batch, k), where k is `output_size`. If the answer is due
                only at the last time step, the time axis may have length 1 or be left
                out.
            batch: the sequences and their answers.

        Returns:
            A scalar tensor.
        """

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:
        """Metrics other than the loss, as means over the batch, keyed by name."""
        return {}

    def weights(self, batch: Batch) -> dict[str, int]:
        """How much a batch counts in means over several batches, keyed by metric.

        The loss and the metrics of a batch are themselves means. The weight of each
        must be proportional to the number of terms in its mean. By default, the weight
        is the number of sequences. The key of the loss is "loss". A metric without an
        entry has the weight of the loss.
        """
        return {"loss": batch.x.shape[1]}

    def final_scores(
        self, model: "Callable[[Tensor], Tensor]", split: Split, size: int
    ) -> dict[str, float]:
        """Slow scores, which are computed only once, after training.

        A run that diverges, is interrupted, or stops because its task is solved has no
        such scores.

        Args:
            model: maps inputs to outputs.
            split: "validation" or "test".
            size: number of sequences in a batch.

        Returns:
            The mean of each score over the split, keyed by name; empty for most tasks.
        """
        return {}


class AbstractEndlessTask(AbstractTask):
    """A task whose training sequences are drawn afresh for every batch.

    The validation and test sequences are the same in every run.

    Attributes:
        held_out: number of validation sequences, and also of test sequences.
    """

    held_out: int

    @abstractmethod
    def draw(self, rng: "np.random.Generator", size: int) -> Batch:
        """Draw new sequences.

        Args:
            rng: generator of the random numbers.
            size: how many sequences to draw.

        Returns:
            The sequences. They must depend only on the arguments and on the options of
            the task, since every rank draws the whole batch and takes its part.
        """

    def batch(
        self, step: int, *, size: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> Batch:
        """One rank's part of a new batch. Every rank draws the whole batch."""
        whole = self.draw(generator(seed, TRAIN, step), size)
        return self._take(whole, part(size, rank, ranks))

    def evaluation(self, split: Split, size: int) -> Iterator[Batch]:
        """The sequences of a split, the same for every seed and batch size."""
        stream = {"validation": VALIDATION, "test": TEST}[split]
        whole = self.draw(generator(0, stream, 0), self.held_out)
        for start in range(0, self.held_out, size):
            yield self._take(whole, slice(start, start + size))

    def _take(self, whole: Batch, rows: slice) -> Batch:
        y = whole.y[rows] if self.last_only else whole.y[:, rows]
        lengths = None if whole.lengths is None else whole.lengths[rows]
        return Batch(whole.x[:, rows].contiguous(), y.contiguous(), lengths)


def generator(seed: int, stream: int, index: int) -> "np.random.Generator":
    """A generator that depends only on the seed, the stream and the index."""
    import numpy as np

    # The list [seed, stream, index] would be a bad seed: NumPy concatenates its entries
    # as 32-bit words, so different lists can give the same numbers. A spawn key is kept
    # apart from the seed.
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, index))
    return np.random.Generator(np.random.PCG64(sequence))


def part(total: int, rank: int, ranks: int) -> slice:
    """The slice of a batch for one rank. Slices differ in length by at most 1."""
    if not 0 <= rank < ranks <= total:
        raise ValueError(
            f"`rank` must be in [0, ranks) and `ranks` at most the batch size {total}; "
            f"got rank {rank} of {ranks}. Use fewer processes or a larger batch."
        )
    return slice(rank * total // ranks, (rank + 1) * total // ranks)


def check_positive(task: AbstractTask, *names: str) -> None:
    """Raise a `ValueError` unless these options of a task are at least 1."""
    for name in names:
        value = getattr(task, name)
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1; got {value}.")


def last(outputs: "Tensor") -> "Tensor":
    """The outputs of the last time step; `outputs` may lack the time axis."""
    return outputs[-1] if outputs.ndim == 3 else outputs


def batches_per_epoch(examples: int, size: int) -> int:
    """Number of batches in one pass over finite data; the last batch may be smaller."""
    return -(-examples // size)


def training_rows(
    examples: int, step: int, *, size: int, seed: int, rank: int, ranks: int
) -> "np.ndarray":
    """Indices of the examples in a training batch, for tasks with finite data.

    Each epoch is a new permutation of all examples, split into batches. The last batch
    of an epoch may be smaller.

    Args:
        examples: how many examples there are.
        step: index of the step, counting from 0.
        size: number of examples in the whole batch, for all ranks together.
        seed: seed of the run.
        rank: index of the part to return, counting from 0.
        ranks: number of parts into which the batch is split.

    Returns:
        Indices from 0 to `examples - 1`, as an int64 array.

    Raises:
        ValueError: if `rank` is not in [0, ranks), or the batch has fewer examples than
            there are ranks.
    """
    epoch, index = divmod(step, batches_per_epoch(examples, size))
    rows = _order(examples, epoch, seed)[index * size : (index + 1) * size]
    return rows[part(len(rows), rank, ranks)]


# cached, since all batches of an epoch use the same permutation
@functools.lru_cache(maxsize=2)
def _order(examples: int, epoch: int, seed: int) -> "np.ndarray":
    return generator(seed, TRAIN, epoch).permutation(examples)
