"""`isometry report RUN...`."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command.

    Args:
        parser: that of `isometry report`.
    """
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the report (default: `report` beside the first run)",
    )


def main(options: argparse.Namespace) -> int:
    """Write the report and print its path.

    Args:
        options: of the command line.

    Returns:
        The exit code: 2 if a folder is no run, or the report cannot be written.
    """
    from isometry.lab.report._write import write

    out = options.out or options.runs[0].resolve().parent / "report"
    # a shell's DIR/* names the reports before, and the files of a sweep
    runs = [path for path in options.runs if not _lies_beside(path)]
    try:
        page = write(runs, out)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"isometry report: {error}\n")
        return 2
    sys.stdout.write(f"{page}\n")
    return 0


def _lies_beside(path: Path) -> bool:
    # `isometry reproduce` has a report for each figure
    reports = (*path.glob("report.html"), *path.glob("*/report.html"))
    return path.is_file() or (bool(reports) and not (path / "config.json").is_file())
