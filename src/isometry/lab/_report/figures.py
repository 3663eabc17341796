"""Draws the figures of an experiment with matplotlib."""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from isometry.lab._files import for_file_name
from isometry.lab._report.experiments import ReportedExperiment
from isometry.lab._report.looks import Look, looks
from isometry.lab._report.runs import Curve, Run, SeedGroup, numbers

INK, GRID, PAGE = "#1f2933", "#d9dee5", "#fffffe"

# size of a figure in inches, if its legend has at most three rows
WIDTH, HEIGHT = 4.5, 3.7

# A vertical axis is logarithmic if the ratio of the largest value to the smallest
# positive value exceeds this number. The axis of the orthogonality error is always
# logarithmic.
LOG_RATIO = 30

UNITS = {"step": "iterations", "seconds": "seconds"}

# number of equal arcs into which the unit circle is cut to count eigenvalues
ANGLE_BINS = 32

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.facecolor": PAGE,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": PAGE,
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.facecolor": PAGE,
    # write text as text and not as outlines, so that it can be searched
    "svg.fonttype": "none",
    # a fixed salt for the ids in an SVG file, so that the same runs give the same file
    "svg.hashsalt": "isometry",
    "text.color": INK,
    # a dollar sign in the name of a network must not start a formula
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


# Maximum number of points in a drawn curve. More points could not be told apart at the
# width of a figure, and drawing all 4000 steps of a run would give megabytes of SVG.
MOST = 240


