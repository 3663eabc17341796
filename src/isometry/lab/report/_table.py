"""The results of an experiment beside those of the paper, as rows of text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isometry.lab.report._experiment import LARGER_IS_BETTER, Experiment
from isometry.lab.report._names import Look, looks, network_label
from isometry.lab.report._paper import PaperTable, Row
from isometry.lab.report._results import Result, result_of
from isometry.lab.report._run import Run

DASH = "–"

# with spaces that do not break
DRIFT = "‖QᴴQ\u00a0−\u00a0I‖"


@dataclass(frozen=True)
class TableRow:
    """A row: a run, or what the paper has and nobody has run yet.

    Attributes:
        cells: one a column.
        look: how the figures draw the run; None for a row of the paper alone.
        best: whether no other run is better.
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


# a column: its heading, the cell of a run, and the cell of a row of the paper alone
Column = tuple[str, Callable[[Run, Result], str], Callable[[Row], str]]


def results_table(experiment: Experiment) -> Table:
    """The table of an experiment.

    Args:
        experiment: the runs.

    Returns:
        A row for each run, then one for each row of the paper without a run.
    """
    columns = _columns(experiment)
    results = [result_of(run, experiment.metric) for run in experiment.runs]
    top = best_run(experiment)
    rows = [
        TableRow(
            tuple(cell(run, result) for _, cell, _ in columns), look, best=run is top
        )
        for run, result, look in zip(
            experiment.runs, results, looks(experiment.runs), strict=True
        )
    ]
    done = {(run.model, run.hidden_size) for run in experiment.runs}
    paper = experiment.paper.rows if experiment.paper else ()
    rows += [
        TableRow(tuple(cell(row) for _, _, cell in columns))
        for row in paper
        if (row.model, row.hidden_size) not in done
    ]
    return Table(tuple(heading for heading, *_ in columns), tuple(rows), result=3)


def compared(experiment: Experiment, result: Result) -> float | None:
    """The number of a result that the paper's protocol looks at."""
    return {"accuracy": result.best, "mse": result.chosen}.get(
        experiment.metric, result.loss
    )


def best_run(experiment: Experiment) -> Run | None:
    """The run with the best number, if any has one; a diverged one is not good."""
    sign = -1 if experiment.metric in LARGER_IS_BETTER else 1
    scores = [
        (sign * value, number)
        for number, run in enumerate(experiment.runs)
        if run.status != "diverged"
        for value in [compared(experiment, result_of(run, experiment.metric))]
        if value is not None
    ]
    return experiment.runs[min(scores)[1]] if scores else None


def _columns(experiment: Experiment) -> list[Column]:
    def nothing(_row: Row) -> str:
        return DASH

    columns: list[Column] = [
        ("Network", lambda run, _: network_label(run.model), _label),
        (
            "n",
            lambda run, _: str(run.hidden_size or DASH),
            lambda r: f"{r.hidden_size}",
        ),
        ("Parameters", lambda _, result: whole(result.parameters), nothing),
        *_scores(experiment),
    ]
    if experiment.paper and experiment.paper.rows:
        columns += _paper_columns(experiment.paper)
    seeds = {run.config.get("seed") for run in experiment.runs}
    if len(seeds) > 1:
        columns.append(("Seed", lambda run, _: f"{run.config.get('seed')}", nothing))
    columns += [
        ("Steps", lambda run, _: _steps(run), nothing),
        ("Time", lambda run, _: duration(run.seconds), nothing),
        ("Per step", lambda run, _: _pace(run), nothing),
        (DRIFT, lambda _, result: small(result.orthogonality), nothing),
        ("Status", lambda run, _: run.status, lambda _: "not run"),
    ]
    return columns


def _label(row: Row) -> str:
    return network_label(row.model)


def _scores(experiment: Experiment) -> list[Column]:
    """What the runs reached: first the number that the paper would print."""

    def nothing(_row: Row) -> str:
        return DASH

    def of(name: str) -> Callable[[Run, Result], str]:
        return lambda _, result: small(getattr(result, name))

    if experiment.metric == "accuracy":
        return [
            ("Best test accuracy", of("best"), nothing),
            ("Test accuracy at best validation", of("chosen"), nothing),
        ]
    if experiment.metric == "mse":
        return [
            ("Test error at best validation", of("chosen"), nothing),
            ("Best test error", of("best"), nothing),
        ]
    columns: list[Column] = [("Final training loss", of("loss"), nothing)]
    if any("accuracy" in record for run in experiment.runs for record in run.records):
        columns.append(
            (
                "Test accuracy at best validation",
                lambda run, _: small(result_of(run, "accuracy").chosen),
                nothing,
            )
        )
    return columns


def _paper_columns(paper: PaperTable) -> list[Column]:
    def row_of(run: Run) -> Row | None:
        return paper.row(run.model, run.hidden_size)

    def result(row: Row | None) -> str:
        return row.result or DASH if row else DASH

    def params(row: Row | None) -> str:
        return f"≈ {row.params}" if row else DASH

    return [
        ("Paper", lambda run, _: result(row_of(run)), result),
        ("Paper’s parameters", lambda run, _: params(row_of(run)), params),
    ]


def _steps(run: Run) -> str:
    planned = run.config.get("iterations")
    if planned is None or planned == run.steps:
        return whole(run.steps)
    return f"{whole(run.steps)} of {whole(planned)}"


def _pace(run: Run) -> str:
    if not run.steps or not run.seconds:
        return DASH
    return f"{small(1e3 * run.seconds / run.steps)} ms"


def whole(value: int | None) -> str:
    """A count with separators."""
    return DASH if value is None else f"{value:,}"


def small(value: float | None) -> str:
    """Three digits; powers of ten where zeros would be counted."""
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


def markdown(table: Table) -> str:
    """The table in Markdown; the best run is bold."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [line(table.columns), line(["---"] * len(table.columns))]
    for row in table.rows:
        cells = list(row.cells)
        if row.best:
            cells[table.result] = f"**{cells[table.result]}**"
        lines.append(line(cells))
    return "\n".join(lines)
