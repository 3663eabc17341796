"""Tables of our results alongside the paper's, as rows of text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, stdev
from typing import NamedTuple

from isometry.lab._report.experiments import (
    ReportedExperiment,
    final_loss,
    largest_orthogonality_error,
)
from isometry.lab._report.looks import Look, joined, looks, network_label
from isometry.lab._report.runs import Run, Score, SeedGroup, as_number
from isometry.lab.paper.tables import SOURCE, PaperRow

DASH = "–"

# the spaces are non-breaking, so that the heading stays on one line
ERROR_HEADING = "‖QᴴQ\u00a0−\u00a0I‖\u00a0/\u00a0√n"


class TableRow(NamedTuple):
    """A row for our runs, or for a result of the paper for which we have no run.

    Attributes:
        cells: the texts, keyed by the heading of the column. All rows of a table have
            the same headings.
        look: how the figures draw the runs; None for a row without runs.
        best: heading of the column in which this row has the best result, which is
            written in bold; empty for all other rows.
    """

    cells: dict[str, str]
    look: Look | None = None
    best: str = ""


def results_table(experiment: ReportedExperiment) -> list[TableRow]:
    """The main table of an experiment; runs that differ only in seeds share a row.

    Args:
        experiment: the runs.

    Returns:
        A row for each group of runs, followed by a row for each network and size in the
        paper for which we have no run.
    """
    rows = _table(experiment, experiment.groups)
    done = {(run.model, run.hidden_size) for run in experiment.runs}
    blank = dict.fromkeys(rows[0].cells, DASH) | {"Status": "not run"}
    for row in experiment.paper.rows if experiment.paper else ():
        if (row.model, row.hidden_size) not in done:
            name = {"Network": network_label(row.model), "n": f"{row.hidden_size}"}
            rows.append(TableRow(blank | name | _paper_cells(row)))
    return rows


def runs_table(experiment: ReportedExperiment) -> list[TableRow]:
    """A table with a row for each run, if the main table has means of several runs.

    Args:
        experiment: the runs.

    Returns:
        The rows; empty if the main table already has a row for each run.
    """
    if len(experiment.groups) == len(experiment.runs):
        return []
    return _table(experiment, experiment.singles)


def _table(
    experiment: ReportedExperiment, groups: Sequence[SeedGroup]
) -> list[TableRow]:
    """A table with a row for each group."""
    top = best_group(experiment, groups)
    compared, scores = _scores(experiment)
    several = len(groups) < len(experiment.runs)
    rows = []
    for group, look in zip(groups, looks(groups), strict=True):
        cells = _cells(experiment, scores, group, look, several=several)
        rows.append(TableRow(cells, look, compared if group is top else ""))
    return rows


def _cells(
    experiment: ReportedExperiment,
    scores: Mapping[str, Score],
    group: SeedGroup,
    look: Look,
    *,
    several: bool,
) -> dict[str, str]:
    """The cells of a row, keyed by column heading.

    Args:
        experiment: the runs of all rows.
        scores: the functions that read the numbers in the row, keyed by heading.
        group: the runs of this row.
        look: how the figures draw the group.
        several: whether any row of the table has several seeds.
    """
    first, counted, paper = group.first, group.counted, experiment.paper
    name = joined(network_label(first.model), look.note)
    counts = (run.summary.get("parameters") for run in group.runs)
    parameters = next((f"{count:,}" for count in counts if count is not None), DASH)
    size = str(first.hidden_size or DASH)
    cells = {"Network": name, "n": size, "Parameters": parameters}
    for heading, score in scores.items():
        cells[heading] = spread(group.values(score))
    if paper and paper.rows:
        cells |= _paper_cells(paper.row(first.model, first.hidden_size))
    if several:
        cells["Seeds"] = group.seeds
    elif len({run.config.get("seed") for run in experiment.runs}) > 1:
        cells["Seed"] = f"{first.config.get('seed')}"
    error = max(group.values(largest_orthogonality_error), default=None)
    return cells | {
        "Steps": _steps(group),
        "Time": duration(mean(run.seconds for run in counted)),
        "Per step": _pace(counted),
        ERROR_HEADING: small(error),
        "Status": group.status,
    }


def _paper_cells(row: PaperRow | None) -> dict[str, str]:
    """The cells of a row that quote the paper; dashes if `row` is None."""
    result, parameters = (row.result, f"≈ {row.params}") if row else (None, DASH)
    return {"Paper": result or DASH, "Paper’s parameters": parameters}


def best_group(
    experiment: ReportedExperiment, groups: Sequence[SeedGroup]
) -> SeedGroup | None:
    """The group with the best mean result; None if there is no result.

    A group in which every run diverged cannot be the best.
    """
    score = experiment.comparison.score
    candidates = [
        group
        for group in groups
        if group.values(score) and any(run.status != "diverged" for run in group.runs)
    ]
    return experiment.best(
        candidates, key=lambda g: mean(g.values(score)), default=None
    )


def _scores(experiment: ReportedExperiment) -> tuple[str, dict[str, Score]]:
    """The columns with results.

    Args:
        experiment: the runs.

    Returns:
        The heading of the column by which runs are compared, which is the first column;
        and for each column heading, the function that reads its number from a run.
    """
    metric, headings = experiment.task.metric, experiment.task.headings
    others = {
        heading: partial(_other, experiment, name)
        for name, heading in headings.items()
        if name != metric and _measured(experiment, name)
    }
    place = f", {headings[metric]}" if others and metric in headings else ""
    word = experiment.word
    scores: dict[str, Score] = {
        f"Test {word} at best validation{place}": experiment.at_best_validation,
        f"Best test {word}": experiment.best_test,
        f"Last test {word}": experiment.last_test,
    }
    if metric == "loss":
        scores["Final training loss"] = final_loss
        if _measured(experiment, "accuracy"):
            task = replace(experiment.task, metric="accuracy", larger_is_better=True)
            accuracy = replace(experiment, task=task).at_best_validation
            scores["Test accuracy at best validation"] = accuracy
    score = experiment.comparison.score
    compared = next(heading for heading in scores if scores[heading] == score)
    return compared, {compared: score} | others | scores


def _measured(experiment: ReportedExperiment, name: str) -> bool:
    """True if any run has a metric or final score with this name."""
    return any(
        _final(run, name) is not None or any(name in record for record in run.records)
        for run in experiment.runs
    )


def _final(run: Run, name: str) -> float | None:
    """A score on the test set that is measured once, after training."""
    scores = (run.summary.get("scores") or {}).get("test")
    return as_number(scores.get(name)) if isinstance(scores, Mapping) else None


def _other(experiment: ReportedExperiment, name: str, run: Run) -> float | None:
    """A test metric at the step with the best validation result, or a final score.

    The final score with this name is used if the metric was not measured at that step.
    """
    value = experiment.at_best_validation(run, name)
    return _final(run, name) if value is None else value


def _steps(group: SeedGroup) -> str:
    planned = group.first.config.get("iterations")
    steps = sorted({run.steps for run in group.counted})
    text = "–".join(f"{count:,}" for count in dict.fromkeys((steps[0], steps[-1])))
    return text if planned is None or steps == [planned] else f"{text} of {planned:,}"


def _pace(runs: Sequence[Run]) -> str:
    """Mean time of a training step, in milliseconds."""
    paces = [1e3 * run.seconds / run.steps for run in runs if run.steps]
    return f"{small(mean(paces))} ms" if any(paces) else DASH


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation as text; for a single value, only the value."""
    if len(values) < 2:
        return small(values[0] if values else None)
    middle, deviation = mean(values), stdev(values)
    text = small(middle)
    form = ".4f" if abs(middle) < 1 else ".2g"
    return f"{text} ± {deviation:{'.1e' if 'e' in text else form}}"


