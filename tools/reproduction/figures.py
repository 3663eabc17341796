"""Draw the charts of `tools.reproduction.charts` as SVG files."""

import math
from collections.abc import Sequence
from pathlib import Path

from isometry.lab._report.figures import INK, STYLE, power
from isometry.lab._report.looks import LIGHT
from tools.reproduction.chart import Chart

# where the vertical axis of a figure of accuracies may have labels
ACCURACIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98)


def draw(charts: Sequence[Chart], folder: Path) -> None:
    """Write each figure as SVG.

    Args:
        charts: the figures as data.
        folder: the folder of the files.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(7.5, 4.4), layout="constrained")
            paint(chart, figure.add_subplot())
            # leave the date out, so that the same records give the same file
            figure.savefig(folder / f"{chart.name}.svg", metadata={"Date": None})


def paint(chart: Chart, axes) -> None:
    """Draw one figure."""
    for line in chart.series:
        colour = LIGHT[line.colour]
        axes.plot(line.x, line.y, line.dashes, color=colour, label=line.label, lw=1.4)
        if line.low:
            axes.fill_between(
                line.x, line.low, line.high, color=colour, alpha=0.15, lw=0
            )
    for name, value in chart.marks.items():
        axes.axhline(value, color=INK, lw=0.8, ls=(0, (1, 2)))
        place = axes.get_yaxis_transform()
        axes.text(1, value, f" {name}", va="center", fontsize=8, transform=place)
    axes.set_yscale(chart.scale)
    if chart.scale == "log":
        axes.yaxis.set_major_formatter(lambda y, _: power(y))
        axes.yaxis.set_minor_formatter("")
    if chart.scale == "logit":
        # ticks outside the limits would extend them
        low, high = axes.get_ylim()
        ticks = _apart([y for y in ACCURACIES if low <= y <= high], low, high)
        axes.set_yticks(ticks, [f"{y:g}" for y in ticks])
        axes.set_yticks([], minor=True)
    if chart.places:
        axes.set_xscale("log")
        axes.set_xticks(chart.places, [f"{place:g}" for place in chart.places])
        axes.xaxis.set_minor_formatter("")
        axes.minorticks_off()
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _apart(values: Sequence[float], low: float, high: float) -> list[float]:
    """The rising values without those whose labels would overlap on a logit axis."""

    def height(value: float) -> float:
        return math.log(value / (1 - value))

    # the labels of a figure of this size need a twentieth of its height
    least = (height(high) - height(low)) / 20
    kept: list[float] = []
    for value in values:
        if not kept or height(value) - height(kept[-1]) >= least:
            kept.append(value)
    return kept
