"""Installation of a constraint, after which a weight is computed from coordinates.

First, `install` chooses the initial point of the manifold, makes the constraint (a
`Trivialization`, or `Reflections` for products of reflections), and asks it for the
coordinates of this point. Everything that can fail is done in these steps, before any
module changes. Then `_attach` writes the coordinates into the existing parameter, and
makes a `CoordinatesHolder` of the parameter and the constraint. All modules that have
the parameter get this one holder, which computes the weight for them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from isometry._declare import record
from isometry._dtypes import in_float32_or_wider
from isometry._typing import Layer
from isometry.groups import AbstractManifold, Householder, MapLike
from isometry.parametrizations._cache import count_step
from isometry.parametrizations._constraint import AbstractConstraint
from isometry.parametrizations._holder import CoordinatesHolder
from isometry.parametrizations._initial import Init, initial_point
from isometry.parametrizations._layout import Layout
from isometry.parametrizations._rebase import (
    after_step,
    before_step,
    check_rebase_options,
)
from isometry.parametrizations._reflections import Reflections
from isometry.parametrizations._target import Target, check_place, tie
from isometry.parametrizations._trivialization import Trivialization

# The handles of the installed hooks: `_hooks` serve all constraints, `_moving_hooks`
# only bases that move automatically. `_install_hooks` installs hooks if their list is
# empty. It does not use `functools.cache`, which Dynamo ignores with a warning.
_hooks: list[RemovableHandle] = []
_moving_hooks: list[RemovableHandle] = []


@dataclass(frozen=True)
class Options:
    """The options that `orthogonal`, `unitary` and `constrain` share."""

    use_trivialization: bool
    init: Init
    generator: torch.Generator | None
    rebase_every: int | None
    rebase_radius: float | None


# Leave inference mode: a weight whose coordinates and base were made in it could not be
# trained later, and no error would say so.
@torch.inference_mode(mode=False)
def install(
    target: Target[Layer],
    manifold: AbstractManifold,
    layout: Layout,
    retraction: MapLike,
    options: Options,
    *,
    argument: str = "retraction",
) -> Layer:
    """Constrain the weight of `target`, which has been checked already.

    `argument` is the name under which the user passed the map; errors use that name.
    """
    phi = manifold.resolve_coordinates(retraction, name=argument)
    has_base = options.use_trivialization and not isinstance(phi, Householder)
    check_rebase_options(options.rebase_every, options.rebase_radius, has_base=has_base)
    points = layout.points(in_float32_or_wider(target.weight.detach()))
    Q = initial_point(manifold, points, options.init, options.generator)
    constraint: AbstractConstraint
    if isinstance(phi, Householder):
        constraint = Reflections(
            manifold=manifold,
            layout=layout,
            retraction=phi,
            dtype=target.weight.dtype,
            init=options.init,
            buffer=Q.new_ones(*Q.shape[:-2], Q.shape[-1]),
        )
    else:
        base = layout.weight(Q).clone(memory_format=torch.contiguous_format)
        constraint = Trivialization(
            manifold=manifold,
            layout=layout,
            retraction=phi,
            dtype=target.weight.dtype,
            init=options.init,
            buffer=base if has_base else None,
            rebase_every=options.rebase_every,
            rebase_radius=options.rebase_radius,
        )
    _attach(target, constraint, _initial_coordinates(constraint, Q))
    return target.module


def _initial_coordinates(constraint: AbstractConstraint, Q: Tensor) -> Tensor:
    """The coordinates of `Q`, at which the weight starts.

    Raises:
        ValueError: if there is no base, and the map cannot reach `Q`.
    """
    try:
        return constraint.start(Q if Q.is_meta else constraint.manifold.polish(Q))
    except ValueError as error:
        remedy = "Let the base move, with `use_trivialization=True`"
        if not constraint.manifold.is_connected:
            remedy += (
                ", or constrain the weight to the identity component (`det=1` in "
                "`orthogonal`, `SO` in `constrain`)"
            )
        raise ValueError(
            f"the weight must be one that {constraint.retraction.name} reaches from "
            f"the identity if `use_trivialization=False`; got one out of reach: "
            f"{error} {remedy}."
        ) from error


def _attach(target: Target[Layer], constraint: AbstractConstraint, X: Tensor) -> None:
    """Make all modules that have the parameter compute the weight from `X`."""
    weight = target.weight
    # The coordinates of a half-precision weight have a wider dtype, so the old gradient
    # does not fit.
    if weight.dtype != X.dtype:
        weight.grad = None
    # replace the values of the parameter and not the parameter itself, because an
    # optimizer may already hold it
    weight.data = X
    # The constructor would call `right_inverse` of the constraint on the parameter, but
    # that already holds coordinates. So pass `nn.Identity`, and insert the constraint
    # afterwards.
    holder = CoordinatesHolder([nn.Identity()], weight, unsafe=True)
    holder[0] = constraint
    holder.begin()
    for place in target.places:
        tie(place, holder)
        record(*place, constraint.manifold)
    _install_hooks(moving=constraint.moves_automatically)


def _install_hooks(*, moving: bool) -> None:
    """Install the hooks that a new constraint needs, unless they are installed already.

    The hooks for bases that move automatically cost time at every step of any
    optimizer, so they are installed only with the first such base.
    """
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(count_step))
        _hooks.append(register_module_parameter_registration_hook(check_place))
    if moving and not _moving_hooks:
        # A compiled step must not trace these hooks. If it did, then in torch 2.13 it
        # would still use the gradient that a move of the base has dropped.
        eager: Any = torch.compiler.disable
        _moving_hooks.append(register_optimizer_step_pre_hook(eager(before_step)))
        _moving_hooks.append(register_optimizer_step_post_hook(eager(after_step)))
