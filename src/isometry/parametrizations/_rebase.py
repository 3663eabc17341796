"""Moving the base of a trivialization, between the steps of an optimizer.

It never happens inside a forward pass, so a gradient is always that of the function
that was evaluated. What is decided depends on the coordinates alone: processes that
hold the same ones decide the same.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from isometry._typing import Layer
from isometry.groups import AbstractGroup, Stiefel
from isometry.linalg import skew
from isometry.parametrizations._fold import constrained
from isometry.parametrizations._trivialization import MOVING, Trivialization

# velocities: averages of gradients, which move the coordinates. Averages of squares,
# which only scale the step, and counts stay as they are.
_VELOCITIES = ("exp_avg", "momentum_buffer", "grad_avg")

# dimension of the space in which the largest angle is looked for
_KRYLOV = 20

_hooks: list[Any] = []


def rebase(module: Layer, optimizer: Optimizer | None = None) -> Layer:
    r"""Move every base inside `module` to the current weight, which does not change.

    $$ B \leftarrow B\,\phi(A(X)), \qquad X \leftarrow 0. $$

    Between the steps of an optimizer. Its momentum (`momentum_buffer` of SGD and
    RMSprop, `exp_avg` of the Adam family) is pushed forward by the derivative of the
    map, so that it moves the weight as before; averages of squares stay, entry by
    entry, as scales of the steps; the history of `LBFGS` is dropped.

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
    parts = [found.constraint for found in constrained(module)]
    moving = [part for part in parts if isinstance(part, Trivialization)]
    if optimizer is not None and moving:
        _check_owner(optimizer, moving)
    for part in moving:
        _move(part, optimizer)
    return module


def _check_owner(optimizer: Optimizer, parts: list[Trivialization]) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"`optimizer` must be a torch.optim.Optimizer; got "
            f"{type(optimizer).__name__}. Pass the optimizer of the coordinates."
        )
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(part.owner.original) in known for part in parts):
        raise ValueError(
            "`optimizer` must be that of the coordinates of the module; got one that "
            "has none of them. Pass the one that trains them."
        )


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


def install_hook() -> None:
    """Visit the trivializations with a policy after each step of any optimizer."""
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_after_step))


def _after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Called by torch after the step of every optimizer, fused ones too."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for trivialization in list(MOVING):
        if id(trivialization.owner.original) in stepped:
            trivialization.steps += 1
            if _due(trivialization):
                _move(trivialization, optimizer)


@torch.no_grad()
def _due(trivialization: Trivialization) -> bool:
    every, radius = trivialization.rebase_every, trivialization.rebase_radius
    if every is not None:
        return int(trivialization.steps) >= every
    assert radius is not None
    return largest_angle(trivialization) > radius


def largest_angle(trivialization: Trivialization) -> float:
    """Largest angle of the coordinates, or up to 3 percent more."""
    manifold = trivialization.manifold
    X = trivialization.layout.points(trivialization.owner.original.detach())
    if isinstance(manifold, AbstractGroup):
        A = manifold.algebra(X)
    elif isinstance(manifold, Stiefel) and manifold.n == manifold.k:
        A = skew(X)
    else:
        base = trivialization.base_point()
        assert base is not None
        border = manifold.border_distance(base, manifold.project(base, X))
        return math.pi - float(border.min()) if border.numel() else 0.0
    # the Krylov space misses up to 1.7 percent of a Gaussian matrix (n up to 1024)
    return 1.03 * float(krylov_norm(A).max()) if A.numel() else 0.0


def krylov_norm(A: Tensor) -> Tensor:
    r"""$\lVert V^H A V \rVert_2$, with $V$ a basis of a Krylov space of skew $A$.

    At most the norm of $A$, and close to it, for the price of matrix-vector products.
    The vector to begin with is always the same.
    """
    n = A.shape[-1]
    rng = torch.Generator().manual_seed(0)
    v = torch.randn(n, 1, dtype=A.dtype, generator=rng).to(A.device)
    v = (v / torch.linalg.vector_norm(v)).expand(*A.shape[:-1], 1)
    V = v
    for _ in range(min(_KRYLOV, n) - 1):
        v = A @ v
        # once more, for what rounding leaves
        for _ in range(2):
            v = v - V @ (V.mH @ v)
        size = torch.linalg.vector_norm(v, dim=-2, keepdim=True)
        v = v / torch.where(size == 0, 1, size)
        V = torch.cat([V, v], -1)
    return torch.linalg.matrix_norm(V.mH @ (A @ V), 2)


def _move(trivialization: Trivialization, optimizer: Optimizer | None) -> None:
    X = trivialization.owner.original
    state: dict[str, Any] = {}
    if isinstance(optimizer, LBFGS):
        # directions and curvatures of the old coordinates, in one flat vector
        optimizer.state.clear()
    elif optimizer is not None:
        state = optimizer.state.get(X, {})
    velocities = [state[key] for key in _VELOCITIES if _like(state.get(key), X)]
    trivialization.move_base(X, velocities)


def _like(value: Any, X: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == X.shape
