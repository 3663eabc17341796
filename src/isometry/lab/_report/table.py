"""The results of an experiment beside the paper's, as rows of text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from isometry.lab._report.experiments import ReportedExperiment, at_best, result_of
from isometry.lab._report.looks import Look, looks, network_label
from isometry.lab._report.runs import Group, Run, as_number
from isometry.lab.paper.tables import Row

DASH = "–"

# with spaces that do not break
DRIFT = "‖QᴴQ\u00a0−\u00a0I‖"


@dataclass(frozen=True)
class TableRow:
    """A row: runs, or what the paper has and nobody has run yet.

    Attributes:
        cells: one a column.
        look: how the figures draw the runs; None for a row of the paper alone.
        best: whether no other row is better.
    """

    cells: tuple[str, ...]
    look: Look | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Columns and rows; `result` is the number of the column that is compared."""

    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    result: int


def results_table(experiment: ReportedExperiment) -> Table:
    """The table of an experiment; runs that differ in their seeds alone are one row.

    Args:
        experiment: the runs.

    Returns:
        A row for each group, then one for each row of the paper without a run.
    """
    table = _table(experiment, experiment.groups)
    done = {(run.model, run.hidden_size) for run in experiment.runs}
    paper = experiment.paper.rows if experiment.paper else ()
    blank = dict.fromkeys(table.columns, DASH) | {"Status": "not run"}
    missing = [
        blank
        | {"Network": network_label(row.model), "n": f"{row.hidden_size}"}
        | _paper_cells(row)
        for row in paper
        if (row.model, row.hidden_size) not in done
    ]
    rows = (TableRow(tuple(cells.values())) for cells in missing)
    return replace(table, rows=(*table.rows, *rows))


def runs_table(experiment: ReportedExperiment) -> Table | None:
    """Each run by itself, where the table of the experiment has means of several.

    Args:
        experiment: the runs.

    Returns:
        A row for each run; None if the other table has them already.
    """
    if len(experiment.groups) == len(experiment.runs):
        return None
    return _table(experiment, experiment.singles)


def _table(experiment: ReportedExperiment, groups: Sequence[Group]) -> Table:
    """A row for each group. All rows have the same headings."""
    top = best_group(experiment, groups)
    rows, columns = [], ()
    for group, look in zip(groups, looks(groups), strict=True):
        cells = _cells(
            experiment, group, look, several=len(groups) < len(experiment.runs)
        )
        rows.append(TableRow(tuple(cells.values()), look, best=group is top))
        columns = tuple(cells)
    return Table(columns, tuple(rows), result=3)


def _cells(
    experiment: ReportedExperiment, group: Group, look: Look, *, several: bool
) -> dict[str, str]:
    """The cells of a row by heading.

    Args:
        experiment: the runs of all rows.
        group: the runs of this row.
        look: how the figures draw them.
        several: whether a row of the table has several seeds.
    """
    first, counted, paper = group.first, group.counted, experiment.paper
    name = ", ".join(filter(None, (network_label(first.model), look.note)))
    cells = {"Network": name, "n": str(first.hidden_size or DASH)}
    cells["Parameters"] = parameters(group)
    for heading, take in _scores(experiment).items():
        cells[heading] = spread(group.values(take))
    if paper and paper.rows:
        cells |= _paper_cells(paper.row(first.model, first.hidden_size))
    if several:
        cells["Seeds"] = group.seeds
    elif len({run.config.get("seed") for run in experiment.runs}) > 1:
        cells["Seed"] = f"{first.config.get('seed')}"
    drift = group.values(lambda run: result_of(run, "loss").orthogonality)
    return cells | {
        "Steps": _steps(group),
        "Time": duration(mean(run.seconds for run in counted)),
        "Per step": pace(counted),
        DRIFT: small(max(drift, default=None)),
        "Status": group.status,
    }


def _paper_cells(row: Row | None) -> dict[str, str]:
    """What the paper prints for a network of a size."""
    result, parameters = (row.result, f"≈ {row.params}") if row else (None, DASH)
    return {"Paper": result or DASH, "Paper’s parameters": parameters}


def compared(experiment: ReportedExperiment, group: Group) -> list[float]:
    """The number of each run that the paper's protocol looks at."""
    name = {"accuracy": "best", "loss": "loss"}.get(experiment.metric, "chosen")
    return group.values(lambda run: getattr(experiment.result(run), name))


