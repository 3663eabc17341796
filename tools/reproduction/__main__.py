"""`python -m tools.reproduction`, with `record RUNS` or `page`."""

import argparse
import json
from pathlib import Path

from tools.reproduction import charts, figures, records
from tools.reproduction.page import page

DOCS = Path("docs")
ASSETS = DOCS / "assets" / "reproduction"


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="python -m tools.reproduction")
    commands = parser.add_subparsers(dest="command", required=True)
    keep = commands.add_parser("record", help="thin finished runs into records/runs")
    keep.add_argument("runs", type=Path, help="folder of `isometry reproduce`")
    commands.add_parser("page", help="write docs/reproduction.md and its figures")
    options = parser.parse_args()
    if options.command == "record":
        folders = sorted(path.parent for path in options.runs.glob("*/config.json"))
        for path in records.write(folders):
            print(path)
        return
    known = records.read()
    drawn = list(charts.charts(known))
    (DOCS / "reproduction.md").write_text(page(known, drawn))
    figures.draw(drawn, ASSETS)
    (ASSETS / "data.json").write_text(json.dumps(charts.data(drawn)) + "\n")


if __name__ == "__main__":
    main()
