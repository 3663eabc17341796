"""Tables in Markdown from records; no measured number is typed by hand."""

import re
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from benchmarks import layer_report, wheel
from benchmarks.records import table, where


def kernel_table(rows: Sequence[dict[str, Any]]) -> str:
    """Table of the times and products of our exponential and of torch's."""
    body = []
    for row in rows:
        reached = "goal" if row["ratio"] >= row["goal"] else "must"
        reached = reached if row["ratio"] >= row["must"] else "**no**"
        seconds = row["seconds"]
        body.append(
            [
                row["case"],
                f"{1e3 * seconds['torch']:.2f}",
                f"{1e3 * seconds['ours']:.2f}",
                f"**{row['ratio']:.1f}x**",
                f"{row['median_ratio']:.1f}x",
                f"{row['bounded_ratio']:.1f}x",
                f"{row['must']:g}x / {row['goal']:g}x",
                reached,
                f"{row['torch_products']:.0f}",
                f"{row['products']:.0f} ({row['bounded_products']:.0f})",
                f"{seconds['ours'] / seconds['products']:.2f}",
            ]
        )
    header = [
        "case",
        "torch, ms",
        "ours, ms",
        "ratio",
        "of medians",
        "bound known",
        "must / goal",
        "reached",
        "torch's products",
        "ours (bound known)",
        "time / products",
    ]
    return table(header, body)


def peer_table(rows: Sequence[dict[str, Any]]) -> str:
    """Table of every peer's time as a multiple of ours, by size."""
    names = [name for name in rows[0]["seconds"] if name != "isometry"]
    body = []
    for name in names:
        cells = []
        for row in rows:
            t = row["seconds"].get(name)
            cells.append("" if t is None else f"{t / row['seconds']['isometry']:.2g}")
        body.append([name, *cells])
    ours = [f"{1e3 * row['seconds']['isometry']:.2f} ms" for row in rows]
    header = ["time / ours", *(f"n = {row['n']}" for row in rows)]
    return table(header, [["isometry", *ours], *body])


def accuracy_table(rows: Sequence[dict[str, Any]]) -> str:
    """Table of our worst errors and torch's, over norms up to pi and up to 100."""
    body = []
    keys = sorted({(row["dtype"], row["n"]) for row in rows}, key=str)
    for dtype, n in keys:
        for what in ("value", "gradient", "orthogonality"):
            some = [row for row in rows if (row["dtype"], row["n"]) == (dtype, n)]
            inside = [row for row in some if row["norm"] <= 3.15]
            body.append(
                [
                    dtype.removeprefix("torch."),
                    str(n),
                    what,
                    *(
                        f"{max(r[w][what] for r in inside):.1e}"
                        for w in ("ours", "torch")
                    ),
                    *(
                        f"{max(r[w][what] for r in some):.1e}"
                        for w in ("ours", "torch")
                    ),
                ]
            )
    header = ["dtype", "n", "worst error of"]
    header += ["ours, norm up to π", "torch", "ours, norm up to 100", "torch"]
    return table(header, body)


def paragraph(records: dict[str, dict[str, Any]]) -> str:
    """The README's paragraphs about the processors with measured kernels."""
    measured = [record for record in records.values() if "kernel" in record]
    return "\n\n".join(fill(sentence(record), width=88) for record in measured)


def sentence(record: dict[str, Any]) -> str:
    """The paragraph of the README about one processor."""
    large = [r for r in record["kernel"] if r["case"].startswith("float32, n = ")]
    large = [r for r in large if r["case"].endswith(("256", "512", "1024"))]
    ratios = [r["ratio"] for r in large]
    ours = [r["products"] for r in large]
    torch = [r["torch_products"] for r in large]
    inside = [
        r
        for r in record["accuracy"]
        if r["dtype"] == "torch.float32" and r["n"] >= 512 and r["norm"] <= 3.15
    ]
    worst = {w: max(r[w]["gradient"] for r in inside) for w in ("ours", "torch")}
    step = layer_report.step_sentence(record["layers"]) if "layers" in record else ""
    return (
        f"On {record['processor']}, {record['threads']} threads, float32: at n = 256 "
        f"to 1024, a forward and backward pass of `expm_skew` takes {min(ours):.0f} or "
        f"{max(ours):.0f} matrix products; `torch.linalg.matrix_exp` takes "
        f"{min(torch):.0f} to {max(torch):.0f}. `expm_skew` is {min(ratios):.1f} to "
        f"{max(ratios):.1f} times faster. Up to norm π the worst error of its gradient "
        f"is {worst['ours']:.0e}; torch's is {worst['torch']:.0e}. {step}"
    )


