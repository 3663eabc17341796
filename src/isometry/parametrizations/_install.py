"""Registering a constraint: everything that can fail runs before the module changes."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isometry._dtypes import in_float32_or_wider
from isometry._typing import Layer
from isometry.groups import AbstractManifold, AbstractRetraction
from isometry.groups._declare import record
from isometry.groups._maps import AbstractMap
from isometry.parametrizations._cache import install_hook
from isometry.parametrizations._constraint import AbstractConstraint
from isometry.parametrizations._coordinates import Coordinates
from isometry.parametrizations._initial import Init, initial_point
from isometry.parametrizations._layout import Layout
from isometry.parametrizations._owner import adapt, own_class
from isometry.parametrizations._rebase import check_policy, install_hooks
from isometry.parametrizations._reflections import Reflections
from isometry.parametrizations._target import Target, refuse_later_ties, tie
from isometry.parametrizations._trivialization import Trivialization


@dataclass(frozen=True)
class Options:
    """The options that `orthogonal`, `unitary` and `constrain` share."""

    use_trivialization: bool
    init: Init
    generator: torch.Generator | None
    rebase_every: int | None
    rebase_radius: float | None


def install(
    target: Target[Layer],
    manifold: AbstractManifold,
    layout: Layout,
    retraction: AbstractMap,
    options: Options,
) -> Layer:
    """Constrain the weight of a `Target`. The weight has been checked already."""
    weight, every, radius = target.weight, options.rebase_every, options.rebase_radius
    has_base = options.use_trivialization and retraction.steps
    check_policy(every, radius, moving=has_base)
    X = layout.points(in_float32_or_wider(weight.detach()))
    Q = initial_point(manifold, X, options.init, options.generator)
    constraint: AbstractConstraint
    if isinstance(retraction, AbstractRetraction):
        base = layout.weight(Q).clone(memory_format=torch.contiguous_format)
        base = base if has_base else None
        constraint = Trivialization(
            *(manifold, layout, retraction, weight.dtype, options.init),
            base=base,
            rebase_every=every,
            rebase_radius=radius,
        )
    else:
        phase = torch.ones(*Q.shape[:-2], Q.shape[-1], dtype=Q.dtype, device=Q.device)
        constraint = Reflections(
            *(manifold, layout, retraction, weight.dtype, options.init), phase=phase
        )
    _register(target, constraint, _coordinates(constraint, Q))
    return target.module


def _coordinates(constraint: AbstractConstraint, Q: Tensor) -> Tensor:
    """Coordinates of the initial weight.

    Raises:
        ValueError: if there is no base, and the map cannot reach the weight.
    """
    try:
        return constraint.start(Q if Q.is_meta else constraint.manifold.polish(Q))
    except ValueError as error:
        manifold = constraint.manifold
        det = "" if manifold.is_connected else ", or pass `det=1`"
        raise ValueError(
            f"`use_trivialization=False` must start at a weight that "
            f"{constraint.retraction.name} reaches from the identity; this one is out "
            f"of reach: {error} Let the base move, with `use_trivialization=True`{det}."
        ) from error


def _register(target: Target[Layer], constraint: AbstractConstraint, X: Tensor) -> None:
    """Let torch register the parametrization, with the coordinates `X`."""
    module, name, weight = target.module, target.name, target.weight
    if parametrize.is_parametrized(module):
        own_class(module)
    # torch calls `right_inverse` with the old weight, which need not be a point of the
    # manifold. So during the registration, let `right_inverse` return `X`
    object.__setattr__(constraint, "right_inverse", lambda _: X)
    # The coordinates of a half-precision weight are wider than the weight. Keep the
    # parameter object, because an optimizer may refer to it already
    if weight.dtype != X.dtype:
        weight.data = weight.data.to(X.dtype)
        weight.grad = None
    parametrize.register_parametrization(module, name, constraint, unsafe=True)
    object.__delattr__(constraint, "right_inverse")
    lists = cast("nn.ModuleDict", module.parametrizations)
    coordinates = cast("Coordinates", lists[name])
    coordinates.__class__ = Coordinates
    coordinates.begin()
    adapt(module, name)
    for place in target.ties:
        tie(place, coordinates)
    for owner, key in (module, name), *target.ties:
        record(owner, key, constraint.manifold)
    install_hook()
    refuse_later_ties()
    if constraint.has_policy:
        install_hooks()
