"""Moving the base of a trivialization, between the steps of an optimizer.

The base never moves inside a forward pass, so a gradient always belongs to the function
that was evaluated. If a base moves automatically, it moves after a step of the
optimizer that trains its coordinates. Whether it moves depends only on the coordinates,
the base and the number of steps. If these are the same in all processes, the processes
decide alike.
"""

import inspect
import math
import weakref
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from isometry._torch import is_fake
from isometry._typing import Layer
from isometry.parametrizations._holder import MOVING, constrained
from isometry.parametrizations._layout import sharded_like, whole
from isometry.parametrizations._trivialization import Trivialization

# Names of optimizer state that holds a velocity: a weighted sum of gradients, along
# which the optimizer moves the coordinates. The average gradient of centered RMSprop is
# not a velocity: RMSprop subtracts its square from the average of squares. If a move
# changed only one of these two averages, the difference could become negative.
_VELOCITIES = ("exp_avg", "momentum_buffer")

# Names of optimizer state that scales the entries of a velocity, with the power of the
# gradient that the state holds: 2 for squares, 1 for absolute values.
_SCALES = {"exp_avg_sq": 2, "max_exp_avg_sq": 2, "exp_inf": 1}

# Optimizers whose step has begun and has not ended. There can be several, because an
# optimizer may call another one. An optimizer whose step raised an exception stays in
# the list until its next step or its deletion.
_running: list["weakref.ref[Optimizer]"] = []


def rebase(module: Layer, optimizer: Optimizer | None = None) -> Layer:
    r"""Move every base inside `module` to the current weight, which does not change.

    On a group,

    $$ B \leftarrow B\,\phi(A(X)), \qquad X \leftarrow 0. $$

    Call it after a step of the optimizer and before the next backward pass: gradients
    of the old coordinates are dropped. The momentum (`momentum_buffer` of SGD and
    RMSprop, `exp_avg` of Adam and its variants) is pushed forward by the derivative of
    the map, so that it moves the weight as before. Averages of squares belong to single
    entries, and have no direction that could be pushed forward. They stay, except that
    averages below the square of the new momentum are raised to this square, so that the
    momentum of Adam changes no entry by more than the learning rate. (For the
    comparison, the momentum and the averages are corrected for their start at zero, as
    in Adam.) The history of `LBFGS` is dropped if a base moves.

    Other state (of `Rprop` or `ASGD`, or an average of the coordinates) is not touched,
    so keep the base fixed with these optimizers. Keep it fixed under
    `ZeroRedundancyOptimizer` too, because its processes update different parameters.
    Sharded coordinates (FSDP2) are gathered, moved alike by all processes, and sharded
    again.

    Args:
        module: the module; its submodules are visited too. Without a constrained
            weight, nothing happens.
        optimizer: the optimizer that trains the coordinates. It can be left out only
            before its first step: later, a momentum that is not adapted would still
            belong to the old coordinates.

    Returns:
        The module.

    Raises:
        TypeError: if `module` is not a module, or `optimizer` is not an optimizer.
        ValueError: if the optimizer trains none of the coordinates.

    References:
        [Lez19] algorithm 1, which does not change the momentum.
    """
    pairs = [
        (entry.constraint, entry.coordinates)
        for entry in constrained(module)
        if isinstance(entry.constraint, Trivialization)
    ]
    if optimizer is not None and pairs:
        _check_owner(optimizer, [X for _, X in pairs])
    for constraint, X in pairs:
        move(constraint, X, optimizer)
    return module


@torch.no_grad()
def move(constraint: Trivialization, X: Tensor, optimizer: Optimizer | None) -> None:
    """Move one base, set its coordinates to zero, and adapt their optimizer state."""
    if constraint.base is None:
        return
    state: dict[str, Any] = {}
    if isinstance(optimizer, LBFGS):
        # the history of LBFGS holds directions in the old coordinates, for all
        # parameters together in one flat vector
        optimizer.state.clear()
    elif optimizer is not None:
        state = optimizer.state.get(X, {})
    velocities = [state[key] for key in _VELOCITIES if _fits(state.get(key), X)]
    # if the module was cast, `X` has a new dtype, but the optimizer's state does not
    new_velocities = constraint.move_base(
        whole(X), [whole(v).to(X.dtype) for v in velocities]
    )
    for velocity, new in zip(velocities, new_velocities, strict=True):
        velocity.copy_(sharded_like(new, velocity))
    X.zero_()
    X.grad = None
    for key, power in _SCALES.items():
        if _fits(state.get(key), X) and _fits(state.get("exp_avg"), X):
            floor = _floor(state, power, _betas(optimizer, X))
            scale = torch.maximum(_real(whole(state[key])), floor)
            scale = torch.view_as_complex(scale) if X.is_complex() else scale
            state[key].copy_(sharded_like(scale, state[key]))


