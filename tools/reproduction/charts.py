"""What the figures of docs/reproduction.md and docs/how-to/maps.md show, as data."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from isometry.lab._report.looks import DASHES, LIGHT, NETWORK_LOOKS
from isometry.lab.paper.tables import PAPER

Records = Mapping[str, Mapping[str, Any]]

# number of batches of 128 in 55,000 images
STEPS_PER_EPOCH = 430

# titles of the experiments with pixels, by name
PIXELS = {"pmnist": "permuted MNIST", "mnist": "pixel-by-pixel MNIST"}


@dataclass(frozen=True)
class Series:
    """A line, perhaps with a band around it.

    Attributes:
        label: text in the legend.
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
    places: Sequence[int] = ()


def data(charts: Sequence[Chart]) -> dict[str, Any]:
    """The plotted numbers, which a test compares without drawing anything."""
    return {chart.name: asdict(chart) for chart in charts}


def of(records: Records, experiment: str) -> list[Mapping[str, Any]]:
    """The records of an experiment, in the order of their networks."""
    order = list(NETWORK_LOOKS)
    runs = [r for name, r in records.items() if experiment_of(name) == experiment]
    return sorted(runs, key=lambda r: (order.index(model(r)), size(r), r["name"]))


def experiment_of(name: str) -> str:
    """The experiment of a run: the part of its name before the network.

    The runs that try to do better than the paper belong to the experiment "beyond".
    """
    words, at = _network_in(name)
    if note_of(name).startswith(("search-", "long-")):
        return "beyond"
    return "-".join(words[:at])


def note_of(name: str) -> str:
    """The part of a run's name that follows the network and the size; often empty."""
    words, at = _network_in(name)
    return "-".join(words[at + 2 :])


def _network_in(name: str) -> tuple[list[str], int]:
    """The words of the name of a run, and the index of its network among them."""
    words = name.split("-")
    return words, next(i for i, word in enumerate(words) if word in NETWORK_LOOKS)


def model(record: Mapping[str, Any]) -> str:
    """Name of the network."""
    return record["config"]["model"]


def size(record: Mapping[str, Any]) -> int:
    """Number of features of the state."""
    return record["config"]["hidden_size"]


def label(record: Mapping[str, Any]) -> str:
    """Network, size and note of a run, for the legend."""
    note = note_of(record["name"])
    return f"{NETWORK_LOOKS[model(record)][0]} {size(record)}" + (
        f", {note}" if note else ""
    )


def accuracy_after(record: Mapping[str, Any], epochs: int) -> float:
    """Test accuracy after a number of epochs; NaN if it was not measured."""
    measured = dict(
        zip(*(record["test"][k] for k in ("step", "accuracy")), strict=True)
    )
    return measured.get(epochs * STEPS_PER_EPOCH, math.nan)


def printed(experiment: str) -> float:
    """The accuracy of ExpRNN 170 in the paper's Table 1."""
    row = PAPER[experiment].row("exprnn", 170)
    assert row is not None
    assert row.result is not None
    return float(row.result)


def charts(records: Records, experiments: Records) -> Iterator[Chart]:
    """Every figure for which there are records.

    Args:
        records: runs by name.
        experiments: the small experiments, by name.

    Yields:
        The figures of docs/reproduction.md and docs/how-to/maps.md.
    """
    for experiment in ("copying-1000", "copying-2000"):
        if runs := of(records, experiment):
            yield copying(experiment, runs)
    for experiment in PIXELS:
        if runs := of(records, experiment):
            yield pixels(experiment, runs)
    if long_runs(records):
        yield beyond(records)
    for name, draw in (
        ("cheapness", cheapness),
        ("cayley", cayley),
        ("maps", maps),
        ("memory", memory),
    ):
        if name in experiments:
            yield from draw(experiments[name])
    yield from domain(records)
    if runs := of(records, "copying-200"):
        yield remarks(runs)


def copying(experiment: str, runs: Sequence[Mapping[str, Any]]) -> Chart:
    """Figure 1: training loss against steps."""
    baseline = runs[0]["summary"]["baseline"]
    lag = experiment.partition("-")[2]
    series = [
        Series(
            label(r),
            colour,
            dashes,
            r["train"]["step"],
            r["train"]["median"],
            r["train"]["low"],
            r["train"]["high"],
        )
        for r, colour, dashes in _drawn(runs)
    ]
    return Chart(
        experiment,
        f"Copying memory with a lag of {lag}: training loss, medians of a few steps "
        f"with their range. A line that ends early is a run that was solved.",
        *("iterations", "cross-entropy"),
        scale="log",
        series=series,
        marks={"baseline": baseline, "solved": 0.01 * baseline},
    )


