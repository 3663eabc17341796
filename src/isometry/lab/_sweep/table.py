"""One table of a sweep: a row for each network, means over its seeds."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from isometry.lab._report.experiments import Experiment, experiments, result_of
from isometry.lab._report.looks import network_label
from isometry.lab._report.runs import Group, Run
from isometry.lab._report.table import (
    DASH,
    Table,
    TableRow,
    markdown,
    one_line,
    parameters,
    small,
    spread,
)
from isometry.lab._sweep.engine import WHOLE

Column = tuple[str, Callable[[Group], str]]

# in the name of the row, its cells, or of no matter for what is learned
_KNOWN = (
    *("task", "task_options", "model", "hidden_size", "seed", "command"),
    *("format", "recipe"),
)


def table(runs: Sequence[Run]) -> str:
    r"""The runs of a sweep in Markdown, a table for each task.

    A number is $\bar m \pm s$ over the seeds that came to their end, with

    $$ s^2 = \frac{1}{N - 1} \sum_i (m_i - \bar m)^2. $$

    Args:
        runs: of any tasks; in the order of the rows.

    Returns:
        The text.
    """
    parts = []
    for experiment in experiments(runs):
        columns, groups = _columns(experiment), experiment.groups
        rows = [TableRow(tuple(cell(group) for _, cell in columns)) for group in groups]
        made = Table(tuple(heading for heading, _ in columns), tuple(rows), result=0)
        parts += [f"## {one_line(experiment.title)}", markdown(made)]
    return "\n\n".join(parts) + "\n"


def _done(group: Group) -> list[Run]:
    """The runs that came to their end."""
    return [run for run in group.runs if run.status in WHOLE]


def _options(group: Group) -> dict[str, Any]:
    plain = {k: v for k, v in group.first.config.items() if k not in _KNOWN}
    return plain | (plain.pop("model_options", None) or {})


def _columns(experiment: Experiment) -> list[Column]:
    options = [_options(group) for group in experiment.groups]
    names = dict.fromkeys(name for found in options for name in found)
    varied = [n for n in names if len({repr(found.get(n)) for found in options}) > 1]

    def of(name: str) -> Callable[[Group], str]:
        # None stands for what the recipe has
        def cell(group: Group) -> str:
            value = _options(group).get(name)
            return DASH if value is None else str(value)

        return cell

    return [
        ("Network", lambda group: network_label(group.first.model)),
        ("n", lambda group: str(group.first.hidden_size or DASH)),
        *((name.replace("_", " "), of(name)) for name in varied),
        ("Seeds", lambda group: str(len(_done(group)))),
        *_scores(experiment),
        ("Parameters", parameters),
        ("Per step", _pace),
        ("Status", _status),
    ]


def _scores(experiment: Experiment) -> list[Column]:
    metric = experiment.metric

    def of(take: Callable[[Run], float | None]) -> Callable[[Group], str]:
        def cell(group: Group) -> str:
            found = [take(run) for run in _done(group)]
            return spread([value for value in found if value is not None])

        return cell

    columns = [
        (f"Test {metric} at best validation", of(lambda r: result_of(r, metric).chosen))
    ]
    records = (record for run in experiment.runs for record in run.records)
    if metric == "loss" and any("accuracy" in record for record in records):
        columns.append(
            (
                "Test accuracy at best validation",
                of(lambda r: result_of(r, "accuracy").chosen),
            )
        )
    return [
        *columns,
        (f"Best test {metric}", of(lambda run: result_of(run, metric).best)),
        (f"Last test {metric}", of(lambda run: _last(run, metric))),
    ]


def _last(run: Run, metric: str) -> float | None:
    _, values = run.curve(metric, "test")
    return values[-1] if values else None


def _pace(group: Group) -> str:
    timed = [run for run in _done(group) or group.runs if run.steps]
    paces = [1e3 * run.seconds / run.steps for run in timed]
    return f"{small(mean(paces))} ms" if paces else DASH


def _status(group: Group) -> str:
    counts = Counter(run.status for run in group.runs)
    return ", ".join(f"{count} {status}" for status, count in counts.items())
