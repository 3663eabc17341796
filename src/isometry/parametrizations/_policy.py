"""When a base moves by itself: after a step of the optimizer of its coordinates.

What is decided depends on the coordinates alone: processes that hold the same ones
decide the same.
"""

import math
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from isometry.groups import AbstractGroup, Stiefel
from isometry.linalg import skew
from isometry.parametrizations._coordinates import COORDINATES
from isometry.parametrizations._rebase import move
from isometry.parametrizations._sharded import whole
from isometry.parametrizations._trivialization import Trivialization

# dimension of the space in which the largest angle is looked for
_KRYLOV = 12

_hooks: list[Any] = []
# optimizers whose step is running: one may call another
_running: list["weakref.ref[Optimizer]"] = []


def check_policy(every: int | None, radius: float | None, *, moving: bool) -> None:
    """Raise unless the policy makes sense; `moving` says whether there is a base."""
    given = [v for v in (every, radius) if v is not None]
    if given and not moving:
        raise ValueError(
            "`rebase_every` and `rebase_radius` must be None without a base that can "
            "move; got one with `use_trivialization=False` or 'householder'. "
            "Leave them out."
        )
    if len(given) > 1:
        raise ValueError(
            f"`rebase_every` and `rebase_radius` must not both be given; got {every} "
            f"and {radius}. The radius alone moves the base as often as it must."
        )
    if every is not None and (type(every) is not int or every < 1):
        raise ValueError(
            f"`rebase_every` must be a positive number of steps; got {every!r}. "
            f"None keeps the base."
        )
    if radius is not None and not 0 < float(radius) < math.pi:
        raise ValueError(
            f"`rebase_radius` must be between 0 and pi, where the exponential is one "
            f"to one; got {radius}. A radius of 1 serves well."
        )


def install_hooks() -> None:
    """Look at all coordinates with a policy after each step of any optimizer."""
    if not _hooks:
        # a compiled step must not trace them: torch 2.13 goes on with the gradient that
        # a move of the base has dropped
        eager: Any = torch.compiler.disable
        _hooks.append(register_optimizer_step_pre_hook(eager(_before_step)))
        _hooks.append(register_optimizer_step_post_hook(eager(_after_step)))


def _before_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    _forget(optimizer)
    _running.append(weakref.ref(optimizer))


def _after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Called by torch after the step of every optimizer, fused ones too."""
    _forget(optimizer)
    # the step of an optimizer that wraps another is one step, and ends with its own
    if _running:
        return
    known = {id(coordinates.original): coordinates for coordinates in COORDINATES}
    # in the order of the optimizer: what is sharded is gathered, by all ranks alike
    for X in [p for group in optimizer.param_groups for p in group["params"]]:
        constraint = known[id(X)].constraint if id(X) in known else None
        if not isinstance(constraint, Trivialization) or not constraint.has_policy:
            continue
        if not X.requires_grad or _skipped(optimizer):
            continue
        constraint.steps += 1
        if _due(constraint, X):
            move(constraint, X, optimizer)


def _skipped(optimizer: Optimizer) -> bool:
    """Whether a GradScaler found infinity: it calls a fused optimizer nevertheless."""
    return bool(getattr(optimizer, "found_inf", False))


def _forget(optimizer: Optimizer) -> None:
    """Take an optimizer, and those that ended with an exception, from the stack."""
    alive = [ref for ref in _running if ref() is not None]
    places = [i for i, ref in enumerate(alive) if ref() is optimizer]
    _running[:] = alive[: places[0]] if places else alive


@torch.no_grad()
def _due(constraint: Trivialization, X: Tensor) -> bool:
    every, radius = constraint.rebase_every, constraint.rebase_radius
    if every is not None and int(constraint.steps) < every:
        return False
    X = whole(X)
    # NaN stays in the coordinates, from where a good checkpoint or step removes it
    if not bool(X.isfinite().all()):
        return False
    return radius is None or largest_angle(constraint, X) > radius


def largest_angle(constraint: Trivialization, X: Tensor) -> float:
    """Largest angle of the coordinates, or up to 4 percent more."""
    manifold = constraint.manifold
    X = constraint.layout.points(X.detach())
    if isinstance(manifold, AbstractGroup):
        A = manifold.algebra(X)
    elif isinstance(manifold, Stiefel) and manifold.n == manifold.k:
        A = skew(X)
    else:
        base = constraint.base_point()
        assert base is not None
        border = manifold.border_distance(base, manifold.project(base, X))
        return math.pi - float(border.min()) if border.numel() else 0.0
    # the Krylov space misses up to 3.2 percent of a Gaussian matrix (n up to 1024)
    return 1.04 * float(krylov_norm(A).max()) if A.numel() else 0.0


def krylov_norm(A: Tensor) -> Tensor:
    r"""$\lVert V^H A V \rVert_2$, with $V$ a basis of a Krylov space of skew $A$.

    At most the norm of $A$, and close to it, for the price of matrix-vector products.
    The vector to begin with is always the same.
    """
    n = A.shape[-1]
    rng = torch.Generator().manual_seed(0)
    v = torch.randn(n, 1, dtype=A.dtype, generator=rng, device="cpu").to(A.device)
    v = (v / torch.linalg.vector_norm(v)).expand(*A.shape[:-1], 1)
    V = v
    for _ in range(min(_KRYLOV, n) - 1):
        v = A @ v
        v = v - V @ (V.mH @ v)
        size = torch.linalg.vector_norm(v, dim=-2, keepdim=True)
        v = v / torch.where(size == 0, 1, size)
        V = torch.cat([V, v], -1)
    return torch.linalg.matrix_norm(V.mH @ (A @ V), 2)
