"""Groups comparable runs into experiments, and reads the results of runs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from statistics import median
from typing import Any, NamedTuple

from isometry.lab._files import for_file_name
from isometry.lab._options import make
from isometry.lab._report.runs import Run, Score, SeedGroup, numbers, seed_groups
from isometry.lab.paper.tables import PAPER, PaperTable
from isometry.lab.task import TaskDescription


class Comparison(NamedTuple):
    """The number by which the runs of an experiment are compared.

    Attributes:
        score: the function that reads the number from a run.
        name: what the number is.
        place: words that say when it was measured, with `{}` in place of the number of
            steps.
    """

    score: Score
    name: str
    place: str


@dataclass(frozen=True)
class ReportedExperiment:
    """Runs of one task that can be compared, since their task options agree.

    Only neutral options may differ. They do not affect results; see `AbstractTask`.

    Attributes:
        task: description of the task. Its key is unique among the experiments of a
            report.
        runs: the runs, in the order given.
        paper: the paper's table or figure for this task, if there is one.
    """

    task: TaskDescription
    runs: tuple[Run, ...]
    paper: PaperTable | None = None

    @cached_property
    def groups(self) -> tuple[SeedGroup, ...]:
        """The runs in groups. A group has one run for each seed; see `SeedGroup`."""
        return seed_groups(self.runs)

    @cached_property
    def singles(self) -> tuple[SeedGroup, ...]:
        """Each run in a separate group."""
        return tuple(SeedGroup((run,)) for run in self.runs)

    @property
    def word(self) -> str:
        """The word for the metric in headings and sentences."""
        return "error" if self.task.metric == "mse" else self.task.metric

    @cached_property
    def comparison(self) -> Comparison:
        """The number by which runs are compared."""
        if self.task.metric == "loss":
            return Comparison(final_loss, "final training loss", "after {} steps")
        # the paper's MNIST table has the best test results
        if self.paper is not None and self.paper.selects_on_test:
            place = "in {} steps, selected on the test set as in the paper"
            return Comparison(self.best_test, f"best test {self.word}", place)
        name = f"test {self.word}"
        if any(run.curve(self.task.metric, "validation") for run in self.runs):
            place = "at the best validation in {} steps"
            return Comparison(self.at_best_validation, name, place)
        return Comparison(self.last_test, name, "after {} steps")

    def at_best_validation(self, run: Run, name: str | None = None) -> float | None:
        """The value of a test metric at the step with the best validation result.

        Args:
            run: the run, finished or not.
            name: the metric to read; if None, the metric of this experiment.

        Returns:
            The value; None if there is no validation result yet, or if the metric was
            not measured at that step.
        """
        values = run.curve(self.task.metric, "validation")
        # without validation results, `step` is None, and no test result belongs to it
        step = self.best(values, key=values.__getitem__, default=None)
        return run.curve(name or self.task.metric, "test").get(step)

    def best_test(self, run: Run) -> float | None:
        """The best value of the metric on the test set, over all steps."""
        return self.best(run.curve(self.task.metric, "test").values(), default=None)

    def last_test(self, run: Run) -> float | None:
        """The last value of the metric on the test set."""
        return next(reversed(run.curve(self.task.metric, "test").values()), None)

    @property
    def best(self) -> Callable[..., Any]:
        """The function that selects the best value of the metric: `max` or `min`."""
        return max if self.task.larger_is_better else min

    @property
    def baseline_of_metric(self) -> float | None:
        """The baseline, if it is known and the metric is the loss; otherwise None."""
        return self.task.baseline if self.task.metric_is_loss else None


def experiments(runs: Iterable[Run]) -> list[ReportedExperiment]:
    """Group runs into experiments by task and task options.

    Args:
        runs: runs of any tasks.

    Returns:
        One experiment for each combination of a task and its options, in the order in
        which these combinations first appear. Neutral options do not count.
    """
    from isometry.lab.tasks import TASKS

    by_task: dict[str, list[Run]] = {}
    for run in runs:
        options = sorted(about(run.config).options.items())
        by_task.setdefault(f"{run.config['task']} {options}", []).append(run)
    result: dict[str, ReportedExperiment] = {}
    for members in by_task.values():
        config = members[0].config
        task = about(config)
        # do not quote the paper for a user's own task, whose key may equal one of ours
        is_papers = task.as_in_paper and config["task"] in TASKS.ours
        paper = PAPER.get(task.key) if is_papers else None
        stem = for_file_name(task.key)
        names = chain([stem], (f"{stem}-{nth}" for nth in count(2)))
        key = next(name for name in names if name not in result)
        if not any(task.metric in record for run in members for record in run.records):
            task = replace(task, metric="loss", larger_is_better=False)
        baselines = (run.summary.get("baseline") for run in members)
        task = replace(
            task,
            key=key,
            metric_is_loss=task.metric_is_loss or task.metric == "loss",
            headings={name: str(text) for name, text in task.headings.items()},
            baseline=next(iter(numbers([*baselines, task.baseline])), None),
        )
        result[key] = ReportedExperiment(task, tuple(members), paper)
    return list(result.values())


def about(config: Mapping[str, Any]) -> TaskDescription:
    """The description of a run's task.

    A registered task describes itself. If the task is not registered or raises an
    error, the description is read from `config.json`. Missing entries get defaults,
    since earlier versions of Isometry did not store a description. Code that
    `config.json` names is never imported.

    Args:
        config: content of the run's `config.json`.

    Returns:
        The description.
    """
    from isometry.lab.tasks import TASKS

    name, options = str(config["task"]), config.get("task_options") or {}
    try:
        return make(TASKS.known[name], options).about()
    except (KeyError, TypeError, ValueError, AttributeError, OSError):
        # The task is not registered, its options are from another version, or its data
        # is not on this machine. Use the description in `config.json` instead.
        pass
    title = name.rpartition(":")[2].capitalize()
    usual = TaskDescription(name, title, options=options)
    stored = config.get("about")
    stored = stored if isinstance(stored, Mapping) else {}
    # accept only values of the right type, since anyone may have written the file
    valid = {
        name: stored[name]
        for name, value in vars(usual).items()
        if name in stored and (value is None or type(stored[name]) is type(value))
    }
    return replace(usual, **valid)


# The final training loss is the median of the last `LAST` recorded losses, since the
# loss of a single batch is noisy.
LAST = 5


def final_loss(run: Run) -> float | None:
    """Median of the last training losses; None if no loss was recorded."""
    losses = [*run.curve("loss", "train").values()]
    return median(losses[-LAST:]) if losses else None


def largest_orthogonality_error(run: Run) -> float | None:
    """Largest recorded orthogonality error of a run; None if there is none."""
    values = (r.get("orthogonality") for r in (run.summary, *run.records))
    return max(numbers(values), default=None)
