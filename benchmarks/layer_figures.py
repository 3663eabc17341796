"""Figures of training steps and of accuracy against seconds."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks import layers
from benchmarks.figures import save
from isometry.lab.bench.report import LOOKS


def network(part: dict[str, Any], path: Path) -> None:
    """Draw the times of a layer by norm, and relative times of a network by batch."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4))
    _bars(left, part["step"])
    _ratios(right, part["network"])
    save(figure, path)


def _bars(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    norms = [row["norm"] for row in rows]
    names = sorted(rows[-1]["seconds"], key=lambda name: -rows[-1]["seconds"][name])
    height = 0.8 / len(rows)
    for i, row in enumerate(rows):
        places = [j + (len(rows) / 2 - i - 0.5) * height for j in range(len(names))]
        axes.barh(
            places,
            [1e3 * row["seconds"][name] for name in names],
            height=0.9 * height,
            color=[LOOKS[name]["color"] for name in names],
            # colours go from light at the smallest norm to full at the largest
            alpha=(i + 1) / len(rows),
        )
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    for j, name in enumerate(names):
        slowest = max(1e3 * row["seconds"][name] for row in rows)
        label = f" {1e3 * rows[-1]['seconds'][name]:.3g}"
        axes.annotate(label, (slowest, j), va="center", fontsize=8.5)
    axes.set_xlabel("milliseconds; the numbers are those at the largest norm")
    n, batch = rows[0]["n"], rows[0]["batch"]
    shades = ", ".join(f"{norm:g}" for norm in norms)
    axes.set_title(
        f"a step of one {n} x {n} layer, batch {batch}\n"
        f"norm of the coordinates {shades}, light to full",
        fontsize=10.5,
    )


def _ratios(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    norm = rows[0]["norm"]
    rows = [row for row in rows if row["norm"] == norm]
    batches = [row["batch"] for row in rows]
    plain = layers.UNCONSTRAINED
    for name in (n for n in rows[0]["seconds"] if n != plain):
        ratios = [row["seconds"][name] / row["seconds"][plain] for row in rows]
        axes.loglog(batches, ratios, label=name, ms=5, **LOOKS[name])
    limit = [row["products"][layers.OURS] / row["products"][plain] for row in rows]
    axes.loglog(
        batches, limit, "k--", lw=1.2, label="isometry, if products were all there is"
    )
    axes.axhline(1, color="k", lw=0.7, alpha=0.5)
    axes.set_xticks(batches, [str(b) for b in batches])
    ticks = [1, 2, 5, 10, 20, 50, 100]
    top = max(axes.get_ylim()[1], 2.5)
    ticks = [t for t in ticks if t <= top]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("batch")
    axes.set_ylabel("step / step of the unconstrained network")
    n = rows[0]["n"]
    axes.set_title(
        f"a network of {layers.DEPTH} layers of {n} x {n}, norm {norm:g}", fontsize=10.5
    )
    axes.legend(frameon=False, fontsize=8)


def quality(part: dict[str, Any], path: Path) -> None:
    """Draw the test error against seconds and steps: mean and range over seeds."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4), sharey=True)
    names = list(dict.fromkeys(run["name"] for run in part["runs"]))
    for name in names:
        runs = [run["points"] for run in part["runs"] if run["name"] == name]
        for axes, key in ((left, "seconds"), (right, "step")):
            _errors(axes, runs, key, name)
    left.set_xlabel("seconds of training")
    left.set_ylabel("test error, percent")
    right.set_xlabel("steps")
    for axes in (left, right):
        low, high = axes.get_ylim()
        ticks = [t for t in (1, 2, 3, 5, 10, 20, 50) if low <= t <= high]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
    steps = [point["step"] for point in part["runs"][0]["points"]]
    right.set_xticks(steps, [str(step) for step in steps])
    low, high = left.get_xlim()
    seconds = [t for t in (0.1, 0.3, 1, 3, 10, 30, 100, 300) if low <= t <= high]
    left.set_xticks(seconds, [f"{t:g}" for t in seconds])
    seeds = len({run["seed"] for run in part["runs"]})
    left.set_title(f"MNIST, batch {part['batch']}, {seeds} seeds", fontsize=10.5)
    right.set_title("the same runs", fontsize=10.5)
    left.legend(frameon=False, fontsize=8, loc="lower left")
    save(figure, path)


def _errors(
    axes: Axes, runs: Sequence[Sequence[dict[str, float]]], key: str, name: str
) -> None:
    moments = list(zip(*runs, strict=True))
    where = [mean(point[key] for point in moment) for moment in moments]
    errors = [[100 * (1 - point["accuracy"]) for point in moment] for moment in moments]
    style = LOOKS[name]
    axes.loglog(where, [mean(e) for e in errors], label=name, ms=4, **style)
    low, high = [min(e) for e in errors], [max(e) for e in errors]
    axes.fill_between(where, low, high, color=style["color"], alpha=0.15, lw=0)
