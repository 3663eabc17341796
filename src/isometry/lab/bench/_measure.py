"""The suites: what is timed, and at which sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isometry.lab.bench import _layers, _recurrent
from isometry.lab.bench._layers import layer
from isometry.lab.bench._names import OURS
from isometry.lab.bench._optimizers import OUR_EXP, optimizers
from isometry.lab.bench._passes import kernel
from isometry.lab.bench._recurrent import recurrent
from isometry.lab.bench._timing import Run, interleave


@dataclass(frozen=True)
class Suite:
    """Contenders that do the same work.

    Attributes:
        title: what the work is.
        note: what a reader of the table must know.
        contenders: by name, for a size and a device.
        ours: the one to which ratios are given.
        sizes: the usual ones.
    """

    title: str
    note: str
    contenders: Callable[[int, torch.device], dict[str, Run]]
    ours: str
    sizes: tuple[int, ...]


SUITES = {
    "kernel": Suite(
        "forward + backward pass of an exponential, norm 3",
        "Cayley's map and reflections are other maps: the first does not reach the "
        "eigenvalue -1.",
        *(kernel, OURS, (64, 128, 256, 512)),
    ),
    "layer": Suite(
        f"training step of an n x n layer, batch {_layers.BATCH}, Adam",
        "The coordinates have norm 3; those of reflections are where they start.",
        *(layer, OURS, (64, 128, 256, 512)),
    ),
    "recurrent": Suite(
        f"training step over {_recurrent.STEPS} steps of time, "
        f"batch {_recurrent.BATCH}, RMSprop",
        "isometry is ExpRNN. torch and geotorch have no such layer: their weights are "
        "in a loop in Python.",
        *(recurrent, OURS, (64, 128, 256)),
    ),
    "optimizers": Suite(
        "step of SGD with momentum on n x n orthogonal matrices",
        "The gradient is given: this is what the optimizer itself costs.",
        *(optimizers, OUR_EXP, (64, 128, 256, 512)),
    ),
}


def sizes_of(suite: str, sizes: Sequence[int] | None) -> Sequence[int]:
    """Those that are wanted, in their order, or the usual ones."""
    return sorted(set(sizes)) if sizes else SUITES[suite].sizes


def measure(
    name: str,
    sizes: Sequence[int],
    *,
    device: torch.device,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Time one suite; all in float32.

    Args:
        name: of the suite.
        sizes: the n of its matrices.
        device: where to.
        rounds: samples of each contender.
        say: told what is measured next, once a size.

    Returns:
        What is timed and, by size, seconds of each contender: the best and the median.
    """
    suite, rows = SUITES[name], []
    for n in sizes:
        say(f"{name}: n = {n}")
        times = interleave(suite.contenders(n, device), rounds=rounds, sample=0.1)
        rows.append(
            {
                "n": n,
                "seconds": {name: t.best for name, t in times.items()},
                "median": {name: t.median for name, t in times.items()},
            }
        )
    return {
        "suite": name,
        "title": suite.title,
        "note": suite.note,
        "ours": suite.ours,
        "rows": rows,
    }
