"""Measure isometry against its peers, and write records, figures and tables.

python -m benchmarks            # everything; records, pages, figures
python -m benchmarks kernels    # only linalg; all other numbers stay
python -m benchmarks layers     # only training steps
python -m benchmarks reads      # only the cost of reading a weight
python -m benchmarks recurrent  # only the loop over time
python -m benchmarks optimizers # only Riemannian descent
python -m benchmarks quality    # only the accuracy on MNIST (--data DIR)
python -m benchmarks training   # only steps of `isometry train` (--data DIR)
python -m benchmarks wheel      # only the kernels of a wheel, beside the native ones
python -m benchmarks report     # write the docs from the records, measure nothing

Each processor has its own record, under records/benchmarks.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    accuracy,
    kernel,
    layers,
    memory,
    optimizers,
    quality,
    reads,
    records,
    recurrent,
    tall,
    training,
    wheel,
)
from benchmarks.records import ROOT, environment
from isometry.lab.bench.timing import ProgressLine


def measure_kernels(rounds: int) -> dict[str, Any]:
    """Time, memory and accuracy of the functions of `isometry.linalg`."""
    say = ProgressLine(len(kernel.CASES) + 5 + 4 + 6)
    record = environment(rounds)
    record["kernel"] = kernel.measure_all(rounds=rounds, say=say)
    record["peers"] = [
        kernel.measure_peers(n, rounds=5, say=say) for n in (64, 128, 256, 512, 1024)
    ]
    record["cotangent_scale"] = kernel.measure_cotangent_scale(rounds=5, say=say)
    record["outlier"] = kernel.measure_outlier(rounds=5, say=say)
    record["accuracy"] = [
        row
        for dtype, sizes in (
            (torch.float32, (512, 8, 64, 1024)),
            (torch.float64, (64,)),
            (torch.complex64, (64,)),
        )
        for n in sizes
        for row in accuracy.measure(n, dtype=dtype, say=say)
    ]
    record["memory"] = memory.measure(say=say)
    record["tall"] = tall.measure(say=say)
    return record


# parts of a record, and the modules whose `measure` returns them
MODULES: dict[str, Any] = {
    "layers": layers,
    "reads": reads,
    "recurrent": recurrent,
    "optimizers": optimizers,
    "wheel": wheel,
}


def measure_part(name: str, rounds: int) -> dict[str, Any]:
    """Measure one of the parts in `MODULES`."""
    module = MODULES[name]
    numbers = module.measure(rounds=rounds, say=ProgressLine(module.STEPS))
    return {name: environment(rounds) | numbers}


def measure_quality(folder: Path) -> dict[str, Any]:
    """Measure accuracy against seconds of training, or return {} without MNIST."""
    if absent := quality.missing(folder):
        print(
            f"quality: skipped, because {folder} has no {absent[0]}. Pass the folder "
            f"of MNIST's four idx files with --data or in ISOMETRY_DATA; until then "
            f"the record keeps its old numbers.",
            file=sys.stderr,
        )
        return {}
    numbers = quality.measure(folder, say=ProgressLine(quality.SEEDS))
    return {"quality": environment(rounds=1) | numbers}


def measure_training(folder: Path, rounds: int) -> dict[str, Any]:
    """Time of the steps of `isometry train`."""
    say = ProgressLine(training.STEPS)
    numbers = training.measure(folder, rounds=rounds, say=say)
    return {"training": environment(rounds) | numbers}


def draw(record: dict[str, Any], assets: Path) -> None:
    """Draw the figures of one processor, for the parts that its record has."""
    from benchmarks import figures, layer_figures

    assets.mkdir(parents=True, exist_ok=True)
    if "kernel" in record:
        single = [row for row in record["accuracy"] if row["dtype"] == "torch.float32"]
        part = record | {"accuracy": [r for r in single if r["n"] in (64, 512)]}
        part["accuracy"].sort(key=lambda row: -row["n"])
        figures.kernel(part, assets / "kernel.png")
        figures.accuracy(part, assets / "accuracy.png")
    if "layers" in record:
        layer_figures.network(record["layers"], assets / "network.png")
    if "optimizers" in record:
        optimizers.figure(record["optimizers"], assets / "optimizers.png")
    if "quality" in record:
        layer_figures.quality(record["quality"], assets / "quality.png")


def write_docs(every: dict[str, dict[str, Any]]) -> None:
    """Write docs/results.md, docs/ledger.md, and the paragraph in the README."""
    from benchmarks import highlights, report

    (ROOT / "docs" / "results.md").write_text(highlights.results(every))
    (ROOT / "docs" / "ledger.md").write_text(report.ledger(every))
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition("<!-- measured -->\n")
    after = rest.partition("<!-- /measured -->")[2]
    marked = f"<!-- measured -->\n{report.paragraph(every)}\n<!-- /measured -->"
    readme.write_text(before + marked + after)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure isometry against its peers."
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="all",
        choices=["all", "kernels", *MODULES, "quality", "training", "report"],
    )
    parser.add_argument(
        "--rounds", type=int, default=9, help="samples of each contender"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=quality.default_folder(),
        metavar="DIR",
        help="folder of MNIST's four idx.gz files (default: %(default)s)",
    )
    options = parser.parse_args()
    parts = {
        "kernels": lambda: measure_kernels(options.rounds),
        **{name: partial(measure_part, name, options.rounds) for name in MODULES},
        "quality": lambda: measure_quality(options.data),
        # last, because from then on the process keeps the memory that torch frees
        "training": lambda: measure_training(options.data, options.rounds),
    }
    for name, measure in parts.items():
        if options.what in ("all", name):
            # write each part at once, so that it is not lost if a later part fails
            records.add(measure())
    every = records.load()
    here = records.slug(environment(rounds=1)["processor"])
    for name, record in every.items():
        # the records of other processors have not changed, so keep their figures
        if options.what == "report" or name == here:
            draw(record, ROOT / "docs" / "assets" / name)
    write_docs(every)
    print(ROOT / "docs" / "results.md")


if __name__ == "__main__":
    main()
