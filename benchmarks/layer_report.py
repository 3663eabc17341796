"""Sections of docs/ledger.md about training, from a record of measurements."""

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchmarks import layers, optimizers, reads, recurrent, training
from benchmarks.records import table
from isometry.lab.bench.suites import RATE

# required ratios of the seconds of a training step
MUST_TORCH = 4.0
MUST_CAYLEY = 1.4
MUST_NETWORK = 1.7
MUST_TALL = 50.0
# limit on the peak memory of a tall weight, in megabytes of 2^20 bytes
MUST_MEMORY = 200.0

MB = 2**20
GB = 2**30


def sections(record: dict[str, Any]) -> str:
    """The sections whose measurements are in the record."""
    parts = []
    if "layers" in record:
        part = record["layers"]
        parts += [step_section(part), network_section(part), tall_section(part)]
    others = {
        "reads": reads.section,
        "recurrent": recurrent.section,
        "training": training.section,
        "optimizers": optimizers.section,
        "quality": quality_section,
    }
    parts += [section(record[key]) for key, section in others.items() if key in record]
    return "".join("\n" + part for part in parts)


def step_sentence(part: dict[str, Any]) -> str:
    """The sentence of the README about a training step."""
    faster = [r for r, _ in quotients(part["step"], layers.TORCH_EXP, layers.OURS)]
    slower = [r for r, _ in quotients(part["step"], layers.OURS, layers.TORCH_CAYLEY)]
    return (
        f"A training step of an orthogonal 512 x 512 layer is {min(faster):.1f} to "
        f"{max(faster):.1f} times faster than with torch's `orthogonal` and its "
        f"exponential, and takes {min(slower):.1f} to {max(slower):.1f} times as long "
        f"as with its Cayley map."
    )


def quotients(
    rows: Sequence[dict[str, Any]], over: str, under: str
) -> list[tuple[float, float]]:
    """Ratios of the best times and of the medians, for each row."""
    return [
        (
            row["seconds"][over] / row["seconds"][under],
            row["median"][over] / row["median"][under],
        )
        for row in rows
    ]


def verdict(holds: Sequence[bool], labels: Sequence[str]) -> str:
    """The word "yes", or the rows that miss the requirement."""
    failed = [label for ok, label in zip(holds, labels, strict=True) if not ok]
    return "**no**: " + ", ".join(failed) if failed else "yes"


def step_section(part: dict[str, Any]) -> str:
    """The section on one layer."""
    rows = part["step"]
    labels = [f"norm {row['norm']:g}" for row in rows]
    ours = [row["seconds"][layers.OURS] for row in rows]
    times = [
        [
            name,
            *(
                f"{1e3 * row['seconds'][name]:.2f} ({row['seconds'][name] / t:.2g})"
                for row, t in zip(rows, ours, strict=True)
            ),
        ]
        for name in rows[0]["seconds"]
    ]
    limits = []
    for over, under, must in (
        (layers.TORCH_EXP, layers.OURS, MUST_TORCH),
        (layers.GEOTORCH, layers.OURS, MUST_TORCH),
        (layers.OURS, layers.TORCH_CAYLEY, MUST_CAYLEY),
    ):
        ratios = quotients(rows, over, under)
        # The ratio theirs / ours says how many times faster ours is, and must be large.
        # The ratio ours / theirs says how many times slower ours is, and must be small.
        least = under == layers.OURS
        held = [r >= must if least else r <= must for r, _ in ratios]
        limits.append(
            [
                f"{over} / {under}",
                f"at {'least' if least else 'most'} {must:g}",
                *(f"**{best:.2f}** ({median:.2f})" for best, median in ratios),
                verdict(held, labels),
            ]
        )
    n, batch = rows[0]["n"], rows[0]["batch"]
    return f"""## A training step

`orthogonal(nn.Linear({n}, {n}))`, batch {batch}, Adam, float32. The coordinates are
random, with the same spectral norm for all contenders. Training begins at norm 0, where
an exponential is cheapest, and moves away from it. The rate is {RATE:g}, so that the
norm hardly changes while steps are timed. Reflections, which have no such norm, are
timed where they start. {part["threads"]} threads; contenders take turns of a quarter of
a second; best of {part["rounds"]} rounds.

{table(["ms per step (multiple of ours)", *labels], times)}

{table(["ratio of bests (of medians)", "must be", *labels, "reached"], limits)}

![training steps](assets/network.png)
"""


