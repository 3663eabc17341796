"""The results of an experiment beside the paper's, as rows of text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from isometry.lab._report.experiments import ReportedExperiment, at_best, result_of
from isometry.lab._report.looks import Look, looks, network_label
from isometry.lab._report.runs import Group, Run, as_number
from isometry.lab.paper.tables import PaperTable, Row

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


# a column: its heading, the cell of a group, and the cell of a row of the paper alone
Column = tuple[str, Callable[[Group], str], Callable[[Row], str]]


def results_table(experiment: ReportedExperiment) -> Table:
    """The table of an experiment; runs that differ in their seeds alone are one row.

    Args:
        experiment: the runs.

    Returns:
        A row for each group, then one for each row of the paper without a run.
    """
    columns = _columns(experiment, experiment.groups)
    rows = _rows(experiment, experiment.groups, columns)
    done = {(run.model, run.hidden_size) for run in experiment.runs}
    paper = experiment.paper.rows if experiment.paper else ()
    rows += [
        TableRow(tuple(cell(row) for _, _, cell in columns))
        for row in paper
        if (row.model, row.hidden_size) not in done
    ]
    return Table(tuple(heading for heading, *_ in columns), tuple(rows), result=3)


def runs_table(experiment: ReportedExperiment) -> Table | None:
    """Each run by itself, where the table of the experiment has means of several.

    Args:
        experiment: the runs.

    Returns:
        A row for each run; None if the other table has them already.
    """
    if len(experiment.groups) == len(experiment.runs):
        return None
    columns = _columns(experiment, experiment.singles)
    rows = _rows(experiment, experiment.singles, columns)
    return Table(tuple(heading for heading, *_ in columns), tuple(rows), result=3)


def _rows(
    experiment: ReportedExperiment, groups: Sequence[Group], columns: Sequence[Column]
) -> list[TableRow]:
    top = best_group(experiment, groups)
    rows = []
    for group, look in zip(groups, looks(groups), strict=True):
        name, *cells = (cell(group) for _, cell, _ in columns)
        name = ", ".join(filter(None, (name, look.note)))
        rows.append(TableRow((name, *cells), look, best=group is top))
    return rows


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


def _nothing(_row: Row) -> str:
    return DASH


def _columns(experiment: ReportedExperiment, groups: Sequence[Group]) -> list[Column]:
    columns: list[Column] = [
        (
            "Network",
            lambda group: network_label(group.first.model),
            lambda row: network_label(row.model),
        ),
        (
            "n",
            lambda group: str(group.first.hidden_size or DASH),
            lambda row: f"{row.hidden_size}",
        ),
        ("Parameters", parameters, _nothing),
        *_scores(experiment),
    ]
    if experiment.paper and experiment.paper.rows:
        columns += _paper_columns(experiment.paper)
    if len(groups) < len(experiment.runs):
        columns.append(("Seeds", lambda group: group.seeds, _nothing))
    elif len({run.config.get("seed") for run in experiment.runs}) > 1:
        columns.append(("Seed", lambda g: f"{g.first.config.get('seed')}", _nothing))
    columns += [
        ("Steps", _steps, _nothing),
        ("Time", lambda g: duration(mean(r.seconds for r in g.counted)), _nothing),
        ("Per step", _pace, _nothing),
        (DRIFT, _drift, _nothing),
        ("Status", lambda group: group.status, lambda _: "not run"),
    ]
    return columns


def _scores(experiment: ReportedExperiment) -> list[Column]:
    """What the runs reached: first the number that the paper would print."""
    metric, headings = experiment.metric, experiment.headings

    def of(heading: str, take: Callable[[Run], float | None]) -> Column:
        return heading, lambda group: spread(group.values(take)), _nothing

    others = {
        name: heading
        for name, heading in headings.items()
        if name != metric and _measured(experiment, name)
    }
    word = {"mse": "error"}.get(metric, metric)
    best = of(f"Best test {word}", lambda run: experiment.result(run).best)
    heading = f"Test {word} at best validation"
    if others and metric in headings:
        heading += f", {headings[metric]}"
    chosen = of(heading, lambda run: experiment.result(run).chosen)
    if metric == "accuracy":
        columns = [best, chosen]
    elif metric == "loss":
        columns = [of("Final training loss", lambda run: experiment.result(run).loss)]
        if _measured(experiment, "accuracy"):
            columns.append(of("Test accuracy at best validation", accuracy_of))
    else:
        columns = [chosen, best]
    return columns + [of(text, _other(experiment, n)) for n, text in others.items()]


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


def _paper_columns(paper: PaperTable) -> list[Column]:
    def row_of(group: Group) -> Row | None:
        return paper.row(group.first.model, group.first.hidden_size)

    def result(row: Row | None) -> str:
        return row.result or DASH if row else DASH

    def params(row: Row | None) -> str:
        return f"≈ {row.params}" if row else DASH

    return [
        ("Paper", lambda group: result(row_of(group)), result),
        ("Paper’s parameters", lambda group: params(row_of(group)), params),
    ]


def parameters(group: Group) -> str:
    """Number of parameters, from the first run that has ended."""
    known = (run.summary.get("parameters") for run in group.runs)
    return whole(next((count for count in known if count is not None), None))


def _steps(group: Group) -> str:
    planned = group.first.config.get("iterations")
    found = sorted({run.steps for run in group.counted})
    text = "–".join(whole(steps) for steps in dict.fromkeys((found[0], found[-1])))
    return text if planned is None or found == [planned] else f"{text} of {planned:,}"


def _pace(group: Group) -> str:
    paces = [1e3 * run.seconds / run.steps for run in group.counted if run.steps]
    return f"{small(mean(paces))} ms" if any(paces) else DASH


def _drift(group: Group) -> str:
    """The worst of all runs."""
    found = group.values(lambda run: result_of(run, "loss").orthogonality)
    return small(max(found, default=None))


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
