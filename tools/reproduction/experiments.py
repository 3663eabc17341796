"""Small experiments: cost and limits of the constraint, choice of map and base."""

import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import isometry
from isometry import linalg
from isometry.groups import SO
from isometry.lab._process import machine
from isometry.lab.bench.timing import Call, interleave, random_skew
from isometry.nn import ExpRNN
from tools.reproduction.maps import maps, memory
from tools.reproduction.rebase import rebase

FOLDER = Path("records") / "experiments"

SIZES = (64, 128, 256, 512, 1024)

# number of sequences for the recurrent layer, their two lengths (MNIST has 784 pixels),
# and number of rows of the input of the linear layer
BATCH, TIMES, ROWS = 128, (100, 784), 4096


def cheapness(*, rounds: int = 7) -> dict[str, Any]:
    """The time of a training step with the constraint over the time without it.

    The plain recurrent layer is the same layer with its weight folded into a parameter.

    Args:
        rounds: how often each step is timed, in turns.

    Returns:
        The sizes, and for each kind of layer and each size the quartiles of the ratio.
    """
    ratios: dict[str, list[list[float]]] = {}
    for n in SIZES:
        for name, ours, plain in _pairs(n):
            contenders = {"ours": ours, "plain": plain}
            values = []
            for _ in range(rounds):
                times = interleave(contenders, rounds=1, sample=0.2)["seconds"]
                values.append(times["ours"] / times["plain"])
            quartiles = statistics.quantiles(values, n=4, method="inclusive")
            ratios.setdefault(name, []).append([*map(_five_digits, quartiles)])
    return {"machine": machine(), "rounds": rounds, "n": list(SIZES), "ratio": ratios}


def _pairs(n: int) -> Iterator[tuple[str, Call, Call]]:
    """Descriptions of training steps of size n; the steps, constrained and plain."""
    for times in TIMES:
        x = torch.randn(times, BATCH, 10, generator=_generator(n))
        yield (
            f"ExpRNN, {BATCH} sequences of {times} time steps",
            _step(ExpRNN(10, n), x),
            _step(isometry.fold(ExpRNN(10, n)), x),
        )
    rows = torch.randn(ROWS, n, generator=_generator(n))
    yield (
        f"nn.Linear, {ROWS:,} rows",
        _step(isometry.orthogonal(nn.Linear(n, n)), rows),
        _step(nn.Linear(n, n), rows),
    )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _step(layer: nn.Module, x: Tensor) -> Call:
    """A training step with Adam."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        output = layer(x)
        states = output[0] if isinstance(output, tuple) else output
        states.square().mean().backward()
        optimizer.step()

    return step


def cayley(*, n: int = 32, steps: int = 4000) -> dict[str, Any]:
    """Fit a rotation that turns one plane by pi, with Cayley's map and with exp.

    The loss is the mean squared error of the weight. Both fits begin at the identity
    and use Adam with the same rate.

    Args:
        n: size of the rotation.
        steps: number of steps of the optimizer.

    Returns:
        For each map the steps, the losses and the largest eigenvalues of the
        coordinates, in absolute value.
    """
    V = SO(n).random(dtype=torch.float64, generator=_generator(1))
    angles = torch.linspace(0.2, 2.0, n // 2, dtype=torch.float64)
    angles[-1] = torch.pi
    target = V @ torch.block_diag(*(_turn(angle) for angle in angles)) @ V.mT
    curves = {name: _fit(target, name, steps) for name in ("exp", "cayley")}
    return {"machine": machine(), "n": n, "curves": curves}


def _turn(angle: Tensor) -> Tensor:
    c, s = torch.cos(angle), torch.sin(angle)
    return torch.stack([torch.stack([c, -s]), torch.stack([s, c])])


def _fit(target: Tensor, orthogonal_map: str, steps: int) -> dict[str, list[float]]:
    n = target.shape[-1]
    layer = nn.Linear(n, n, bias=False, dtype=target.dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(n))
    isometry.orthogonal(layer, orthogonal_map=orthogonal_map)
    (X,) = layer.parameters()
    optimizer = torch.optim.Adam([X], lr=0.01)
    curve: dict[str, list[float]] = {"step": [], "loss": [], "largest": []}
    for step in range(steps + 1):
        optimizer.zero_grad()
        loss = (layer.weight - target).square().mean()
        if step % (steps // 200) == 0:
            A = X.detach().tril(-1)
            curve["step"].append(step)
            curve["loss"].append(_five_digits(float(loss.detach())))
            largest = torch.linalg.matrix_norm(A - A.mT, 2)
            curve["largest"].append(_five_digits(float(largest)))
        loss.backward()
        optimizer.step()
    return curve


def retractions(*, n: int = 64, rounds: int = 15) -> dict[str, Any]:
    """How far retractions are from the exponential, and how long they take.

    The exponential is computed from an eigendecomposition in float64.

    Args:
        n: size of the matrices.
        rounds: how often each retraction is timed, in turns.

    Returns:
        The largest angles, and for each retraction the distances from the exponential
        in the spectral norm, and the time as a multiple of Cayley's.
    """
    methods: dict[str, Callable[[Tensor], Tensor]] = {
        "Cayley": linalg.cayley,
        "Padé of degree 3": lambda A: linalg.pade(A, degree=3, squarings=0),
        "Padé of degree 3, scaling and squaring": lambda A: linalg.pade(
            A, degree=3, squarings="auto"
        ),
        "exponential": linalg.expm_skew,
    }
    A = random_skew(n, norm=1.0, dtype=torch.float64)
    theta, V = torch.linalg.eigh(-1j * A)
    angles = [_five_digits(10 ** (k / 8)) for k in range(-16, 5)]
    errors: dict[str, list[float]] = {name: [] for name in methods}
    for angle in angles:
        exact = (V * torch.exp(1j * angle * theta)) @ V.mH
        for name, method in methods.items():
            distance = torch.linalg.matrix_norm(method(angle * A) - exact, 2)
            errors[name].append(_five_digits(float(distance)))
    calls = {name: partial(method, A) for name, method in methods.items()}
    seconds = interleave(calls, rounds=rounds)["seconds"]
    return {
        "machine": machine(),
        "n": n,
        "angle": angles,
        "error": errors,
        "time": {
            name: _five_digits(seconds[name] / seconds["Cayley"]) for name in methods
        },
    }


def _five_digits(number: float) -> float:
    return float(f"{number:.5g}")


EXPERIMENTS = {
    "cheapness": cheapness,
    "cayley": cayley,
    "retractions": retractions,
    "maps": maps,
    "memory": memory,
    "rebase": rebase,
}


def read(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The records of all experiments, by name."""
    files = sorted(folder.glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in files}


def write(name: str, folder: Path = FOLDER) -> Path:
    """Run an experiment and write its record.

    Args:
        name: one of `EXPERIMENTS`.
        folder: the folder of the record.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    record = EXPERIMENTS[name]()
    path.write_text(json.dumps(record, separators=(",", ":")) + "\n")
    return path
