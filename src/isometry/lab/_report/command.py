"""The command `isometry report RUN...`, which makes a report from folders of runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from isometry.lab._files import CONFIG
from isometry.lab._report.experiments import experiments
from isometry.lab._report.runs import read_run
from isometry.lab._report.table import results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `isometry report` to its parser."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run or a sweep"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the report (default: `report` next to the first run)",
    )


def main(options: argparse.Namespace) -> int:
    """Write the report and print its path.

    Args:
        options: options of the command line.

    Returns:
        The exit code: 0, or 2 if a folder contains no run, a file is damaged, or the
        report cannot be written.
    """
    # The shell expands DIR/* to runs, but also to earlier reports and the files of a
    # sweep. Leave out these reports and files. If there are no runs at all, keep them,
    # so that the error from `write_report` can name one of them.
    runs = [path for path in options.runs if not _is_other(path)] or options.runs
    out = options.out or _runs_in(runs[0])[0].resolve().parent / "report"
    try:
        page = write_report(runs, out)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"isometry report: {error}\n")
        return 2
    sys.stdout.write(f"{page}\n")
    return 0


def _is_other(path: Path) -> bool:
    """True for a file, and for a folder that has an earlier report but no runs."""
    # also look in subfolders, where earlier versions of `isometry reproduce` wrote
    # reports
    reports = (*path.glob("report.html"), *path.glob("*/report.html"))
    runs = (*path.glob(CONFIG), *path.glob(f"*/{CONFIG}"))
    return path.is_file() or (bool(reports) and not runs)


def _runs_in(path: Path) -> list[Path]:
    """The folders of a sweep's runs; for any other folder, only the folder itself."""
    runs = sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
    return runs if runs and not (path / CONFIG).is_file() else [path]


def write_report(runs: Sequence[Path | str], out: Path | str) -> Path:
    """Write a report on runs: an HTML page, figures and tables.

    `report.html` is self-contained. The figures are also written as SVG and PNG files,
    and the tables as `results.md`. Existing files with the same names are overwritten.

    Args:
        runs: folders that `isometry train` or `isometry sweep` wrote. Runs need not be
            finished.
        out: folder of the report; created if it does not exist.

    Returns:
        The path of the page.

    Raises:
        ValueError: if `runs` is empty, or a folder contains no run or a damaged file.
    """
    if not runs:
        raise ValueError(
            "`runs` must name at least one folder; got none. Train a network first, "
            "with `isometry train`."
        )
    # read all runs before writing anything, so that an error leaves nothing behind
    folders = [folder for path in runs for folder in _runs_in(Path(path))]
    reported = experiments([read_run(folder) for folder in folders])
    # import these modules only when there is something to draw
    from isometry.lab._report.figures import draw
    from isometry.lab._report.page import page

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    parts = [(experiment, draw(experiment, out)) for experiment in reported]
    (out / "results.md").write_text(results(reported), encoding="utf-8")
    html = out / "report.html"
    html.write_text(page(parts), encoding="utf-8")
    return html