def best_group(experiment: ReportedExperiment, groups: Sequence[Group]) -> Group | None:
    """The group with the best mean, if any has one; a diverged one is not good."""
    sign = -1 if experiment.larger_is_better else 1
    scores = [
        (sign * mean(values), number)
        for number, group in enumerate(groups)
        if any(run.status != "diverged" for run in group.runs)
        for values in [compared(experiment, group)]
        if values
    ]
    return groups[min(scores)[1]] if scores else None


def _scores(
    experiment: ReportedExperiment,
) -> dict[str, Callable[[Run], float | None]]:
    """Numbers of a run by heading; first the one that the paper would print."""
    metric, headings, result = experiment.metric, experiment.headings, experiment.result
    others = {
        heading: _other(experiment, name)
        for name, heading in headings.items()
        if name != metric and _measured(experiment, name)
    }
    word = {"mse": "error"}.get(metric, metric)
    at_best = f"Test {word} at best validation"
    if others and metric in headings:
        at_best += f", {headings[metric]}"
    best: dict[str, Callable[[Run], float | None]] = {
        f"Best test {word}": lambda run: result(run).best
    }
    chosen = {at_best: lambda run: result(run).chosen}
    if metric == "accuracy":
        return best | chosen | others
    if metric != "loss":
        return chosen | best | others
    loss = {"Final training loss": lambda run: result(run).loss}
    accuracy = {"Test accuracy at best validation": accuracy_of}
    return loss | (accuracy if _measured(experiment, "accuracy") else {}) | others


def accuracy_of(run: Run) -> float | None:
    """Accuracy on the test set at the best validation accuracy."""
    return result_of(run, "accuracy", larger_is_better=True).chosen


def _measured(experiment: ReportedExperiment, name: str) -> bool:
    """True if a run has a metric or a final score."""
    return any(
        _final(run, name) is not None or any(name in record for record in run.records)
        for run in experiment.runs
    )


def _final(run: Run, name: str) -> float | None:
    """A score of the test set that is measured once, when training ends."""
    scores = run.summary.get("scores") or {}
    return as_number((scores.get("test") or {}).get(name))


def _other(experiment: ReportedExperiment, name: str) -> Callable[[Run], float | None]:
    """Another metric at the best validation, or a final score."""

    def take(run: Run) -> float | None:
        larger = experiment.larger_is_better
        value = at_best(run, experiment.metric, name, larger_is_better=larger)
        return _final(run, name) if value is None else value

    return take


def parameters(group: Group) -> str:
    """Number of parameters, from the first run that has ended."""
    known = (run.summary.get("parameters") for run in group.runs)
    return whole(next((count for count in known if count is not None), None))


def _steps(group: Group) -> str:
    planned = group.first.config.get("iterations")
    found = sorted({run.steps for run in group.counted})
    text = "–".join(whole(steps) for steps in dict.fromkeys((found[0], found[-1])))
    return text if planned is None or found == [planned] else f"{text} of {planned:,}"


def pace(runs: Sequence[Run]) -> str:
    """Mean time of a step."""
    paces = [1e3 * run.seconds / run.steps for run in runs if run.steps]
    return f"{small(mean(paces))} ms" if any(paces) else DASH


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation of a sample; a single value stands alone."""
    if len(values) < 2:
        return small(values[0] if values else None)
    middle, deviation = mean(values), stdev(values)
    text = small(middle)
    if "e" in text:
        return f"{text} ± {deviation:.1e}"
    return (
        f"{text} ± {deviation:.4f}" if abs(middle) < 1 else f"{text} ± {deviation:.2g}"
    )


def whole(value: int | None) -> str:
    """A count with separators."""
    return DASH if value is None else f"{value:,}"


def small(value: float | None) -> str:
    """A number with three or four digits, in powers of ten if it is small or large."""
    if value is None:
        return DASH
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}" if abs(value) < 1 else f"{value:.4g}"
    return f"{value:.1e}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def one_line(text: str) -> str:
    """A text of a run, made safe for Markdown: one line without markup."""
    return " ".join(text.splitlines()).replace("<", "&lt;")


def markdown(table: Table) -> str:
    """The table in Markdown; the best run is bold."""

    def line(cells: Sequence[str]) -> str:
        kept = (one_line(cell).replace("|", "\\|") for cell in cells)
        return "| " + " | ".join(kept) + " |"

    lines = [line(table.columns), line(["---"] * len(table.columns))]
    for row in table.rows:
        cells = list(row.cells)
        if row.best:
            cells[table.result] = f"**{cells[table.result]}**"
        lines.append(line(cells))
    return "\n".join(lines)