def ledger(records: dict[str, dict[str, Any]]) -> str:
    """The page docs/ledger.md: all processors side by side, then one section each.

    Args:
        records: the records, by the names of their files.

    Returns:
        Markdown.
    """
    places = [where(record) for record in records.values()]
    keys = ("processor", "cores", "threads", "torch", "blas")
    # the oldest record lacks the number of cores and the name of the BLAS
    rows = [[str(place.get(key, "not recorded")) for key in keys] for place in places]
    bodies = [_section(name, record) for name, record in records.items()]
    return f"""# Ledger of measurements

For developers: everything that is measured, beside what is required ("must") and what
was hoped for ("goal"). [Results](results.md) has the numbers for users. `make bench`
generates this page from `records/benchmarks`; do not edit it. Each processor has a
section. Contenders are timed in turns within one run, and only their ratios mean
something on another machine.

{table(["processor", "cores", "threads", "torch", "BLAS"], rows)}
{beside(list(records.values()))}
{"".join(bodies)}"""


def beside(records: Sequence[dict[str, Any]]) -> str:
    """Table of the ratios to torch's exponential, with a column per processor."""
    measured = [record for record in records if "kernel" in record]
    if len(measured) < 2:
        return ""
    ratios = [{r["case"]: r["ratio"] for r in record["kernel"]} for record in measured]
    cases = list(dict.fromkeys(case for column in ratios for case in column))
    rows = [
        [case, *(f"{column[case]:.1f}x" if case in column else "" for column in ratios)]
        for case in cases
    ]
    header = ["ours over torch", *(record["processor"] for record in measured)]
    return f"""
How many times faster than `torch.linalg.matrix_exp`, forward and backward:

{table(header, rows)}
"""


def _section(name: str, record: dict[str, Any]) -> str:
    """All measurements of one processor, with headings one level down."""
    parts = kernel_sections(record) if "kernel" in record else ""
    parts += layer_report.sections(record)
    parts += wheel.section(record["wheel"]) if "wheel" in record else ""
    parts = re.sub(r"^#", "##", parts, flags=re.MULTILINE)
    parts = parts.replace("](assets/", f"](assets/{name}/")
    return f"## {where(record)['processor']}\n\n{parts.lstrip()}\n"


def kernel_sections(record: dict[str, Any]) -> str:
    """The sections on the functions of `isometry.linalg`."""
    tall, memory, outlier = record["tall"], record["memory"], record["outlier"]
    scale = record["cotangent_scale"]
    MB = 2**20
    return f"""## The exponential, forward and backward

Random skew matrices of spectral norm 3 (0.1 in the last row), cotangents with
$\\lVert G \\rVert_F = 1$; best of {record["rounds"]} rounds. A product is one
$n \\times n$ matrix product. The last column is our time divided by the time of as many
bare products of different matrices. (Products of one matrix with itself, which stays in
the cache, take less.) "Bound known" is with `norm_bound`, where no norm has to be
estimated. The machine is noisy: ratios change from run to run, most of all for batches.

{kernel_table(record["kernel"])}

Small matrices miss their goals for another reason than arithmetic: as the last column
shows, most of their time is spent in Python and autograd, not in products.

![time and accuracy](assets/kernel.png)

## Every peer, float32, norm 3

{peer_table(record["peers"])}

The Cayley map is not an exponential, and cannot reach the eigenvalue -1.

## Torch's time depends on the size of the incoming gradient

n = 512, norm 3, float32. Torch computes its gradient as the exponential of a larger
matrix that contains $G$, so a large $G$ takes more squarings.

{
        table(
            ["norm of G", "torch, ms", "torch's products", "ours, ms", "ratio"],
            [
                [
                    f"{row['scale']:g}",
                    f"{1e3 * row['torch']:.1f}",
                    f"{row['torch_products']:.0f}",
                    f"{1e3 * row['ours']:.1f}",
                    f"{row['torch'] / row['ours']:.1f}x",
                ]
                for row in scale
            ],
        )
    }

## One outlier in a batch

One matrix of norm 1000 among 10,000 of size 8 x 8 and norm 1 makes the batch
{outlier["outlier"] / outlier["plain"]:.2f} times as slow (torch:
{outlier["torch outlier"] / outlier["torch plain"]:.2f} times).

## Memory

At its peak, one pass at n = 1024 in float32 has allocated {memory["ours"] / MB:.0f} MB;
torch's has allocated {memory["torch"] / MB:.0f} MB, a ratio of
{memory["ours"] / memory["torch"]:.2f}.

## Tall matrices

A forward and backward pass of `expm_tall` at 4096 x 64 takes
{1e3 * tall["ours"]:.1f} ms; torch's `orthogonal` on that shape takes {
        tall["torch Cayley"]:.1f} s with the Cayley map
({tall["torch Cayley"] / tall["ours"]:.0f}x) and {tall["torch Householder"]:.1f} s with
Householder reflections ({
        tall["torch Householder"] / tall["ours"]:.0f}x). At 30000 x 50:
{1e3 * tall["ours 30000 x 50"]:.0f} ms, {memory["tall"] / MB:.0f} MB.

## Accuracy

Errors are measured against an eigendecomposition in double precision, which is itself
accurate to about 1e-15. Norms go from 0.001 to 100; the angles are random, or all equal
to the norm. The error of a gradient is relative to the gradient. So n = 1, where the
gradient is zero, and n = 2, where it can nearly vanish, are not in the table. The tests
include both, and divide by the norm of the cotangent instead.

{accuracy_table(record["accuracy"])}

![errors against the norm](assets/accuracy.png)
"""
