"""Charts of the small experiments of `tools.reproduction.experiments`."""

from collections.abc import Iterator, Mapping
from typing import Any

from tools.reproduction.chart import Chart, Series


def charts(experiments: Mapping[str, Mapping[str, Any]]) -> Iterator[Chart]:
    """The figures of all experiments that are recorded."""
    for draw in (cheapness, cayley, retractions, maps, memory):
        if draw.__name__ in experiments:
            yield from draw(experiments[draw.__name__])


def cheapness(record: Mapping[str, Any]) -> Iterator[Chart]:
    """Section 4.3: what the constraint adds to a training step."""
    series = []
    for i, (name, ratios) in enumerate(record["ratio"].items()):
        low, middle, high = (
            [round(100 * (r[k] - 1), 3) for r in ratios] for k in range(3)
        )
        series.append(Series(name, i, "-", record["n"], middle, low, high))
    yield Chart(
        "cheapness",
        f"What the constraint adds to the time of a training step with Adam, on "
        f"{_processor(record)}, {record['machine']['threads']} threads: median of "
        f"{record['rounds']} rounds in turns. The band reaches from the lower to the "
        f"upper quartile.",
        *("n", "additional time in percent"),
        scale="linear",
        series=series,
        marks={"no constraint": 0.0},
        places=record["n"],
    )


def cayley(record: Mapping[str, Any]) -> Iterator[Chart]:
    """Loss and coordinates of each map when the optimum has eigenvalue -1."""
    names = {"exp": "exponential", "cayley": "Cayley"}
    what = (
        f"Adam fits a {record['n']} × {record['n']} rotation that turns one plane by π"
    )
    for key, title, y_label in (
        ("loss", "mean squared error", "loss"),
        ("largest", "size of the coordinates", "largest eigenvalue in absolute value"),
    ):
        series = [
            Series(names[name], i, "-", curve["step"][1:], curve[key][1:])
            for i, (name, curve) in enumerate(record["curves"].items())
        ]
        marks = {"π": 3.14159} if key == "largest" else {}
        caption = f"{what}: {title}."
        scale = "log" if key == "loss" else "linear"
        yield Chart(
            f"cayley-{key}", caption, "iterations", y_label, scale, series, marks
        )


def retractions(record: Mapping[str, Any]) -> Iterator[Chart]:
    """How far each retraction is from the exponential."""
    series = [
        Series(name, i, "-", record["angle"], errors)
        for i, (name, errors) in enumerate(record["error"].items())
    ]
    yield Chart(
        "retractions",
        f"Distance of a retraction r(A) from exp A in the spectral norm, against the "
        f"largest angle of A; n = {record['n']}, float64.",
        *("largest angle", "distance"),
        scale="log",
        series=series,
        marks={},
        places=(0.01, 0.1, 1),
    )


def maps(record: Mapping[str, Any]) -> Iterator[Chart]:
    """Loss against seconds for rotations near the base and far from it."""
    largest = {"near": "1", "far": "π"}
    n = record["n"]
    for problem, curves in record["curves"].items():
        yield _race(
            f"maps-{problem}",
            f"Adam fits a {n} × {n} rotation with angles up to {largest[problem]}: "
            f"mean squared error against seconds of one core ({_processor(record)}). "
            f"A base that moves does so every 100 steps.",
            curves,
        )


def memory(record: Mapping[str, Any]) -> Iterator[Chart]:
    """Loss against seconds for the copying task."""
    for lag, curves in record["curves"].items():
        yield _race(
            f"memory-{lag}",
            f"Copying memory with a lag of {lag} and {record['n']} features: "
            f"training loss against seconds of one core ({_processor(record)}). "
            f"The three layers begin at the same weights.",
            curves,
        )


def _race(name: str, caption: str, curves: Mapping[str, Mapping[str, Any]]) -> Chart:
    series = [
        Series(label, i, "-", curve["seconds"], curve["loss"])
        for i, (label, curve) in enumerate(curves.items())
    ]
    return Chart(name, caption, "seconds", "loss", "log", series, marks={})


def _processor(record: Mapping[str, Any]) -> str:
    return record["machine"]["processor"]