def _floor(state: dict[str, Any], power: int, betas: tuple[float, float]) -> Tensor:
    """The least scale for which a step changes no entry by more than the learning rate.

    A scale is the state by which an optimizer divides the momentum: Adam divides by the
    root of an average of squares (`power` is 2), and Adamax by a maximum of absolute
    values (`power` is 1).

    Averages start at zero and are too small at first. With the usual betas, after three
    steps the momentum is 0.27 times its true value, and an average of squares 0.003
    times. Adam corrects both, so this bound must do the same. Without the correction,
    the bound on the squares would be 0.27^2 / 0.003 = 24 times too high, and steps
    would be five times too short.
    """
    step = float(state.get("step", math.inf))
    momentum = _real(whole(state["exp_avg"])).abs()
    # before the first step, the momentum and the scale are zero
    if step == 0:
        return momentum
    # The averages start at zero, so at first they are too small. These factors tell by
    # how much.
    momentum_factor, square_factor = (1 - float(beta) ** step for beta in betas)
    bound = (momentum / momentum_factor) ** power
    # Adamax keeps a maximum, which needs no correction
    return bound * square_factor if power == 2 else bound


def _betas(optimizer: Optimizer | None, X: Tensor) -> tuple[float, float]:
    """The first two `betas` with which the optimizer updates `X`; zeros if missing."""
    groups = optimizer.param_groups if optimizer is not None else []
    for group in groups:
        if any(p is X for p in group["params"]):
            betas = [*group.get("betas", ()), 0.0, 0.0]
            return betas[0], betas[1]
    return 0.0, 0.0


def _fits(value: Any, X: Tensor) -> bool:
    """Whether `value` is a tensor of the shape of `X`."""
    return isinstance(value, Tensor) and value.shape == X.shape


def _real(X: Tensor) -> Tensor:
    """`X` as a real tensor: if complex, a last axis holds real and imaginary parts."""
    return torch.view_as_real(X) if X.is_complex() else X


def _check_owner(optimizer: Optimizer, coordinates: list[Tensor]) -> None:
    """Raise unless the optimizer trains some of the coordinates."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"`optimizer` must be a torch.optim.Optimizer; got "
            f"{type(optimizer).__name__}. Pass the optimizer of the coordinates."
        )
    trained_ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(X) in trained_ids for X in coordinates):
        raise ValueError(
            "`optimizer` must have the coordinates of the module among its parameters; "
            "got an optimizer with none of them. Pass the optimizer that trains them."
        )


def check_rebase_options(
    every: int | None, radius: float | None, *, has_base: bool
) -> None:
    """Raise unless `rebase_every` and `rebase_radius` are valid together.

    `has_base` is True if there is a base that can move.
    """
    options = [v for v in (every, radius) if v is not None]
    if options and not has_base:
        raise ValueError(
            "`rebase_every` and `rebase_radius` must be None without a base that can "
            "move; got a value with `use_trivialization=False` or 'householder'. Leave "
            "both out."
        )
    if len(options) > 1:
        raise ValueError(
            f"`rebase_every` and `rebase_radius` must not both be given; got {every} "
            f"and {radius}. The radius alone moves the base as often as needed."
        )
    if every is not None and (type(every) is not int or every < 1):
        raise ValueError(
            f"`rebase_every` must be a positive number of steps; got {every!r}. "
            f"None keeps the base fixed."
        )
    if radius is not None and not 0 < float(radius) < math.pi:
        raise ValueError(
            f"`rebase_radius` must be between 0 and pi, where the exponential is "
            f"one-to-one; got {radius}. A radius of 1 works well."
        )


def before_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Note that a step has begun; torch calls this before any optimizer's step."""
    _forget(optimizer)
    _running.append(weakref.ref(optimizer))


def after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Move the bases that are due; torch calls this after any optimizer's step."""
    _forget(optimizer)
    # One optimizer may call another. Together they take a single step, which ends when
    # the outer optimizer's step ends.
    other_optimizers = [other for ref in _running if (other := ref()) is not None]
    if any(_calls_this(other) for other in other_optimizers):
        return
    # a fused optimizer skips its step if a GradScaler has found infinity
    if getattr(optimizer, "found_inf", False):
        return
    holders = {id(holder.original): holder for holder in MOVING}
    # All ranks must gather the same sharded coordinates at the same time. So take them
    # in the order of the optimizer's parameters, which is the same on all ranks.
    for X in [p for group in optimizer.param_groups for p in group["params"]]:
        if id(X) not in holders or not X.requires_grad:
            continue
        constraint = cast("Trivialization", holders[id(X)].constraint)
        constraint.steps += 1
        if _due(constraint, X):
            move(constraint, X, optimizer)


def _forget(optimizer: Optimizer) -> None:
    """Remove an optimizer, and all optimizers that were deleted, from `_running`."""
    _running[:] = [ref for ref in _running if ref() not in (None, optimizer)]


def _calls_this(optimizer: Optimizer) -> bool:
    """Whether a method of the optimizer is on the call stack of this thread.

    If an optimizer in `_running` is not on the stack, its step has raised an exception,
    or runs in another thread.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_locals.get("self") is not optimizer:
        frame = frame.f_back
    return frame is not None


@torch.no_grad()
def _due(constraint: Trivialization, X: Tensor) -> bool:
    """Whether the base must move now, after a step that gave the coordinates `X`."""
    # fake coordinates have no values from which a new base could be computed
    if is_fake(X):
        return False
    every, radius = constraint.rebase_every, constraint.rebase_radius
    if every is not None and int(constraint.steps) < every:
        return False
    X = whole(X)
    # a move would carry NaN or infinity from the coordinates over to the base
    if not bool(X.isfinite().all()):
        return False
    if radius is None:
        return True
    points = constraint.layout.points(X)
    angles = constraint.manifold.largest_angle(points, constraint.base_point())
    return angles.numel() > 0 and float(angles.max()) > radius
