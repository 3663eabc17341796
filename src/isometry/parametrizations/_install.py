"""Registering a constraint: all that can fail comes before the module is changed."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isometry._typing import Layer
from isometry.groups import SO, AbstractManifold, Stiefel, U
from isometry.groups._declare import record
from isometry.linalg._policy import in_float32_or_wider
from isometry.parametrizations._initial import Init, initial_point
from isometry.parametrizations._layout import Layout
from isometry.parametrizations._rebase import check_policy, install_hook
from isometry.parametrizations._recurrent import keep_weights_fresh
from isometry.parametrizations._reflections import Reflections
from isometry.parametrizations._trivialization import Coordinates, Trivialization


def install(
    module: Layer,
    name: str,
    manifold: AbstractManifold,
    layout: Layout,
    *,
    map_name: str | None,
    use_trivialization: bool,
    init: Init,
    generator: torch.Generator | None,
    rebase_every: int | None,
    rebase_radius: float | None,
) -> Layer:
    """Constrain a weight that has been checked, with the options of `constrain`."""
    weight = getattr(module, name)
    _check_map(manifold, map_name)
    reflecting = map_name == "householder"
    check_policy(
        rebase_every, rebase_radius, moving=use_trivialization and not reflecting
    )
    with torch.no_grad():
        X = layout.points(in_float32_or_wider(weight))
        Q = layout.weight(initial_point(manifold, X, init, generator)).contiguous()
        constraint = (
            Reflections(
                manifold,
                layout,
                dtype=weight.dtype,
                phase=layout.points(Q)[..., 0, :].clone(),
            )
            if reflecting
            else Trivialization(
                manifold,
                layout,
                map_name=str(map_name),
                base=Q.clone() if use_trivialization else None,
                dtype=weight.dtype,
                rebase_every=rebase_every,
                rebase_radius=rebase_radius,
            )
        )
        start = _coordinates(constraint, Q.to(weight.dtype))
    _register(module, name, constraint, start)
    record(module, name, manifold)
    return module


def _coordinates(constraint: Trivialization | Reflections, W: Tensor) -> Tensor:
    """Those of the initial weight; without a base there may be none."""
    try:
        return constraint.right_inverse(W)
    except ValueError as error:
        if isinstance(constraint, Reflections) or constraint.base is not None:
            raise
        raise ValueError(
            f"`use_trivialization=False` must begin with a weight that "
            f"{constraint.map_name} reaches from the identity; got another: {error} "
            f"Pass `det=1` or an `init` such as 'henaff', or let the base move."
        ) from error


def _register(
    module: nn.Module, name: str, constraint: Trivialization | Reflections, X: Tensor
) -> None:
    """Let torch register the parametrization, with coordinates found before."""
    weight = getattr(module, name)
    if weight.dtype != X.dtype:
        # half precision: the coordinates are wider than the weight was
        weight = nn.Parameter(X, requires_grad=weight.requires_grad)
        setattr(module, name, weight)
    # torch would ask for the coordinates of the weight as it was, which is no point
    object.__setattr__(constraint, "right_inverse", lambda _: X)
    parametrize.register_parametrization(module, name, constraint, unsafe=True)
    object.__delattr__(constraint, "right_inverse")
    lists = cast("nn.ModuleDict", module.parametrizations)
    owner = cast("Coordinates", lists[name])
    owner.__class__ = Coordinates
    if isinstance(constraint, Trivialization):
        constraint.own(owner)
        install_hook()
    keep_weights_fresh(module)


def _check_map(manifold: AbstractManifold, map_name: str | None) -> None:
    kind = map_name.partition("-")[0] if isinstance(map_name, str) else ""
    maps = [m for m in ("exp", "cayley", "pade") if m in manifold.retractions]
    if isinstance(manifold, SO | U | Stiefel):
        maps.append("householder")
    if kind not in maps:
        known = ", ".join("pade-m" if m == "pade" else m for m in maps)
        raise ValueError(
            f"the map must be one of {known} for {manifold}; got {map_name!r}. "
            f"'exp' is on every manifold."
        )
    if kind == "pade":
        manifold.check_retraction(str(map_name))