def network_section(part: dict[str, Any]) -> str:
    """The section on the network, with the ratio that its products alone would give."""
    rows = part["network"]
    plain, ours = layers.UNCONSTRAINED, layers.OURS
    names = [name for name in rows[0]["seconds"] if name != plain]
    body = []
    for row in rows:
        ratios = {
            name: quotients([row], name, plain)[0]
            for name in names
            if name in row["seconds"]
        }
        body.append(
            [
                str(row["batch"]),
                f"{row['norm']:g}",
                f"{1e3 * row['seconds'][plain]:.1f}",
                f"{row['products'][ours] / row['products'][plain]:.2f}",
                *(
                    f"{ratios[name][0]:.2f} ({ratios[name][1]:.2f})"
                    if name in ratios
                    else ""
                    for name in names
                ),
            ]
        )
    header = ["batch", "norm", f"{plain}, ms", "ours by products"]
    asked = [row for row in rows if row["batch"] == 4096] or rows
    held = [ratio <= MUST_NETWORK for ratio, _ in quotients(asked, ours, plain)]
    labels = [f"norm {row['norm']:g}" for row in asked]
    row = asked[0]
    n, batch = row["n"], row["batch"]
    work = row["products"]
    extra = (work[ours] - work[plain]) / layers.DEPTH
    return f"""## A network

{layers.DEPTH} orthogonal layers of {n} x {n} with ReLU between them, Adam, float32. The
table has the time of a step as a multiple of the time of the unconstrained network (in
parentheses, the ratio of the medians).

What is possible: a plain layer takes three products of batch x {n} x {n} (the first
layer takes two, since its input needs no gradient). At batch {batch} that is the work
of {work[plain]:.0f} products of {n} x {n} for the whole network. Ours adds
{extra:.0f} for each layer: the exponential and its gradient, and two for the base. If a
step were products alone, the ratio would be that in the column "ours by products",
{work[ours] / work[plain]:.2f} at batch {batch}. There it must be at most
{MUST_NETWORK:g}. Reached: {verdict(held, labels)}.

{table([*header, *names], body)}
"""


