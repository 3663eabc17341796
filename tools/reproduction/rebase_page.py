"""The table and the figure of docs/how-to/rebase.md, from the record of `rebase`."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isometry.lab._report.figures import STYLE, power
from isometry.lab._report.looks import LIGHT

BEGIN, END = "<!-- rebase: generated -->", "<!-- /rebase -->"

Record = Mapping[str, Any]


def updated(page: str, record: Record) -> str:
    """The page with the table of the record between its two marks.

    Args:
        page: text of docs/how-to/rebase.md.
        record: what `tools.reproduction.rebase.rebase` returned.

    Returns:
        The new text.
    """
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(record)}{END}{after}"


def table(record: Record) -> str:
    """A row for each problem, size and optimizer, and the count of verdicts."""
    lines = [
        "| problem, n | optimizer | fixed base | moving base | verdict |",
        "|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        fixed, moving = row["final"]["fixed"], row["final"]["moving"]
        lines.append(
            f"| {row['problem']}, {row['n']} | {row['optimizer']}, {row['rate']:g} "
            f"| {_seeds(fixed)} | {_seeds(moving)} | {verdict(fixed, moving)} |"
        )
    verdicts = [verdict(**row["final"]) for row in record["rows"]]
    counts = {word: verdicts.count(word) for word in ("better", "even", "worse")}
    seeds = len(record["rows"][0]["final"]["fixed"])
    lines.append(
        f"\nFinal loss after {record['steps']} steps, the median of {seeds} seeds and "
        f"their range; the number after the optimizer is its rate. The moving base is "
        f"better where its median is below the whole range of the fixed base, and "
        f"worse where it is above: better in {counts['better']} rows, even in "
        f"{counts['even']}, worse in {counts['worse']}.\n"
    )
    return "\n".join(lines)


def _seeds(losses: Sequence[float]) -> str:
    """Median and range of the final losses of all seeds, as text."""
    median = statistics.median(losses)
    return f"{median:.2g} ({min(losses):.2g} to {max(losses):.2g})"


def verdict(fixed: Sequence[float], moving: Sequence[float]) -> str:
    """Compare the median loss of the moving base with the range of the fixed base."""
    median = statistics.median(moving)
    if median < min(fixed):
        return "better"
    return "worse" if median > max(fixed) else "even"


def draw(record: Record, path: Path) -> None:
    """Draw a panel for each problem, at its larger size."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["problem"] for row in record["rows"]))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 5.0), layout="constrained")
        panels = figure.subplots(2, 3).flat
        for panel, name in zip(panels, names, strict=False):
            rows = [row for row in record["rows"] if row["problem"] == name]
            _paint(panel, [row for row in rows if row["n"] == rows[-1]["n"]])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.supxlabel("steps", fontsize=9)
        figure.supylabel("training loss", fontsize=9)
        panels[-1].axis("off")
        panels[-1].legend(handles, labels, loc="center")
        figure.savefig(path, metadata={"Date": None})


def _paint(panel: Any, rows: Sequence[Record]) -> None:
    from matplotlib.ticker import LogLocator

    for colour, row in enumerate(rows):
        for base, dashes in (("fixed", "--"), ("moving", "-")):
            losses = row["median"][base]
            steps = [10 * (i + 1) for i in range(len(losses))]
            label = f"{row['optimizer']}, {base} base"
            panel.plot(steps, losses, dashes, color=LIGHT[colour], lw=1.2, label=label)
    panel.set_title(f"{rows[0]['problem']}, n = {rows[0]['n']}", fontsize=9)
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    if high > 100 * low:
        panel.yaxis.set_major_formatter(lambda loss, _: power(loss))
    else:
        # a short axis may contain no power of ten, so also label 2 and 5 times a power
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")
    panel.yaxis.set_minor_formatter("")
    panel.tick_params(labelsize=8)
