"""Runs of one task side by side: what is compared, and what each has reached."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import median
from typing import Any

from isometry.lab._report.runs import Group, Run, as_number, groups
from isometry.lab.paper.tables import PAPER, PaperTable

# the main metric of a task, where it is not the loss
METRICS = {"mnist": "accuracy", "timit": "mse", "adding": "mse"}

# metrics of which larger values are better
LARGER_IS_BETTER = {"accuracy"}

# options of a task that do not change it: where data lies, and what else is measured
PLACES = {"root", "folder", "scores"}

# options that change how a number is chosen, not the task: the paper's still applies
CHOICES = {"validation", "held_out"}


@dataclass(frozen=True)
class ReportedExperiment:
    """Runs that may be compared: same task, same options of it.

    Attributes:
        key: short name, which names files.
        title: heading of its part of the report.
        metric: what the table compares: "accuracy", "mse" or "loss".
        runs: in the order given.
        paper: the paper's table or figure, if it has one.
    """

    key: str
    title: str
    metric: str
    runs: tuple[Run, ...]
    paper: PaperTable | None = None

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The runs, grouped where they differ in their seeds alone."""
        return groups(self.runs)

    @cached_property
    def singles(self) -> tuple[Group, ...]:
        """Each run by itself."""
        return tuple(Group((run,)) for run in self.runs)

    @property
    def baseline(self) -> float | None:
        """Loss of the trivial solution, as the runs or the task know it."""
        found = (as_number(run.summary.get("baseline")) for run in self.runs)
        known = (value for value in found if value is not None)
        return next(known, _baseline(self.runs[0].config))


def experiments(runs: Iterable[Run]) -> list[ReportedExperiment]:
    """Runs by task and its options, in the order in which they first appear.

    Args:
        runs: any.

    Returns:
        One experiment for each task with its options.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        options = sorted(_options(run.config).items())
        groups.setdefault(f"{run.config['task']} {options}", []).append(run)
    keys: list[str] = []
    found = []
    for members in groups.values():
        config = members[0].config
        key, title = name_of(config)
        other = unusual(config)
        paper = None if other.keys() - CHOICES else PAPER.get(key)
        title += "".join(f", {name.replace('_', ' ')} {v}" for name, v in other.items())
        # a run may have any name, and names of files are made of it
        key = re.sub(r"[^\w.+=-]+", "_", key)
        keys.append(key)
        if (nth := keys.count(key)) > 1:
            key = f"{key}-{nth}"
        found.append(
            ReportedExperiment(key, title, _metric(members), tuple(members), paper)
        )
    return found


def name_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """Key and title of the experiment to which a run belongs.

    Args:
        config: `config.json` of the run.

    Returns:
        For example "copying-1000" and "Copying memory, lag 1000".
    """
    task, options = str(config["task"]), _options(config)
    if task == "copying" and "lag" in options:
        return f"copying-{options['lag']}", f"Copying memory, lag {options['lag']}"
    if task == "adding" and "length" in options:
        length = options["length"]
        return f"adding-{length}", f"Adding problem, length {length}"
    if task == "mnist":
        key, name = "mnist", "MNIST"
        if options.get("dataset") == "fashion-mnist":
            key, name = "fashion-mnist", "Fashion-MNIST"
        if options.get("permute"):
            key, name = f"p{key}", f"permuted {name}"
        return key, f"Pixel by pixel, {name}"
    if task == "timit":
        return "timit", "Speech prediction, TIMIT"
    return task, task.capitalize()


# options that the name of an experiment already tells
_NAMED = {
    "copying": {"lag"},
    "adding": {"length"},
    "mnist": {"permute", "dataset"},
}


def unusual(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options that differ from the paper's, and that the name does not tell.

    Args:
        config: `config.json` of a run.

    Returns:
        Values by name; empty for a task that we do not know.
    """
    from isometry.lab.tasks import TASKS

    task = str(config["task"])
    if task not in TASKS:
        return {}
    usual = {field.name: field.default for field in fields(TASKS[task])}
    return {
        name: value
        for name, value in _options(config).items()
        if name not in _NAMED.get(task, ()) and value != usual.get(name)
    }


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    options = config.get("task_options") or {}
    return {name: value for name, value in options.items() if name not in PLACES}


def _metric(runs: list[Run]) -> str:
    wanted = METRICS.get(str(runs[0].config["task"]), "loss")
    measured = any(wanted in record for run in runs for record in run.records)
    return wanted if measured else "loss"


def _baseline(config: Mapping[str, Any]) -> float | None:
    """Baseline of the task, for runs that have not written a summary."""
    from isometry.lab.tasks import TASKS

    task = TASKS.get(str(config["task"]))
    if task is None:
        return None
    try:
        return task(**(config.get("task_options") or {})).baseline
    except (TypeError, ValueError, OSError):
        # options of another version, or data that is not here
        return None


# records of the end of training that are taken together: one batch is noisy
LAST = 5


@dataclass(frozen=True)
class Result:
    r"""What a run reached; None for what it has not measured.

    Attributes:
        chosen: the metric on the test set at the best validation.
        best: the best metric on the test set, chosen on the test set itself.
        loss: median of the last losses of training.
        orthogonality: the largest $\lVert Q^H Q - I \rVert$ of all records.
        parameters: how many the network learns.
    """

    chosen: float | None
    best: float | None
    loss: float | None
    orthogonality: float | None
    parameters: int | None


def result_of(run: Run, metric: str) -> Result:
    """The numbers of a run.

    Args:
        run: finished or not.
        metric: "accuracy", "mse" or "loss".

    Returns:
        Its numbers.
    """
    better = max if metric in LARGER_IS_BETTER else min
    _, test = run.curve(metric, "test")
    _, loss = run.curve("loss", "train")
    measured = (run.summary, *run.records)
    drift = [as_number(found.get("orthogonality")) for found in measured]
    return Result(
        chosen=at_best(run, metric, metric),
        best=better(test, default=None),
        loss=median(loss[-LAST:]) if loss else None,
        orthogonality=max((d for d in drift if d is not None), default=None),
        parameters=run.summary.get("parameters"),
    )


def at_best(run: Run, metric: str, what: str) -> float | None:
    """A number of the test set at the step of the best validation.

    Args:
        run: finished or not.
        metric: what chooses the step: "accuracy", "mse" or "loss".
        what: the number, which may be another.

    Returns:
        Its value; None if it was not measured there.
    """
    better = max if metric in LARGER_IS_BETTER else min
    steps, validation = run.curve(metric, "validation")
    if not validation:
        return None
    at = steps[validation.index(better(validation))]
    return dict(zip(*run.curve(what, "test"), strict=True)).get(at)