def tall_section(part: dict[str, Any]) -> str:
    """The section on tall layers: time and memory."""
    tall, memory = part["tall"], part["tall_memory"]
    fast, slow = tall["fast"], tall["slow"]
    body = [
        [name, f"{1e3 * t:.2f}", f"{1e3 * fast['median'][name]:.2f}"]
        for name, t in fast["seconds"].items()
    ]
    limits = []
    for name in (layers.TORCH_HOUSEHOLDER, layers.TORCH_CAYLEY):
        best, median = quotients([slow], name, layers.OURS)[0]
        limits.append(
            [
                name,
                f"{slow['seconds'][name]:.2f}",
                f"**{best:.0f}x** ({median:.0f}x)",
                f"{MUST_TALL:g}x",
                verdict([best >= MUST_TALL], [f"{best:.0f}x"]),
            ]
        )
    n, k = memory["n"], memory["k"]
    small = memory["small"]
    used = memory[layers.OURS] / MB
    # nearly all of torch's memory holds n x n matrices, so it grows with n^2
    grown = (n / small[0]) ** 2
    householder, cayley = (
        grown * memory[name] / GB
        for name in (layers.TORCH_HOUSEHOLDER, layers.TORCH_CAYLEY)
    )
    return f"""## Tall weights

`orthogonal(nn.Linear({tall["k"]}, {tall["n"]}))`, a weight of {tall["n"]} x
{tall["k"]}, batch {tall["batch"]}, Adam, float32. For such a weight torch's default is
Householder reflections; with every map it keeps a base of {tall["n"]} x {tall["n"]}.

{table(["ours", "ms per step", "median"], body)}

{
        table(
            ["torch", "s per step", "ratio to ours at norm 3", "must be", "reached"],
            limits,
        )
    }

Memory: one forward and backward pass of a weight of {n} x {k} allocates at most
{used:.0f} MB ({memory[layers.OUR_CAYLEY] / MB:.0f} MB with the Cayley map). The limit
is {MUST_MEMORY:g} MB. Reached: {verdict([used <= MUST_MEMORY], [f"{used:.0f} MB"])}.
Torch's base alone would take {grown * memory["base"] / GB:.1f} GB at that size. At
{small[0]} x {small[1]} its pass takes {memory[layers.TORCH_HOUSEHOLDER] / MB:.0f} MB
(Householder) and {
        memory[layers.TORCH_CAYLEY] / MB:.0f} MB (Cayley). This grows with the
square of the rows, to {householder:.1f} GB and {cayley:.1f} GB.
"""


def quality_section(part: dict[str, Any]) -> str:
    """The section on MNIST: accuracy, and seconds of training."""
    names = list(dict.fromkeys(run["name"] for run in part["runs"]))
    ours = _seconds(part, layers.OURS)
    # the highest whole percent that every run reaches
    target = min(max(p["accuracy"] for p in run["points"]) for run in part["runs"])
    target = math.floor(100 * target) / 100
    body = []
    for name in names:
        runs = [run for run in part["runs"] if run["name"] == name]
        final = [100 * run["points"][-1]["accuracy"] for run in runs]
        seconds = _seconds(part, name)
        reached = [_seconds_to(target, run["points"]) for run in runs]
        body.append(
            [
                name,
                f"{seconds:.1f}",
                f"{seconds / ours:.2f}",
                f"{mean(final):.2f} ({min(final):.2f} to {max(final):.2f})",
                f"{mean(reached):.1f}",
                *(
                    f"{max(run[key] for run in runs):.2g}" if key in runs[0] else ""
                    for key in ("defect", "norm")
                ),
            ]
        )
    header = [
        "hidden layers",
        "seconds of training",
        "multiple of ours",
        "test accuracy, percent (range)",
        f"seconds to {100 * target:.0f} percent",
        "worst defect",
        "largest norm of coordinates",
    ]
    seeds = len({run["seed"] for run in part["runs"]})
    epochs = part["steps"] * part["batch"] / 60_000
    return f"""## Accuracy against seconds

MNIST: 784 inputs, three orthogonal hidden layers of 512 x 512 with ReLU, 10 outputs;
{part["steps"]} steps of Adam ({epochs:.1f} epochs) with batch {part["batch"]}, the rate
falling from 0.001 to 0 along a cosine. All contenders begin at the same weights and see
the same batches. They take turns of a few steps, so that noise on the machine slows all
of them alike. Means of {seeds} seeds, {part["threads"]} threads; evaluation is not
timed. The defect is $\\lVert W^T W - I \\rVert_F / \\sqrt n$ at the end.

{table(header, body)}

![test error against seconds](assets/quality.png)
"""


def _seconds(part: dict[str, Any], name: str) -> float:
    """Mean seconds of whole runs."""
    return mean(
        run["points"][-1]["seconds"] for run in part["runs"] if run["name"] == name
    )


def _seconds_to(accuracy: float, points: Sequence[dict[str, float]]) -> float:
    """Seconds of training up to the first evaluation that reaches this accuracy."""
    return next(p["seconds"] for p in points if p["accuracy"] >= accuracy)