def small(value: float | None) -> str:
    """A number as text, and a dash for None.

    Absolute values below 1e-3, except 0, and from 1e4 up are written with an exponent.
    Other values have four decimal places below 1, and four significant digits above.
    """
    if value is None:
        return DASH
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}" if abs(value) < 1 else f"{value:.4g}"
    return f"{value:.1e}"


def duration(seconds: float) -> str:
    """A duration as text, in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def one_line(text: str) -> str:
    """A text on one line, with `<` escaped, for use in Markdown."""
    return " ".join(text.splitlines()).replace("<", "&lt;")


def results(experiments: Iterable[ReportedExperiment]) -> str:
    """The tables of a report in Markdown: the content of `results.md`."""
    parts = []
    for experiment in experiments:
        title = f"## {one_line(experiment.task.title)}"
        parts += [title, markdown(results_table(experiment))]
        if each := runs_table(experiment):
            parts += ["Each run:", markdown(each)]
        if paper := experiment.paper:
            parts.append(f"The paper, {paper.where}: {paper.words} ({SOURCE})")
    return "\n\n".join(parts) + "\n"


def markdown(table: Sequence[TableRow]) -> str:
    """A table in Markdown, with the best result in bold."""

    def escaped(text: str) -> str:
        return one_line(text).replace("|", "\\|")

    rows = []
    for row in table:
        cells = {heading: escaped(cell) for heading, cell in row.cells.items()}
        if row.best:
            cells[row.best] = f"**{cells[row.best]}**"
        rows.append(list(cells.values()))
    return aligned([escaped(heading) for heading in table[0].cells], rows)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, which is readable as plain text."""
    columns = zip(header, *rows, strict=True)
    # a column has at least 2 characters, for the dash and the colon in the rule
    first, *rest = [max(2, *map(len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        right = [cell.rjust(w) for cell, w in zip(cells[1:], rest, strict=True)]
        return "| " + " | ".join([cells[0].ljust(first), *right]) + " |"

    rule = ["-" * first, *("-" * (width - 1) + ":" for width in rest)]
    return "\n".join([line(header), line(rule), *map(line, rows)])
