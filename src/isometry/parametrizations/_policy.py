"""When a base moves by itself: after a step of the optimizer of its coordinates.

The decision depends on the coordinates alone, so processes that hold equal coordinates
decide alike.
"""

import math
import weakref
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from isometry.parametrizations._coordinates import MOVING
from isometry.parametrizations._layout import whole
from isometry.parametrizations._rebase import move
from isometry.parametrizations._trivialization import Trivialization

_hooks: list[Any] = []
# optimizers whose step is running: one may call another
_running: list["weakref.ref[Optimizer]"] = []


def check_policy(every: int | None, radius: float | None, *, moving: bool) -> None:
    """Raise unless the options fit together; `moving` says whether there is a base."""
    options = [v for v in (every, radius) if v is not None]
    if options and not moving:
        raise ValueError(
            "`rebase_every` and `rebase_radius` must be None without a base that can "
            "move; got one with `use_trivialization=False` or 'householder'. "
            "Leave them out."
        )
    if len(options) > 1:
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
    """Let each step of any optimizer move the bases that are due."""
    if not _hooks:
        # a compiled step must not trace the hooks: torch 2.13 would go on using the
        # gradient that a move of the base has dropped
        eager: Any = torch.compiler.disable
        _hooks.append(register_optimizer_step_pre_hook(eager(_before_step)))
        _hooks.append(register_optimizer_step_post_hook(eager(_after_step)))


def _before_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    _forget(optimizer)
    _running.append(weakref.ref(optimizer))


def _after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Called by torch after the step of every optimizer, even a fused one."""
    _forget(optimizer)
    # one optimizer may wrap another; both together make one step, which ends with the
    # step of the outer optimizer
    if _running:
        return
    if _skipped(optimizer):
        return
    moving = {id(coordinates.original): coordinates for coordinates in MOVING}
    # in the order of the optimizer, which all ranks share: they gather sharded
    # coordinates together
    for X in [p for group in optimizer.param_groups for p in group["params"]]:
        if id(X) not in moving or not X.requires_grad:
            continue
        constraint = cast("Trivialization", moving[id(X)].constraint)
        constraint.steps += 1
        if _due(constraint, X):
            move(constraint, X, optimizer)


def _skipped(optimizer: Optimizer) -> bool:
    """Whether a GradScaler found infinity: it calls a fused optimizer all the same."""
    return bool(getattr(optimizer, "found_inf", False))


def _forget(optimizer: Optimizer) -> None:
    """Remove an optimizer, and any whose step raised an exception, from the stack."""
    alive = [ref for ref in _running if ref() is not None]
    places = [i for i, ref in enumerate(alive) if ref() is optimizer]
    _running[:] = alive[: places[0]] if places else alive


@torch.no_grad()
def _due(constraint: Trivialization, X: Tensor) -> bool:
    every, radius = constraint.rebase_every, constraint.rebase_radius
    if every is not None and int(constraint.steps) < every:
        return False
    X = whole(X)
    # keep NaN in the coordinates, where a good checkpoint can overwrite it; a move
    # would spread it to the base
    if not bool(X.isfinite().all()):
        return False
    if radius is None:
        return True
    points = constraint.layout.points(X)
    angles = constraint.manifold.largest_angle(points, constraint.base_point())
    return angles.numel() > 0 and float(angles.max()) > radius
