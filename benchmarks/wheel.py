"""Compares the kernels of a wheel with kernels that are built for this processor.

A wheel has one library for each kind of processor. Every library that this processor
can run is compiled here, as by `make wheel`, and takes turns with the native build. A
second process of the native build shows the noise.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import ROOT, table
from benchmarks.versions import Version, best_times, geometric_mean
from isometry._backend import build
from isometry._backend.build import Variant

NATIVE, AGAIN = "native", "native again"

# a selection of the cases of `version_cases` that use C; none has complex matrices,
# which torch computes
CASES = (
    *("kernels: 4096 x 8 x 8", "kernels: 1024 x 32 x 32", "kernels: 16", "kernels: 64"),
    *("kernels: 128, norm 3", "kernels: 512, norm 3", "kernels: 256, float64"),
    *("layers: 64", "layers: 512", "reads: 64", "optimizers: SGD 512"),
    *("recurrent: ExpRNN 16", "recurrent: ExpRNN 64", "recurrent: ExpRNN 190"),
    "recurrent: ExpLSTM 64",
)
# lines of progress that `measure` writes
STEPS = len(CASES)


def variants() -> list[Variant]:
    """The variants of the kernels that this processor can run, the best first."""
    instructions = build._instructions()  # noqa: SLF001 - as `bundled` does
    return [v for v in build.VARIANTS[platform.machine()] if v.needs <= instructions]


def _make_checkout(variant: Variant, folder: Path) -> Path:
    """Make a checkout whose only library is this variant's, as if from a wheel."""
    package = folder / "src" / "isometry"
    shutil.copytree(
        ROOT / "src" / "isometry", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    library = folder / "kernels.so"
    build.compile_sources(build.compiler(), [*variant.options, "-s"], library)
    bundled = package / "_backend" / "bundled"
    bundled.mkdir()
    name = build.file_name(variant.key(), library.read_bytes())
    shutil.move(library, bundled / name)
    return folder


def origin(checkout: Path) -> str:
    """Where the kernels of a checkout come from, in the words of `kernels_origin`."""
    script = "from isometry._backend import kernels_origin; print(kernels_origin())"
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    words = [sys.executable, "-c", script]
    return subprocess.check_output(words, env=environment, text=True, cwd=checkout)


def measure(
    *, rounds: int, say: Callable[[str], None], cases: Sequence[str] = CASES
) -> dict[str, Any]:
    """Time each case with the native build and with each library of a wheel.

    Args:
        rounds: samples of each library.
        say: function that shows progress; called with a text before each case.
        cases: names in `version_cases`.

    Returns:
        For each case, the seconds of the native build and the ratio of each library's
        time to it; and the geometric mean of the ratios of each library.

    Raises:
        RuntimeError: if a process would not use the library that it has to time.
    """
    with tempfile.TemporaryDirectory() as scratch:
        checkouts = {NATIVE: ROOT, AGAIN: ROOT}
        for variant in variants():
            folder = Path(scratch) / variant.name
            checkouts[variant.name] = _make_checkout(variant, folder)
            if f"kernels-{variant.name}-" not in (place := origin(folder)):
                raise RuntimeError(
                    f"{variant.name} must come from a wheel; got {place}"
                )
        if not (place := origin(ROOT)).startswith(("cache", "built just now")):
            raise RuntimeError(f"the native kernels must be built here; got {place}")
        processes = [Version(checkout) for checkout in checkouts.values()]
        rows = []
        for case in cases:
            say(f"wheel: {case}")
            seconds = best_times(case, processes, rounds)
            others = zip(list(checkouts)[1:], seconds[1:], strict=True)
            ratios = {name: time / seconds[0] for name, time in others}
            rows.append({"case": case, "seconds": seconds[0], "ratios": ratios})
        for process in processes:
            process.close()
    means = {
        name: geometric_mean([row["ratios"][name] for row in rows])
        for name in rows[0]["ratios"]
    }
    return {"rows": rows, "means": means}


def section(record: dict[str, Any]) -> str:
    """The section of docs/ledger.md."""
    names = list(record["means"])
    body = [
        [row["case"], f"{1e3 * row['seconds']:.3g}"]
        + [f"{row['ratios'][name]:.2f}" for name in names]
        for row in record["rows"]
    ]
    means = [f"{record['means'][name]:.3f}" for name in names]
    return f"""
## The kernels of a wheel

Time over the time of the native build, `-march=native`; best of {record["rounds"]}
rounds, in which all take turns. The second process of the native build shows the noise.

{table(["case", "native, ms", *names], [*body, ["geometric mean", "", *means]])}
"""
