"""Figures as data, which can be compared without drawing anything."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Series:
    """A line, perhaps with a band around it.

    Attributes:
        label: text in the legend; none if it is empty.
        colour: number in the palette of the reports.
        dashes: line style of matplotlib.
        x: positions on the horizontal axis.
        y: values.
        low: lower edge of the band.
        high: upper edge of the band.
    """

    label: str
    colour: int
    dashes: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """A figure as data.

    Attributes:
        name: name of its file, without the ending.
        caption: text below the figure.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        scale: scale of the vertical axis. The scale "logit" is for accuracies: it
            spreads out the values close to 1.
        series: the lines.
        marks: values that are drawn as thin horizontal lines, by label.
        places: labels of a logarithmic horizontal axis; none if it is linear.
    """

    name: str
    caption: str
    x_label: str
    y_label: str
    scale: Literal["linear", "log", "logit"]
    series: Sequence[Series]
    marks: Mapping[str, float]
    places: Sequence[float] = ()


def data(charts: Sequence[Chart]) -> dict[str, Any]:
    """The plotted numbers, which a test compares without drawing anything."""
    return {chart.name: asdict(chart) for chart in charts}
