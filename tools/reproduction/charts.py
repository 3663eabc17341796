"""What the figures of docs/reproduction.md show, as data."""

from collections.abc import Iterator, Sequence
from typing import Any

from isometry.lab._report.looks import DASHES, LIGHT, NETWORK_LOOKS
from isometry.lab.paper.protocol import SIZES
from tools.reproduction import experiment_charts
from tools.reproduction.chart import Chart, Series
from tools.reproduction.runs import (
    PIXELS,
    STEPS_PER_EPOCH,
    Record,
    Records,
    accuracies_after,
    epochs,
    experiment_of,
    groups,
    label,
    long_runs,
    mean,
    model,
    note_of,
    of,
    printed,
    seed,
    size,
)

# Runs of at most this many steps on the copying task were only begun. They have a
# figure of their own, beside the start of the other runs.
BEGUN = 300

# networks on MNIST are compared over this many epochs, which most of them have
COMPARED = 10

# the test accuracy that the long run beyond the paper was to reach
GOAL = 0.955


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
            yield from copying(experiment, runs)
    for experiment in PIXELS:
        yield from pixels(experiment, of(records, experiment))
    if long_runs(records):
        yield beyond(records)
    yield from experiment_charts.charts(experiments)
    yield from domain(records)
    if runs := of(records, "copying-200"):
        yield from remarks(runs)


def copying(experiment: str, runs: Sequence[Record]) -> Iterator[Chart]:
    """Figure 1: training loss against steps."""
    baseline = runs[0]["summary"]["baseline"]
    lag = experiment.partition("-")[2]
    long = [r for r in runs if r["summary"]["steps"] > BEGUN]
    what = f"Copying memory with a lag of {lag}: training loss"
    band = "Each point is the median of a few steps, and the band is their range."
    axes = ("iterations", "cross-entropy", "log")
    if long:
        yield Chart(
            experiment,
            f"{what}. {band} A line that ends early is a run that was solved.",
            *axes,
            series=list(_losses(long)),
            marks={"baseline": baseline, "solved": 0.01 * baseline},
        )
    if len(long) < len(runs):
        yield Chart(
            f"{experiment}-start",
            f"{what} of all networks in the first {BEGUN} steps. {band}",
            *axes,
            series=list(_losses(runs, last=BEGUN)),
            marks={"baseline": baseline},
        )


def _losses(runs: Sequence[Record], last: float = float("inf")) -> Iterator[Series]:
    """Training losses up to a step. Runs that differ only in the seed look the same."""
    for group, colour, dashes in _drawn(runs):
        for i, r in enumerate(group):
            train = r["train"]
            points = [
                point
                for point in zip(
                    *(train[name] for name in ("step", "median", "low", "high")),
                    strict=True,
                )
                if point[0] <= last
            ]
            legend = "" if i else _group_label(group)
            yield Series(legend, colour, dashes, *map(list, zip(*points, strict=True)))


def _group_label(group: Sequence[Record]) -> str:
    seeds = f", {len(group)} seeds" if len(group) > 1 else ""
    return label(group[0]) + seeds


def pixels(experiment: str, runs: Sequence[Record]) -> Iterator[Chart]:
    """Figure 2 and Table 1: test accuracy against epochs."""
    title = PIXELS[experiment]
    title = f"{title[0].upper()}{title[1:]}"
    whole = [r for r in runs if epochs(r) >= 1]
    parts = {
        "": (
            [r for r in whole if _is_first(r)],
            (
                f"{title}: test accuracy after each of the first {COMPARED} epochs. "
                f"Where there are several seeds, the line is their mean and the band "
                f"their range"
            ),
        ),
        "-more": (
            [r for r in whole if model(r).startswith("exp")],
            (
                f"{title}: test accuracy of variants of ExpRNN after each of the first "
                f"{COMPARED} epochs"
            ),
        ),
    }
    for ending, (shown, caption) in parts.items():
        if shown:
            yield Chart(
                f"{experiment}{ending}",
                f"{caption}.",
                *("epochs", "test accuracy", "logit"),
                series=[_accuracies(*drawn) for drawn in _drawn(shown)],
                marks={},
            )
    if longest := [r for r in whole if epochs(r) > COMPARED]:
        yield Chart(
            f"{experiment}-long",
            f"{title}: test accuracy after each epoch. The dotted line is what the "
            f"paper prints for ExpRNN 170: the best of 70 epochs.",
            *("epochs", "test accuracy", "logit"),
            series=[
                _accuracies([r], colour, dashes, 1000)
                for (r, *_), colour, dashes in _drawn(longest)
            ],
            marks={"paper": printed(experiment)},
        )


