"""Moving the base of a trivialization, between the steps of an optimizer.

It never happens inside a forward pass, so a gradient is always that of the function
that was evaluated.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from isometry._typing import Layer
from isometry.parametrizations._constrained import constrained
from isometry.parametrizations._layout import sharded_like, whole
from isometry.parametrizations._trivialization import Trivialization

# averages of gradients, which move the coordinates. That of centered RMSprop is none:
# it is subtracted from the average of squares, entry by entry, and stays with it.
_VELOCITIES = ("exp_avg", "momentum_buffer")

# what the entries of a velocity are divided by, as powers of them
_SCALES = {"exp_avg_sq": 2, "max_exp_avg_sq": 2, "exp_inf": 1}


def rebase(module: Layer, optimizer: Optimizer | None = None) -> Layer:
    r"""Move every base inside `module` to the current weight, which does not change.

    $$ B \leftarrow B\,\phi(A(X)), \qquad X \leftarrow 0. $$

    After a step of the optimizer, before the next backward pass: gradients of the old
    coordinates are dropped. The momentum (`momentum_buffer` of SGD and RMSprop,
    `exp_avg` of the Adam family) is pushed forward by the derivative of the map, so
    that it moves the weight as before. Averages of squares belong to entries and have
    no direction to push; they stay, but are raised to the square of the new momentum
    where they are below it (both corrected for their start at zero, as Adam does), so
    that no step of Adam is longer than its rate. The history of `LBFGS` is dropped.
    Other state (of `Rprop`, `ASGD`, an average of the coordinates) is not touched: keep
    the base fixed there, and under `ZeroRedundancyOptimizer`, whose processes step
    different parameters. Sharded coordinates (FSDP2) are gathered, moved alike by all
    processes, and sharded again.

    Args:
        module: the module; those inside it are visited too.
        optimizer: the optimizer of the coordinates, if it has run.

    Returns:
        The module.

    Raises:
        TypeError: if `module` is not a module, or `optimizer` no optimizer.
        ValueError: if the optimizer has none of the coordinates.

    References:
        [Lez19] algorithm 1, which keeps the momentum as it is.
    """
    moving = [
        (found.constraint, found.coordinates)
        for found in constrained(module)
        if isinstance(found.constraint, Trivialization)
    ]
    if optimizer is not None and moving:
        _check_owner(optimizer, [X for _, X in moving])
    for constraint, X in moving:
        move(constraint, X, optimizer)
    return module


@torch.no_grad()
def move(constraint: Trivialization, X: Tensor, optimizer: Optimizer | None) -> None:
    """Move one base, and what the optimizer knows of its coordinates `X`."""
    state: dict[str, Any] = {}
    if isinstance(optimizer, LBFGS):
        # directions and curvatures of the old coordinates, in one flat vector
        optimizer.state.clear()
    elif optimizer is not None:
        state = optimizer.state.get(X, {})
    velocities = [state[key] for key in _VELOCITIES if _like(state.get(key), X)]
    if constraint.base is None:
        return
    moved = constraint.move_base(whole(X), [whole(v) for v in velocities])
    for velocity, new in zip(velocities, moved, strict=True):
        velocity.copy_(sharded_like(new, velocity))
    X.zero_()
    X.grad = None
    for key, power in _SCALES.items():
        if _like(state.get(key), X) and _like(state.get("exp_avg"), X):
            floor = _floor(state, power, _betas(optimizer, X))
            scale = torch.maximum(_real(whole(state[key])), floor)
            scale = torch.view_as_complex(scale) if X.is_complex() else scale
            state[key].copy_(sharded_like(scale, state[key]))


def _floor(state: dict[str, Any], power: int, betas: tuple[float, float]) -> Tensor:
    """What a scale must not be below, lest a step of Adam is longer than its rate.

    Averages that began at zero are too small, those of squares by far: at the third
    step by 0.003 where the momentum is by 0.27. Without the correction the scales were
    raised for good, and the steps were five times too short.
    """
    step = float(state.get("step", math.inf))
    momentum = _real(whole(state["exp_avg"])).abs()
    if step == 0:
        return momentum
    first, second = (1 - float(beta) ** step for beta in betas)
    # Adamax keeps a maximum, which needs no correction
    return (momentum / first) ** power * (second if power == 2 else 1)


def _betas(optimizer: Optimizer | None, X: Tensor) -> tuple[float, float]:
    """The decays of the averages of `X`; zero if the optimizer has other names."""
    groups = optimizer.param_groups if optimizer is not None else []
    mine = [group for group in groups if any(p is X for p in group["params"])]
    first, second, *_ = (*(mine[0].get("betas", ()) if mine else ()), 0.0, 0.0)
    return first, second


def _like(value: Any, X: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == X.shape


def _real(X: Tensor) -> Tensor:
    """Real and imaginary parts as entries of their own, as torch's optimizers do."""
    return torch.view_as_real(X) if X.is_complex() else X


def _check_owner(optimizer: Optimizer, coordinates: list[Any]) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"`optimizer` must be a torch.optim.Optimizer; got "
            f"{type(optimizer).__name__}. Pass the optimizer of the coordinates."
        )
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(X) in known for X in coordinates):
        raise ValueError(
            "`optimizer` must be that of the coordinates of the module; got one that "
            "has none of them. Pass the one that trains them."
        )