def pixels(experiment: str, runs: Sequence[Mapping[str, Any]]) -> Chart:
    """Figure 2 and Table 1: test accuracy against epochs."""
    whole = [r for r in runs if r["config"]["iterations"] >= STEPS_PER_EPOCH]
    title = PIXELS[experiment]
    return Chart(
        experiment,
        f"{title[0].upper()}{title[1:]}: test accuracy after each epoch. The thin line "
        f"is what the paper prints for ExpRNN 170: the best of 70 epochs.",
        *("epochs", "test accuracy"),
        scale="logit",
        series=[_accuracies(*drawn) for drawn in _drawn(whole)],
        marks={"paper": printed(experiment)},
    )


# the test accuracy that the long run beyond the paper was to reach
GOAL = 0.955


def long_runs(records: Records) -> list[Mapping[str, Any]]:
    """The long runs beyond the paper."""
    return [r for r in of(records, "beyond") if note_of(r["name"]).startswith("long-")]


def beyond(records: Records) -> Chart:
    """The long run beyond the paper, beside the run with the paper's training."""
    runs = long_runs(records)
    runs += [r for name, r in records.items() if name == "pmnist-exprnn-170"]
    return Chart(
        "beyond",
        "Permuted MNIST, ExpRNN 170: test accuracy after each epoch, with the training "
        "that the search chose and with the paper's.",
        *("epochs", "test accuracy"),
        scale="logit",
        series=[_accuracies(*drawn) for drawn in _drawn(runs)],
        marks={"paper": printed("pmnist"), "goal": GOAL},
    )


def _accuracies(record: Mapping[str, Any], colour: int, dashes: str) -> Series:
    """Test accuracy of a run against epochs."""
    epochs = [step / STEPS_PER_EPOCH for step in record["test"]["step"]]
    return Series(label(record), colour, dashes, epochs, record["test"]["accuracy"])


def cheapness(record: Mapping[str, Any]) -> Iterator[Chart]:
    """Section 4.3: what the constraint adds to a training step."""
    series = [
        Series(name, i, "-", record["n"], [100 * (r - 1) for r in ratios])
        for i, (name, ratios) in enumerate(record["ratio"].items())
    ]
    yield Chart(
        "cheapness",
        f"What the constraint adds to the time of a training step with Adam, on "
        f"{record['machine']['processor']}, {record['machine']['threads']} threads: "
        f"ExpRNN on 128 sequences of 100 steps, and nn.Linear on 4,096 rows. Best of "
        f"{record['rounds']} rounds in turns.",
        *("n", "additional time in percent"),
        scale="linear",
        series=series,
        marks={"nothing": 0.0},
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
        yield Chart(
            f"cayley-{key}", caption, "iterations", y_label, "log", series, marks
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


def domain(records: Records) -> Iterator[Chart]:
    """Figures that show whether coordinates leave the domain where exp is one-to-one.

    Copying and MNIST have a figure each, since they differ in the number of steps.
    """
    kinds = {
        "copying": ("copying-1000", "copying-2000"),
        "pixels": tuple(PIXELS),
    }
    for kind, names in kinds.items():
        runs = [
            r
            for name in names
            for r in of(records, name)
            if model(r) == "exprnn" and "largest_angle" in r["validation"]
        ]
        series = [
            Series(
                f"{experiment_of(r['name'])}, {label(r)}",
                i % 7,
                DASHES[i // 7 % len(DASHES)],
                r["validation"]["step"],
                r["validation"]["largest_angle"],
            )
            for i, r in enumerate(runs)
        ]
        if series:
            yield Chart(
                f"domain-{kind}",
                "Largest angle of the coordinates while ExpRNN is trained. The "
                "exponential is one-to-one below π.",
                *("iterations", "largest angle"),
                scale="linear",
                series=series,
                marks={"π": 3.14159},
            )


def remarks(runs: Sequence[Mapping[str, Any]]) -> Chart:
    """The small experiments on the paper's remarks."""
    series = [
        Series(
            label(r),
            i % 7,
            DASHES[i // 7 % len(DASHES)],
            r["validation"]["step"],
            r["validation"]["loss"],
        )
        for i, r in enumerate(runs)
    ]
    baseline = runs[0]["summary"]["baseline"]
    return Chart(
        "remarks",
        "Copying memory with a lag of 200: validation loss of variants of ExpRNN and "
        "RGD.",
        *("iterations", "cross-entropy"),
        scale="log",
        series=series,
        marks={"baseline": baseline, "solved": 0.01 * baseline},
    )


def _drawn(
    runs: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], int, str]]:
    """Each run with its colour and line style.

    A network has its usual colour. If an earlier network of the figure has that colour,
    the later network gets an unused colour, as long as one is left. Line styles tell up
    to four runs of one network apart.
    """
    usual = {model(r): NETWORK_LOOKS[model(r)][1] for r in runs}
    unused = iter(sorted(set(range(len(LIGHT))) - set(usual.values())))
    colours: dict[str, int] = {}
    for name, colour in usual.items():
        taken = colour in colours.values()
        colours[name] = next(unused, colour) if taken else colour
    seen: dict[str, int] = {}
    for r in runs:
        nth = seen[model(r)] = seen.get(model(r), -1) + 1
        yield r, colours[model(r)], DASHES[nth % len(DASHES)]
