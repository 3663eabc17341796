"""Training that never arrives, to see whether rounding errors add up."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import isometry
from tests.helpers import random_skew, random_unitary

# steps between two looks at the weight
LOOK = 50


@dataclass(frozen=True)
class Case:
    """A 32 x k weight, the options of its constraint, and how its target turns."""

    name: str
    k: int = 32
    options: dict[str, Any] = field(default_factory=dict)
    #: largest angle between the target and its start
    angle: float = math.inf


CASES = [
    # the target turns back before it leaves the radius of the exponential
    Case("fixed base", angle=2.5),
    # the base is multiplied again and again, and errors must not add up
    Case("moving base", options={"rebase_every": 100}),
    Case("tall", k=8, options={"rebase_every": 100}),
    Case("cayley", options={"orthogonal_map": "cayley", "rebase_radius": 1.0}),
]


@dataclass(frozen=True)
class Drift:
    """Measurements of a run; norms are Frobenius norms over sqrt(k)."""

    #: largest norm of W^T W - I, evaluated in double precision
    defect: float
    #: length of the weight's path, from look to look
    travelled: float
    #: largest distance to the target
    distance: float
    #: largest coordinates
    norm: float


def orbit(case: Case, start: Tensor, rng: torch.Generator) -> Callable[[int], Tensor]:
    r"""A target that keeps turning: $T_t = \exp(f(t) S)\, T_0$ with $|f'| \le 1$.

    The largest angle of $S$ is 0.001. $f(t) = t$ if `case.angle` is infinite. Otherwise
    $f$ is a sine, and no angle between target and start exceeds `case.angle`.
    """
    rate = 1e-3
    S = random_skew(start.shape[0], norm=rate, dtype=torch.float64, rng=rng)
    theta, V = torch.linalg.eigh(-1j * S)
    W = V.mH @ start.to(V.dtype)

    def target(step: int) -> Tensor:
        turns = case.angle / rate
        f = step if math.isinf(turns) else turns * math.sin(step / turns)
        return ((V * torch.exp(1j * f * theta)) @ W).real.float()

    return target


def drift(case: Case, *, steps: int, rng: torch.Generator) -> Drift:
    """Follow the target with Adam, and measure the weight every few steps."""
    layer = nn.Linear(case.k, 32, bias=False)
    start = random_unitary(32, k=case.k, dtype=torch.float32, rng=rng)
    layer.weight = nn.Parameter(start.clone())
    isometry.orthogonal(layer, **case.options)
    X = layer.get_parameter("parametrizations.weight.original")
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    target = orbit(case, start, rng)
    seen: list[tuple[float, float, float, float]] = []
    last = start
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = (layer.weight - target(step)).square().sum() / 2
        loss.backward()
        optimizer.step()
        if step % LOOK == 0:
            W = layer.weight.detach()
            moved, away = size(W - last), size(W - target(step))
            seen.append((normalized_defect(W), moved, away, size(X.detach())))
            last = W
    defects, moves, distances, norms = zip(*seen, strict=True)
    return Drift(max(defects), sum(moves), max(distances), max(norms))


def size(E: Tensor) -> float:
    return float(torch.linalg.matrix_norm(E)) / E.shape[-1] ** 0.5


def normalized_defect(W: Tensor) -> float:
    W = W.double()
    return size(W.mT @ W - torch.eye(W.shape[-1], dtype=W.dtype))
