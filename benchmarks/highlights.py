"""The page docs/results.md: figures and six tables for users."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchmarks import layers, report
from benchmarks.records import table, where
from isometry.lab.bench import TORCH_RNN

Record = dict[str, Any]


def results(records: dict[str, Record]) -> str:
    """Markdown of docs/results.md, from the record with the most measurements.

    Args:
        records: the records, by the names of their files.

    Returns:
        Markdown.
    """
    name = max(records, key=lambda key: len(records[key]))
    record = records[name]
    place = where(record)
    parts = [
        section(record[key])
        for key, section in (
            ("kernel", exponential),
            ("accuracy", accuracy),
            ("layers", training_step),
            ("recurrent", recurrent),
            ("optimizers", optimizers),
            ("quality", quality),
        )
        if key in record
    ]
    body = "\n".join(parts).replace("](assets/", f"](assets/{name}/")
    return f"""# Results

How fast and how accurate isometry is, on {place["processor"]} with {place["threads"]}
threads and torch {place["torch"]}. Contenders take turns, and the best of several
rounds counts. Times differ from machine to machine, ratios less so;
[`isometry bench`](laboratory/bench.md) measures both on yours. The
[ledger](ledger.md) has other processors, medians, memory, and the goals.

{body}"""


def exponential(rows: Sequence[Record]) -> str:
    """The section that compares the exponential with torch's."""
    body = [
        [
            row["case"],
            f"{1e3 * row['seconds']['torch']:.2f}",
            f"{1e3 * row['seconds']['ours']:.2f}",
            f"**{row['ratio']:.1f}**",
        ]
        for row in rows
    ]
    header = ["case", "`torch.linalg.matrix_exp`, ms", "`expm_skew`, ms"]
    return f"""## The exponential

One forward and one backward pass, for skew matrices of spectral norm 3:

{table([*header, "times faster"], body)}

![time and accuracy](assets/kernel.png)
"""


def accuracy(rows: Sequence[Record]) -> str:
    """The section on errors, for the largest matrices of each real dtype."""
    shown = []
    for dtype in ("torch.float32", "torch.float64"):
        some = [row for row in rows if row["dtype"] == dtype]
        largest = max(row["n"] for row in some)
        shown += [row for row in some if row["n"] == largest]
    return f"""## Accuracy

The worst error against double precision, over spectra and norms. It grows with the
norm for every method. [Rebasing](how-to/rebase.md) keeps the norm small.

{report.accuracy_table(shown)}

![errors against the norm](assets/accuracy.png)
"""


def training_step(part: Record) -> str:
    """The section on a training step of one layer, with a sentence on tall weights."""
    rows, tall = part["step"], part["tall"]["slow"]["seconds"]
    body = [
        [name, *(f"{1e3 * row['seconds'][name]:.1f}" for row in rows)]
        for name in rows[0]["seconds"]
    ]
    labels = [f"norm {row['norm']:g}, ms" for row in rows]
    n, batch = rows[0]["n"], rows[0]["batch"]
    slow = min(tall[layers.TORCH_HOUSEHOLDER], tall[layers.TORCH_CAYLEY])
    return f"""## A training step

`orthogonal(nn.Linear({n}, {n}))`, batch {batch}, Adam, float32. The columns differ in
the norm of the coordinates, which is 0 where training begins.

{table(["weight", *labels], body)}

The larger the batch, the smaller the share of the constraint in a step. The figure
shows this for a network of {layers.DEPTH} such layers:

![training steps](assets/network.png)

For a tall weight, {part["tall"]["n"]} x {part["tall"]["k"]}, a step takes
{1e3 * tall[layers.OURS]:.0f} ms; with torch's `orthogonal` it takes {slow:.1f} s,
because torch computes with a square matrix of {part["tall"]["n"]} rows.
"""


def recurrent(part: Record) -> str:
    """The section on the whole training step of a recurrent network."""
    body = [
        [
            str(row["n"]),
            f"{1e3 * t['ExpRNN']:.0f}",
            f"{1e3 * t['unconstrained']:.0f}",
            f"{1e3 * t[TORCH_RNN]:.0f}",
        ]
        for row in part["whole"]
        for t in [row["seconds"]]
    ]
    header = ["features", "`ExpRNN`, ms", "unconstrained, ms", "`nn.RNN`, ms"]
    return f"""## Recurrent layers

A whole training step on MNIST, pixel by pixel: 784 time steps, batch 128. The
unconstrained layer is an `ExpRNN` whose weight is a plain parameter:

{table(header, body)}
"""


def optimizers(part: Record) -> str:
    """The section that compares a step on the Stiefel manifold with geoopt's."""
    names = [name for name in part["steps"][0]["seconds"] if "canonical" not in name]
    body = [
        [
            f"{row['rule']}, {row['n']} x {row['k']}",
            *(f"{1e3 * row['seconds'][name]:.1f}" for name in names),
        ]
        for row in part["steps"]
    ]
    return f"""## Riemannian optimizers

Milliseconds per step, for a given gradient, in float32, on matrices with orthonormal
columns. The ledger also has geoopt's other metric, and pymanopt on a whole problem.

{table(["ms per step", *names], body)}

![loss against iterations and seconds](assets/optimizers.png)
"""


def quality(part: Record) -> str:
    """The section on MNIST: accuracy, and seconds of training."""
    body = []
    for name in dict.fromkeys(run["name"] for run in part["runs"]):
        last = [run["points"][-1] for run in part["runs"] if run["name"] == name]
        body.append(
            [
                name,
                f"{mean(point['seconds'] for point in last):.1f}",
                f"{100 * mean(point['accuracy'] for point in last):.2f}",
            ]
        )
    return f"""## A whole training

MNIST with three orthogonal hidden layers of 512 x 512, {part["steps"]} steps of Adam
with batch {part["batch"]}, means of {len({run["seed"] for run in part["runs"]})} seeds.
All contenders begin at the same weights.

{table(["hidden layers", "seconds", "test accuracy, percent"], body)}

![test error against seconds](assets/quality.png)

The unconstrained network shows what the constraint costs here. When it is worth its
cost is the subject of [exponential, Cayley, or nothing](how-to/maps.md).
"""
