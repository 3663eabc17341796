"""Loss against seconds: the exponential, Cayley's map, and no constraint at all."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import isometry
from isometry.groups import SO
from isometry.lab._process import machine
from isometry.lab.tasks import CopyingTask
from isometry.nn import ExpRNN

# largest angles of the rotations to fit; at pi a rotation has the eigenvalue -1
LARGEST = {"near": 1.0, "far": math.pi}

# map and schedule of the base, by the label of the contender
CONTENDERS: dict[str, dict[str, Any]] = {
    "exponential": {"orthogonal_map": "exp"},
    "Cayley": {"orthogonal_map": "cayley"},
    "exponential, base moves": {"orthogonal_map": "exp", "rebase_every": 100},
    "Cayley, base moves": {"orthogonal_map": "cayley", "rebase_every": 100},
}

HIDDEN, BATCH, SEED = 128, 64, 5544

# iterations for each lag of the copying task
STEPS = {100: 800, 500: 1000}

Step = Callable[[int], Tensor]
Curves = dict[str, dict[str, list[float]]]


def maps(*, n: int = 512, steps: int = 400) -> dict[str, Any]:
    """Fit two rotations with Adam: each map, with a fixed base and with a moving base.

    The first rotation has angles up to 1, and the second has angles up to pi. The
    contenders take turns of a few steps.

    Args:
        n: size of the rotations.
        steps: number of steps of the optimizer.

    Returns:
        The machine, `n`, and "curves": for each problem and contender, the seconds of
        processor time and the losses.
    """
    curves = {}
    with _one_thread():
        for problem, largest in LARGEST.items():
            target = _rotation(n, largest)
            fits = {name: _fit(target, options) for name, options in CONTENDERS.items()}
            curves[problem] = _train(fits, steps)
        return {"machine": machine(), "n": n, "curves": curves}


def memory(lags: Sequence[int] = tuple(STEPS)) -> dict[str, Any]:
    """Train a recurrent layer on the copying task, with each map and unconstrained.

    The unconstrained layer starts with the same weights.

    Args:
        lags: lags of the task; `STEPS` has the number of steps for each.

    Returns:
        For each lag and contender the seconds of processor time and the losses.
    """
    with _one_thread():
        curves = {str(lag): _train(_recurrent(lag), STEPS[lag]) for lag in lags}
        return {"machine": machine(), "n": HIDDEN, "curves": curves}


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rotation(n: int, largest: float) -> Tensor:
    """A rotation with evenly spaced angles up to the largest, in random planes."""
    V = SO(n).random(dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    angles = torch.linspace(0.05, largest, n // 2, dtype=torch.float64)
    return (V @ torch.linalg.matrix_exp(SO(n).torus(angles)) @ V.mT).float()


def _fit(target: Tensor, options: Mapping[str, Any]) -> Step:
    """A function that makes a step of Adam on the mean squared error of the weight.

    The weight starts at the identity.
    """
    n = target.shape[-1]
    layer = nn.Linear(n, n, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(n))
    isometry.orthogonal(layer, **options)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        loss = (layer.weight - target).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _recurrent(lag: int) -> dict[str, Step]:
    """Steps of the copying task with three layers that start with the same weights."""
    task = CopyingTask(lag=lag)
    return {
        "exponential": _copy(task, _layer("exp")),
        "Cayley": _copy(task, _layer("cayley")),
        "no constraint": _copy(task, isometry.fold(_layer("exp"))),
    }


def _layer(retraction: str) -> ExpRNN:
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    return ExpRNN(10, HIDDEN, retraction=retraction, generator=generator)


def _copy(task: CopyingTask, layer: ExpRNN) -> Step:
    """A function that makes a step of RMSprop on the copying task.

    The rate of the recurrent weight is a tenth of the other rate.
    """
    torch.manual_seed(SEED)
    head = nn.Linear(HIDDEN, task.output_size)
    recurrent = [p for name, p in layer.named_parameters() if "weight_hh" in name]
    others = [p for name, p in layer.named_parameters() if "weight_hh" not in name]
    optimizer = torch.optim.RMSprop(
        [
            {"params": [*others, *head.parameters()], "lr": 1e-3},
            {"params": recurrent, "lr": 1e-4},
        ]
    )

    def step(number: int) -> Tensor:
        batch = task.batch(number, size=BATCH, seed=SEED)
        optimizer.zero_grad()
        loss = task.loss(head(layer(batch.x)[0]), batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _train(contenders: Mapping[str, Step], steps: int, *, every: int = 10) -> Curves:
    """Train all contenders in turns, and keep the median loss of every few steps.

    Seconds are processor time, so other programs on the machine do not count.
    """
    curves: Curves = {name: {"seconds": [], "loss": []} for name in contenders}
    clocks = dict.fromkeys(contenders, 0.0)
    for first in range(0, steps, every):
        for name, step in contenders.items():
            begin = time.process_time()
            losses = [step(number) for number in range(first, first + every)]
            clocks[name] += time.process_time() - begin
            median = torch.stack(losses).median()
            curves[name]["seconds"].append(round(clocks[name], 2))
            curves[name]["loss"].append(float(f"{float(median):.3g}"))
    return curves
