"""From folders of runs to a report."""

from collections.abc import Sequence
from pathlib import Path

from isometry.lab.report._experiment import Experiment, experiments
from isometry.lab.report._paper import SOURCE
from isometry.lab.report._run import read_run
from isometry.lab.report._table import markdown, one_line, results_table, runs_table


def write(runs: Sequence[Path], out: Path) -> Path:
    """Write a report of runs: a page, its figures, its tables.

    `report.html` needs no other file; the figures lie beside it as SVG and PNG, the
    tables in `results.md`. Files of an earlier report are replaced.

    Args:
        runs: folders that `isometry train` wrote, finished or not.
        out: folder of the report; made if it is missing.

    Returns:
        The path of the page.

    Raises:
        ValueError: if there is no run, or a folder holds none.
    """
    if not runs:
        raise ValueError(
            "`runs` must name at least one folder; got none. Train one first, with "
            "`isometry train`."
        )
    # all are read before anything is written
    found = experiments([read_run(Path(path)) for path in runs])
    # matplotlib and its start of a second are for those who draw
    from isometry.lab.report._figures import draw
    from isometry.lab.report._page import page

    out.mkdir(parents=True, exist_ok=True)
    parts = [(experiment, draw(experiment, out)) for experiment in found]
    (out / "results.md").write_text(_markdown(found), encoding="utf-8")
    html = out / "report.html"
    html.write_text(page(parts), encoding="utf-8")
    return html


def _markdown(found: Sequence[Experiment]) -> str:
    parts = []
    for experiment in found:
        parts += [f"## {one_line(experiment.title)}"]
        parts += [markdown(results_table(experiment))]
        each = runs_table(experiment)
        if each is not None:
            parts += ["Each run:", markdown(each)]
        paper = experiment.paper
        if paper is not None:
            parts.append(f"The paper, {paper.where}: {paper.words()} ({SOURCE})")
    return "\n\n".join(parts) + "\n"