def thinned(curve: Curve, most: int = MOST) -> Curve:
    """A curve with at most `most` points, whose range still covers all values.

    The curve is cut into at most `most` parts with equally many points; the last part
    may have fewer. Each part becomes one point.

    Args:
        curve: the curve, with its positions in order.
        most: maximum number of points in the result.

    Returns:
        The new curve. Each of its points has the last position in its part, the median
        of the middle values, the lowest value and the highest value.
    """
    size = -(-len(curve.x) // most) or 1
    parts = [slice(start, start + size) for start in range(0, len(curve.x), size)]
    return Curve(
        [curve.x[part][-1] for part in parts],
        [median(curve.middle[part]) for part in parts],
        [min(curve.low[part]) for part in parts],
        [max(curve.high[part]) for part in parts],
    )


class Figure(NamedTuple):
    """A figure on disk, in the same folder as the page that shows it.

    Attributes:
        caption: what the figure shows, in one or more sentences.
        svg: path of the SVG file. The PNG file is in the same folder.
    """

    caption: str
    svg: Path


def draw(experiment: ReportedExperiment, folder: Path) -> list[Figure]:
    """Draw all figures for which an experiment has data.

    Args:
        experiment: the runs to draw.
        folder: where to write the files.

    Returns:
        The figures. Each was written as an SVG and a PNG file.
    """
    figures = []
    for panel in _panels(experiment):
        svg = folder / f"{experiment.task.key}-{for_file_name(panel.name)}.svg"
        # avoid pyplot, which keeps global state, opens windows and holds on to memory
        with mpl.rc_context(STYLE):
            canvas = Canvas(figsize=(WIDTH, HEIGHT), layout="constrained")
            axes = canvas.add_subplot()
            panel.paint(axes)
            _legend(axes)
            # compute the layout once, for both files
            canvas.draw_without_rendering()
            canvas.set_layout_engine("none")
            # leave the date out, so that the same runs give the same file
            canvas.savefig(svg, metadata={"Date": None})
            canvas.savefig(svg.with_name(f"{svg.stem}.png"), dpi=160)
        figures.append(Figure(panel.caption, svg))
    return figures


class Quantity(NamedTuple):
    """What a figure shows: a quantity on a data split, against steps or seconds.

    If there is a baseline, it is drawn as a horizontal line.
    """

    what: str
    split: str | None
    against: str = "step"
    baseline: float | None = None


class Panel(NamedTuple):
    """A figure to draw: its name in file names, its caption, and what draws it."""

    name: str
    caption: str
    paint: Callable[[Axes], None]


LOSS_CAPTION = (
    "Training loss against {} of training. Lines show medians, and shaded bands the "
    "range around them; a cross marks a run that diverged."
)
SEEDS_CAPTION = (
    " With several seeds, the line is their mean and the shaded band their range."
)
ERROR_CAPTION = "How far the recurrent matrix is from being orthogonal during training."
ANGLES_CAPTION = (
    "Angles of the eigenvalues of the recurrent matrix after training. For random "
    "orthogonal matrices, the angles are almost uniformly distributed."
)


def _panels(experiment: ReportedExperiment) -> Iterator[Panel]:
    """The figures for which there is data."""
    runs, groups, metric = experiment.runs, experiment.groups, experiment.task.metric
    seeds = SEEDS_CAPTION if len(groups) < len(runs) else ""

    def curves(name: str, caption: str, quantity: Quantity) -> Iterator[Panel]:
        if _has(runs, quantity.what, quantity.split):
            yield Panel(name, caption + seeds, partial(_curves, groups, quantity))

    for against, unit in UNITS.items():
        loss = Quantity("loss", "train", against, experiment.task.baseline)
        yield from curves(f"loss-{unit}", LOSS_CAPTION.format(unit), loss)
    # show results on the test set, as in the paper, or else on the validation set
    split = "test" if _has(runs, metric, "test") else "validation"
    result = Quantity(metric, split, baseline=experiment.baseline_of_metric)
    words = _words(result)
    caption = f"{words[0].upper()}{words[1:]} against iterations."
    yield from curves(f"{metric}-{split}", caption, result)
    error = Quantity("orthogonality", None)
    yield from curves("orthogonality", ERROR_CAPTION, error)
    if any(_angles(run) for run in runs):
        yield Panel("angles", ANGLES_CAPTION, partial(_spectra, groups))


def _has(runs: Sequence[Run], what: str, split: str | None) -> bool:
    return any(run.curve(what, split) for run in runs)


def _words(quantity: Quantity) -> str:
    what, split = quantity.what, quantity.split
    if what == "orthogonality":
        return "error ‖QᴴQ − I‖ / √n"
    name = {"mse": "mean squared error"}.get(what, what)
    return f"{'training' if split == 'train' else split} {name}"


def _curves(groups: Sequence[SeedGroup], quantity: Quantity, axes: Axes) -> None:
    """Draw a curve for each group, a cross for each diverged run, and the baseline."""
    what, split, against, baseline = quantity
    for group, look in zip(groups, looks(groups), strict=True):
        curve = group.curve(what, split, against=against)
        if curve.x:
            _curve(axes, curve, look)
        for run in group.runs:
            if run.status == "diverged":
                curve = SeedGroup((run,)).curve(what, split, against=against)
                _cross(axes, curve, look)
    if baseline is not None:
        label = f"baseline {baseline:.4g}"
        axes.axhline(baseline, color=INK, lw=1, ls=(0, (1, 2)), label=label)
    axes.set(xlabel=UNITS[against], ylabel=_words(quantity))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.6g}")
    # steps are whole numbers, so put no ticks between them
    axes.locator_params(axis="x", nbins=6, integer=against == "step")
    _scale(axes, always=what == "orthogonality")


