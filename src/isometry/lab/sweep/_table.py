"""One table of a sweep: a row for each network, means over its seeds."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from isometry.lab.report._experiment import Experiment, experiments
from isometry.lab.report._names import network_label
from isometry.lab.report._results import result_of
from isometry.lab.report._run import Run
from isometry.lab.report._table import (
    DASH,
    Table,
    TableRow,
    markdown,
    one_line,
    small,
    whole,
)
from isometry.lab.sweep._carry_out import WHOLE

# in the name of the row, its cells, or of no matter for what is learned
_KNOWN = ("task", "task_options", "model", "hidden_size", "seed", "command")


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone.

    Attributes:
        runs: all of them.
        options: those of training and of the network, by name.
    """

    runs: tuple[Run, ...]
    options: dict[str, Any]

    @property
    def done(self) -> list[Run]:
        """The runs that came to their end."""
        return [run for run in self.runs if run.status in WHOLE]


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
        rows = group(experiment.runs)
        columns = _columns(experiment, rows)
        cells = [TableRow(tuple(cell(row) for _, cell in columns)) for row in rows]
        made = Table(tuple(heading for heading, _ in columns), tuple(cells), result=0)
        parts += [f"## {one_line(experiment.title)}", markdown(made)]
    return "\n\n".join(parts) + "\n"


def group(runs: Sequence[Run]) -> list[Row]:
    """Runs that differ in their seed alone, taken together.

    Args:
        runs: of one task.

    Returns:
        The rows, in the order in which they first appear.
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        key = {k: v for k, v in run.config.items() if k not in ("seed", "command")}
        found.setdefault(json.dumps(key, sort_keys=True), []).append(run)
    return [Row(tuple(members), _options(members[0])) for members in found.values()]


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation; of one value there is none."""
    if not values:
        return DASH
    if len(values) == 1:
        return small(values[0])
    return f"{small(mean(values))} ± {small(stdev(values))}"


def _options(run: Run) -> dict[str, Any]:
    plain = {k: v for k, v in run.config.items() if k not in _KNOWN}
    return plain | (plain.pop("model_options", None) or {})


def _columns(
    experiment: Experiment, rows: Sequence[Row]
) -> list[tuple[str, Callable[[Row], str]]]:
    names = dict.fromkeys(name for row in rows for name in row.options)
    varied = [n for n in names if len({repr(r.options.get(n)) for r in rows}) > 1]

    def of(name: str) -> Callable[[Row], str]:
        # None stands for what the recipe has
        return lambda row: str(
            DASH if row.options.get(name) is None else row.options[name]
        )

    return [
        ("Network", lambda row: network_label(row.runs[0].model)),
        ("n", lambda row: str(row.runs[0].hidden_size or DASH)),
        *((name.replace("_", " "), of(name)) for name in varied),
        ("Seeds", lambda row: str(len(row.done))),
        *_scores(experiment),
        ("Parameters", _parameters),
        ("Per step", _pace),
        ("Status", _status),
    ]


def _scores(experiment: Experiment) -> list[tuple[str, Callable[[Row], str]]]:
    metric = experiment.metric

    def of(take: Callable[[Run], float | None]) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            found = [take(run) for run in row.done]
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


def _parameters(row: Row) -> str:
    known = (run.summary.get("parameters") for run in row.runs)
    return whole(next((count for count in known if count is not None), None))


def _pace(row: Row) -> str:
    timed = [run for run in row.done or row.runs if run.steps]
    paces = [1e3 * run.seconds / run.steps for run in timed]
    return f"{small(mean(paces))} ms" if paces else DASH


def _status(row: Row) -> str:
    counts = Counter(run.status for run in row.runs)
    return ", ".join(f"{count} {status}" for status, count in counts.items())
