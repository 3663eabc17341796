"""The command `python -m tools.reproduction`; see the docstring of the package."""

import argparse
import json
from pathlib import Path

from tools.reproduction import (
    chart,
    charts,
    experiments,
    figures,
    rebase_page,
    records,
)
from tools.reproduction.page import page

DOCS = Path("docs")
ASSETS = DOCS / "assets" / "reproduction"


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m tools.reproduction")
    commands = parser.add_subparsers(dest="command", required=True)
    finished = commands.add_parser(
        "record", help="thin finished runs into records/runs"
    )
    finished.add_argument("runs", type=Path, help="folder of `isometry reproduce`")
    carry = commands.add_parser(
        "carry", help="copy unfinished runs, with checkpoints, to records/unfinished"
    )
    carry.add_argument("runs", type=Path, help="folder of `isometry reproduce`")
    measure = commands.add_parser("measure", help="make a small experiment")
    measure.add_argument("name", choices=experiments.EXPERIMENTS)
    commands.add_parser(
        "page", help="write the pages that records make, and their figures"
    )
    options = parser.parse_args()
    if options.command in ("record", "carry"):
        folders = sorted(path.parent for path in options.runs.glob("*/config.json"))
        keep = records.write if options.command == "record" else records.carry
        for path in keep(folders):
            print(path)
        return
    if options.command == "measure":
        print(experiments.write(options.name))
        return
    every, measured = records.read(), experiments.read()
    how_to = DOCS / "how-to" / "rebase.md"
    how_to.write_text(rebase_page.updated(how_to.read_text(), measured["rebase"]))
    rebase_page.draw(measured["rebase"], ASSETS / "rebase.svg")
    drawn = list(charts.charts(every, measured))
    (DOCS / "reproduction.md").write_text(page(every, measured, drawn))
    figures.draw(drawn, ASSETS)
    (ASSETS / "data.json").write_text(json.dumps(chart.data(drawn)) + "\n")


if __name__ == "__main__":
    main()