def _is_first(record: Record) -> bool:
    """True for the smallest size of a network in Table 1, without variations."""
    sizes = SIZES[model(record)]["mnist"]
    gated = model(record) in ("explstm", "expgru")
    return size(record) == sizes[0] and not note_of(record["name"]) and not gated


def _accuracies(
    group: Sequence[Record], colour: int, dashes: str, last: int = COMPARED
) -> Series:
    """Mean test accuracy against epochs, with the range if there are several runs."""
    until = min(last, int(max(map(epochs, group))))
    values = {e: accuracies_after(group, e) for e in range(1, until + 1)}
    values = {e: v for e, v in values.items() if v}
    ranges = len(group) > 1
    return Series(
        _group_label(group),
        colour,
        dashes,
        list(values),
        [round(mean(v), 6) for v in values.values()],
        [min(v) for v in values.values()] if ranges else (),
        [max(v) for v in values.values()] if ranges else (),
    )


def beyond(records: Records) -> Chart:
    """The long run beyond the paper, beside the run with the paper's training."""
    names = {
        **{r["name"]: "training chosen by the search" for r in long_runs(records)},
        "pmnist-exprnn-170": "the paper's training",
    }
    runs = {name: records[key] for key, name in names.items() if key in records}
    return Chart(
        "beyond",
        "Permuted MNIST, ExpRNN 170: test accuracy after each epoch, with the training "
        "that the search chose and with the paper's.",
        *("epochs", "test accuracy", "logit"),
        series=[
            Series(
                name,
                i,
                "-",
                [step / STEPS_PER_EPOCH for step in r["test"]["step"]],
                r["test"]["accuracy"],
            )
            for i, (name, r) in enumerate(runs.items())
        ],
        marks={"paper": printed("pmnist"), "goal": GOAL},
    )


def angles(records: Records) -> list[Record]:
    """The long runs of ExpRNN with a fixed base, whose angles were recorded."""
    return [
        r
        for name in ("copying-1000", "copying-2000", *PIXELS)
        for r in of(records, name)
        if model(r) == "exprnn"
        and not note_of(r["name"])
        and "largest_angle" in r["validation"]
    ]


def domain(records: Records) -> Iterator[Chart]:
    """Whether coordinates leave the domain where the exponential is one-to-one."""
    runs = [r for r in angles(records) if r["name"].startswith("copying")]
    if runs:
        yield Chart(
            "domain",
            "Copying memory: the largest angle of the coordinates while ExpRNN is "
            "trained. The exponential is one-to-one below π.",
            *("iterations", "largest angle", "linear"),
            series=[
                Series(
                    f"lag {experiment_of(r['name'])[8:]}, seed {seed(r)}",
                    i % len(LIGHT),
                    "-",
                    r["validation"]["step"],
                    r["validation"]["largest_angle"],
                )
                for i, r in enumerate(runs)
            ],
            marks={"π": 3.14159},
        )


def remarks(runs: Sequence[Record]) -> Iterator[Chart]:
    """The small experiments on the paper's remarks."""
    baseline = runs[0]["summary"]["baseline"]
    for name in dict.fromkeys(map(model, runs)):
        title = NETWORK_LOOKS[name].label
        yield Chart(
            f"remarks-{name}",
            f"Copying memory with a lag of 200: validation loss of variants of "
            f"{title}.",
            *("iterations", "cross-entropy", "log"),
            series=[
                Series(
                    label(r).partition(", ")[2],
                    i,
                    "-",
                    r["validation"]["step"],
                    r["validation"]["loss"],
                )
                for i, r in enumerate(r for r in runs if model(r) == name)
            ],
            marks={"baseline": baseline, "solved": 0.01 * baseline},
        )


def _drawn(runs: Sequence[Record]) -> Iterator[tuple[list[Any], int, str]]:
    """Each group of runs with its colour and line style.

    A network has its usual colour. If an earlier network of the figure has that colour,
    the later network gets an unused colour, as long as one is left. Line styles tell up
    to four groups of one network apart.
    """
    usual = {model(r): NETWORK_LOOKS[model(r)].colour for r in runs}
    unused = iter(sorted(set(range(len(LIGHT))) - set(usual.values())))
    colours: dict[str, int] = {}
    for name, colour in usual.items():
        taken = colour in colours.values()
        colours[name] = next(unused, colour) if taken else colour
    seen: dict[str, int] = {}
    for group in groups(runs):
        name = model(group[0])
        nth = seen[name] = seen.get(name, -1) + 1
        yield group, colours[name], DASHES[nth % len(DASHES)]
