"""Time of the laboratory's whole training step, against its bare products.

The bare products are the matrix products of the recurrence, computed without the rest.
"""

import subprocess
import sys
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import quality
from benchmarks.records import reached, table
from isometry.lab import Config, Training
from isometry.lab._process import Ranks, keep_freed_memory
from isometry.lab._train.experiment import Experiment, build
from isometry.lab._train.loop import begin_step
from isometry.lab.bench import BARE
from isometry.lab.bench.suites import bare
from isometry.lab.bench.timing import Call, interleave

TRAINING = "training step"
CPU = torch.device("cpu")
# measure one thread, too: the bare products gain less from a second thread than the
# training loop does
THREADS = sorted({torch.get_num_threads(), 1}, reverse=True)


class Case(NamedTuple):
    """A run of `isometry train`, and the required ratio to its bare products."""

    task: str
    options: dict[str, Any]
    steps: int
    n: int
    must: float
    batch: int = 128


CASES = (
    Case("copying", {"lag": 1000}, 1020, 190, must=1.8),
    Case("mnist", {}, 784, 170, must=1.6),
)
# limit on the seconds of `isometry --help`
MUST_HELP = 1.0
# lines of progress that `measure` writes
STEPS = len(CASES) * len(THREADS) + 1


def config_of(case: Case, folder: Path) -> Config:
    """The configuration of the paper's run. Images are read from `folder`."""
    options = case.options | ({"root": str(folder)} if case.task == "mnist" else {})
    return Config(
        case.task, options, Training(hidden_size=case.n, batch_size=case.batch)
    )


def training_step(experiment: Experiment) -> Call:
    """A step of the loop of `isometry train`, on a new batch each time."""
    ranks, indices = Ranks(0, 1, CPU), count()

    def call() -> None:
        step = begin_step(experiment, experiment.model, ranks, next(indices))
        step.agree(interrupt=False)
        step.update()

    return call


def measure_case(case: Case, threads: int, folder: Path, rounds: int) -> dict[str, Any]:
    """Time a training step and its bare products, in turns of about a second.

    Turns of this length make sure that memory is warm.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    experiment = build(config_of(case, folder), CPU)
    contenders = {
        BARE: bare(case.steps, case.n, case.batch),
        TRAINING: training_step(experiment),
    }
    times = interleave(contenders, rounds=rounds, sample=1.0)
    torch.set_num_threads(before)
    return case._asdict() | {"threads": threads, **times}


def show_help() -> None:
    """Run `isometry --help` in a new process."""
    command = [sys.executable, "-m", "isometry", "--help"]
    subprocess.run(command, check=True, capture_output=True)


def measure(folder: Path, *, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all cases whose data is present, and the time of `--help`."""
    # `isometry train` also keeps freed memory
    keep_freed_memory()
    rows = []
    for case, threads in product(CASES, THREADS):
        absent = quality.missing(folder) if case.task == "mnist" else []
        note = ", left out: no images" if absent else ""
        say(f"training: {case.task}, {threads} threads{note}")
        if not absent:
            rows.append(measure_case(case, threads, folder, rounds))
    say("training: isometry --help")
    times = interleave({"help": show_help}, rounds=rounds)
    return {"cases": rows, "help": {key: t["help"] for key, t in times.items()}}


def section(part: dict[str, Any]) -> str:
    """The section of docs/ledger.md."""
    body = []
    for row in part["cases"]:
        best, median = (
            row[key][TRAINING] / row[key][BARE] for key in ("seconds", "median")
        )
        body.append(
            [
                f"{row['task']}, {row['steps']} steps, n = {row['n']}",
                str(row["threads"]),
                f"{1e3 * row['seconds'][BARE]:.0f}",
                f"{1e3 * row['seconds'][TRAINING]:.0f}",
                f"**{best:.2f}** ({median:.2f})",
                f"{row['must']:g}",
                reached(best <= row["must"]),
            ]
        )
    header = ["task", "threads", "bare, ms", "step, ms", "ratio (of medians)"]
    seconds = part["help"]["median"]
    return f"""## A step of `isometry train`

A whole step of the laboratory's training loop with `ExpRNN` and the paper's optimizers,
batch {part["cases"][0]["batch"]}: data, exponential, recurrence, output layer, loss,
gradients and update. "Bare" is the time of the recurrence's products alone, three for
each time step, as above; they gain less from a second thread than the loop does.
Contenders take turns of about a second; best of {part["rounds"]} rounds.

{table([*header, "at most", "reached"], body)}

`isometry --help` takes {seconds:.2f} s in a new process (median); it must stay below
{MUST_HELP:g} s. Reached: {reached(seconds < MUST_HELP)}.
"""