def _curve(axes: Axes, curve: Curve, look: Look) -> None:
    """Draw a curve and, if there is one, the range around it."""
    x, middle, low, high = thinned(curve)
    # networks that share a colour are told apart by a few markers on their lines
    every = max(1, len(x) // 6)
    markers: dict[str, Any] = {"marker": look.marker, "markevery": every, "ms": 4.5}
    axes.plot(x, middle, lw=1.6, label=look.label, **look.line, **markers)
    if low != high:
        axes.fill_between(x, low, high, color=look.line["color"], alpha=0.18, lw=0)


def _cross(axes: Axes, curve: Curve, look: Look) -> None:
    """Draw a diverged run as a thin line that ends in a cross."""
    points = thinned(curve)
    axes.plot(points.x, points.middle, lw=0.8, **look.line)
    x, y = curve.x[-1:], curve.middle[-1:]
    axes.plot(x, y, color=look.line["color"], marker="x", ms=10, mew=2.5)


def _scale(axes: Axes, *, always: bool) -> None:
    """Make the vertical axis logarithmic if `always` or if the values vary widely.

    If no value is positive, the axis stays linear.
    """
    # The smallest positive value and the largest value that are drawn. If no value is
    # positive, `low` is infinite.
    low, high = axes.dataLim.minposy, axes.dataLim.ymax
    if high < low or (high <= LOG_RATIO * low and not always):
        return
    axes.set_yscale("log")
    if high < 10 * low:
        # show at least a decade, so that a power of ten lies on the axis
        middle = math.floor(math.log10(low))
        axes.set_ylim(10.0**middle, 10.0 ** max(middle + 1, math.log10(high) + 0.1))
    axes.yaxis.set_major_formatter(lambda y, _: power(y))
    axes.yaxis.set_minor_formatter(lambda *_: "")
    if not always and high < 100 * low:
        # Ticks at powers of ten would give only one or two labels. So put ticks also at
        # 2 and 5 times each power.
        axes.set_yticks([m * 10.0**e for e in range(-9, 9) for m in (1, 2, 5)])
        axes.set_ylim(0.8 * low, 1.25 * high)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.6g}")


def power(y: float) -> str:
    """The power of ten nearest to `y`, as Unicode text.

    By default, matplotlib writes exponents as mathtext, which browsers misplace.
    """
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    exponent = round(math.log10(y))
    return "10" + str(exponent).translate(raised)


def _angles(run: Run) -> list[float]:
    return numbers(run.summary.get("angles") or ())


def _spectra(groups: Sequence[SeedGroup], axes: Axes) -> None:
    """Draw the density of the eigenvalues' angles for each group."""
    for group, look in zip(groups, looks(groups), strict=True):
        angles = [angle for run in group.runs for angle in _angles(run)]
        if angles:
            axes.stairs(*density(angles), lw=1.6, label=look.label, **look.line)
    places = (-math.pi, -math.pi / 2, 0.0, math.pi / 2, math.pi)
    axes.set_xticks(places, ("−π", "−π/2", "0", "π/2", "π"))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="angle", ylabel="eigenvalues, uniform = 1")


def density(angles: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    r"""Density of angles in equal bins of $[-\pi, \pi]$, relative to uniform angles.

    Args:
        angles: at least one angle.

    Returns:
        The density in each bin, and the edges of the bins.
    """
    # rounding may have moved an angle past -pi or pi
    inside = np.clip(angles, -math.pi, math.pi)
    counts, edges = np.histogram(inside, ANGLE_BINS, range=(-math.pi, math.pi))
    return counts * (ANGLE_BINS / len(angles)), edges


def _legend(axes: Axes) -> None:
    """Put the legend below the axes, in as many columns as fit, at most three."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        labels = [textwrap.fill(label, 46) for label in labels]
        lines = [line for label in labels for line in label.splitlines()]
        # Width in inches: 0.55 for the short line in front of a label, and 0.078 for
        # each letter, which is enough for the wide fonts that browsers use.
        longest = 0.55 + 0.078 * max(map(len, lines))
        columns = max(1, min(3, int(WIDTH / longest)))
        figure: Any = axes.figure
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, fontsize=9.5
        )
        # make the figure taller for each row of the legend beyond the third, so that
        # the axes do not shrink
        rows = -(-len(lines) // columns)
        figure.set_figheight(HEIGHT + max(0, rows - 3) * 0.2)


def text_width(words: str, size: float) -> float:
    """Width of a line of text in the font of the figures.

    Args:
        words: the line.
        size: size of the font.

    Returns:
        The width, in the same unit as `size`.
    """
    font = FontProperties(family="DejaVu Sans", size=size)
    return text_to_path.get_text_width_height_descent(words, font, ismath=False)[0]
