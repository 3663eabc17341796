"""Figures from a record of measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from isometry.lab.bench.report import LOOKS


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, which="major", alpha=0.25)


def kernel(record: dict[str, Any], path: Path) -> None:
    """Draw the peers' times against size, and the gradient's error against the norm."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4))
    rows = record["peers"]
    for name, style in LOOKS.items():
        points = [
            (r["n"], 1e3 * r["seconds"][name]) for r in rows if name in r["seconds"]
        ]
        if points:
            left.loglog(*zip(*points, strict=True), label=name, ms=5, **style)
    sizes = [r["n"] for r in rows]
    left.set_xticks(sizes, [str(n) for n in sizes])
    left.minorticks_off()
    left.set_xlabel("n")
    left.set_ylabel("milliseconds")
    left.set_title("one forward + backward pass, float32, norm 3", fontsize=10.5)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    # leave room for the legend above the curves
    left.set_ylim(top=left.get_ylim()[1] * 30)
    n = record["accuracy"][0]["n"]
    _error(right, record["accuracy"], "gradient", n)
    right.set_title(f"relative error of the gradient, float32, n = {n}", fontsize=10.5)
    right.legend(frameon=False, fontsize=8)
    save(figure, path)


def accuracy(record: dict[str, Any], path: Path) -> None:
    """Draw our three errors and torch's against the norm, for every size."""
    sizes = sorted({row["n"] for row in record["accuracy"]})
    figure, grid = plt.subplots(
        len(sizes), 3, figsize=(11.5, 3.1 * len(sizes)), squeeze=False, sharey="row"
    )
    for n, line in zip(sizes, grid, strict=True):
        for what, axes in zip(
            ("value", "gradient", "orthogonality"), line, strict=True
        ):
            _error(axes, record["accuracy"], what, n)
            axes.set_title(f"{what}, n = {n}", fontsize=10.5)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, ncols=4, frameon=False, fontsize=8, loc="lower center"
    )
    save(figure, path, bottom=0.08 / len(sizes))


def _error(axes: Axes, rows: Sequence[dict[str, Any]], what: str, n: int) -> None:
    for name, color, label in (
        ("ours", "#d55e00", "isometry"),
        ("torch", "#0072b2", "torch.linalg.matrix_exp"),
    ):
        for edge, ls in ((False, "-"), (True, ":")):
            points = [
                (row["norm"], row[name][what])
                for row in rows
                if row["n"] == n and row["edge"] == edge
            ]
            spectrum = "all angles at the norm" if edge else "random spectrum"
            axes.loglog(
                *zip(*points, strict=True),
                color=color,
                ls=ls,
                marker="." if edge else "o",
                ms=4,
                label=f"{label}, {spectrum}",
            )
    axes.axvline(3.14159, color="k", lw=0.7, alpha=0.5)
    axes.annotate(
        "π", (3.14159, 0.97), xycoords=("data", "axes fraction"), ha="left", va="top"
    )
    axes.set_xlabel("spectral norm of A")


def save(figure: Any, path: Path, bottom: float = 0.0) -> None:
    """Write a figure with a light grid; `bottom` is the fraction left for a legend."""
    for axes in figure.axes:
        _clean(axes)
    figure.tight_layout(rect=(0, bottom, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
