"""Training that never arrives, to see whether rounding errors add up."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isometry.groups import (
    SO,
    SU,
    AbstractGroup,
    AbstractManifold,
    Sp,
    Sphere,
    Stiefel,
    U,
)
from isometry.optim import RiemannianAdam, RiemannianSGD
from tests.helpers import double_dtype, random_skew
from tests.optim.cases import single_dtype_of

# steps between two looks at the weight; odd, to see all phases between two polishes
LOOK = 17


@dataclass(frozen=True)
class Case:
    """A manifold, a retraction, and the optimizer that makes the steps."""

    manifold: AbstractManifold
    retraction: str
    adam: bool = False
    #: size of the normal part of the gradient; the tangent part is below 0.1
    pull: float = 0.0

    @property
    def name(self) -> str:
        rule = "Adam" if self.adam else "SGD"
        return f"{self.manifold}, {self.retraction}, {rule}, {self.pull:g}"


NAMES = ("exp", "cayley", "pade-2", "polar", "qr")
CASES = [
    *(Case(SO(32), name) for name in NAMES),
    *(Case(Stiefel(32, 8), name) for name in NAMES),
    *(Case(Stiefel(8, 5), name) for name in ("exp", "qr")),
    Case(U(16), "exp", adam=True),
    Case(SU(8), "exp"),
    Case(SU(8), "polar"),
    Case(Sp(4), "cayley"),
    Case(Sphere(32), "exp"),
    # Rounding in the projection of a large normal gradient leaves a part that is not
    # tangent.
    *(Case(SO(32), name, adam=True, pull=10.0) for name in ("exp", "polar")),
    *(Case(Stiefel(32, 8), name, adam=True, pull=10.0) for name in NAMES),
    Case(Stiefel(8, 5), "exp", adam=True, pull=10.0),
    Case(Sphere(32), "exp", adam=True, pull=10.0),
]


@dataclass(frozen=True)
class Drift:
    """Measurements of a run; norms are Frobenius norms over sqrt(k)."""

    #: largest defect, evaluated in double precision
    defect: float
    #: length of the weight's path, from look to look
    travelled: float
    #: largest distance to the target in the second half
    distance: float


def drift(case: Case, *, steps: int, rng: torch.Generator) -> Drift:
    """Follow a target that turns by 0.001 a step, and measure the weight."""
    M = case.manifold
    p = nn.Parameter(M.random(dtype=single_dtype_of(M), generator=rng))
    rule = RiemannianAdam if case.adam else RiemannianSGD
    options: dict[str, Any] = {} if case.adam else {"momentum": 0.5}
    optimizer = rule(
        [p],
        lr=1e-3 if case.adam else 0.2,
        manifold=M,
        retraction=case.retraction,
        **options,
    )
    turn = turning(M, p.detach().clone(), rng)
    seen: list[tuple[float, float, float]] = []
    last = p.detach().clone()
    for step in range(1, steps + 1):
        target = turn(step)
        # the gradient of |W - T|^2 / 2 - pull |W|^2 / 2
        p.grad = p.detach() * (1 - case.pull) - target
        optimizer.step()
        if step % LOOK == 0:
            Q = p.detach().clone()
            seen.append((normalized_defect(M, Q), size(Q - last), size(Q - target)))
            last = Q
    defects, moves, distances = zip(*seen, strict=True)
    return Drift(max(defects), sum(moves), max(distances[len(seen) // 2 :]))


def turning(
    manifold: AbstractManifold, start: Tensor, rng: torch.Generator
) -> Callable[[int], Tensor]:
    r"""The target at step $t$: $T_0 e^{tS}$ in a group, otherwise $e^{tS} T_0$.

    It turns by at most 0.001 radians per step.
    """
    group = isinstance(manifold, AbstractGroup)
    n = start.shape[0]
    S = random_skew(n, norm=1.0, dtype=double_dtype(start.dtype), rng=rng)
    if isinstance(manifold, SU | Sp):
        S = manifold.algebra_projection(S)
    S = 1e-3 * S / torch.linalg.matrix_norm(S, 2)
    theta, V = torch.linalg.eigh(-1j * S)
    W = V.mH @ start.to(V.dtype) if not group else V.mH

    def target(step: int) -> Tensor:
        X = (V * torch.exp(1j * step * theta)) @ W
        X = start.to(X.dtype) @ X if group else X
        return (X if start.is_complex() else X.real).to(start.dtype)

    return target


def size(E: Tensor) -> float:
    columns = E.shape[-1] if E.ndim > 1 else 1
    return float(torch.linalg.vector_norm(E)) / math.sqrt(columns)


def normalized_defect(manifold: AbstractManifold, Q: Tensor) -> float:
    """The manifold's own defect, which includes the determinant, over sqrt(k)."""
    columns = Q.shape[-1] if Q.ndim > 1 else 1
    return float(manifold.defect(Q.to(double_dtype(Q.dtype)))) / math.sqrt(columns)
