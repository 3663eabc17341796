"""Checks for the parameters and parameter groups of an optimizer."""

import torch
from torch import Tensor

from isometry._checks import check_not_negative
from isometry._declare import check_is_manifold, points
from isometry._dtypes import HALF
from isometry.groups import AbstractManifold

# options in the parameter groups of torch's RMSprop, Adam and AdamW that our optimizers
# do not have
_OTHER_RULES = ("centered", "decoupled_weight_decay")

# options that must not be negative; `dampening` is not listed, since torch allows a
# negative one
_NONNEGATIVE = ("lr", "momentum", "weight_decay", "alpha", "eps", "initial_accumulator")


def check_manifold_is_named(params: list, manifold: object, optimizer: str) -> None:
    """Raise if `manifold` is None and no parameter group has this option.

    In that case all parameters would be plain, which is probably a mistake.
    """
    groups = [group for group in params if isinstance(group, dict)]
    named = any("manifold" in group for group in groups)
    if params and manifold is None and not named:
        plain = optimizer.removeprefix("Riemannian")
        raise ValueError(
            f"`manifold` must be given, or a group of `params` must name one; got "
            f"neither, so every parameter would be plain. Pass `manifold=SO(4)` or "
            f"another manifold of isometry.groups; for a model use "
            f"`isometry.param_groups` after `isometry.declare`. If all parameters are "
            f"plain, use `torch.optim.{plain}`, or a group with `manifold=None`."
        )


def check_param_group(group: dict) -> None:
    """Raise unless a parameter group's points and retraction fit its manifold.

    A plain parameter group is not checked. If the retraction is given by name, replace
    the name with the map.
    """
    manifold = group["manifold"]
    if manifold is None:
        return
    check_is_manifold(manifold, otherwise=", or None for plain parameters")
    resolve_retraction(group)
    params = group["params"]
    names = group.get("param_names", [f"params[{i}]" for i in range(len(params))])
    for name, p in zip(names, params, strict=True):
        _check_parameter(p, name)
        check_point(p, manifold, name=name)


def resolve_retraction(group: dict) -> None:
    """Replace a retraction's name with the map, unless the parameter group is plain."""
    manifold, retraction = group.get("manifold"), group.get("retraction")
    if manifold is not None and retraction is not None:
        group["retraction"] = manifold.resolve(retraction)


def check_point(p: Tensor, manifold: AbstractManifold, *, name: str = "params") -> None:
    """Raise unless a parameter is on its manifold."""
    with torch.no_grad():
        manifold.check_point(points(p, manifold), name=name)


def check_gradient(gradient: Tensor, of: str = "points on a manifold") -> None:
    """Raise if the gradient of a parameter is sparse."""
    if gradient.layout != torch.strided:
        raise TypeError(
            f"gradients of {of} must be dense; got {gradient.layout}. "
            f"Create the layer without `sparse=True`."
        )


def check_saved_group(group: dict, ours: str | None) -> None:
    """Raise unless a loaded parameter group fits a group of this optimizer.

    `ours` is the name of the manifold of the optimizer's group, or None.
    """
    if ours != group.get("manifold"):
        raise ValueError(
            f"`state_dict` must belong to the same manifolds; got a group on "
            f"{group.get('manifold')} where this optimizer has {ours}. Pass the "
            f"parameter groups in the same order."
        )
    for option in _OTHER_RULES:
        if group.get(option):
            raise ValueError(
                f"`state_dict` must come from an update rule of this optimizer; got "
                f"{option}={group[option]}, which only torch's own optimizer has. "
                f"Load it into that optimizer, or start without a state."
            )


def check_options(options: dict) -> None:
    """Raise if an option is out of range, or if two options exclude each other."""
    numbers = {name: options[name] for name in _NONNEGATIVE if name in options}
    check_not_negative(**numbers)
    betas = options.get("betas", ())
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(
            f"`betas` must be at least 0 and below 1; got {betas}. "
            f"The usual values are (0.9, 0.999)."
        )
    momentum, dampening = options.get("momentum"), options.get("dampening")
    if options.get("nesterov") and (momentum == 0 or dampening != 0):
        raise ValueError(
            f"`nesterov` must have a momentum and no dampening; got {momentum} "
            f"and {dampening}. Pass momentum=0.9 and dampening=0, for instance."
        )


def _check_parameter(p: Tensor, name: str) -> None:
    if p.dtype in HALF:
        raise TypeError(
            f"`{name}` must be in single or double precision to stay on a manifold; "
            f"got {p.dtype}. Keep it in float32 and use `torch.autocast`, or constrain "
            f"the layer with `isometry.orthogonal`."
        )
    # FSDP makes DTensors, which have the method `full_tensor`. To test for their class,
    # we would have to import it.
    if hasattr(p, "full_tensor"):
        raise TypeError(
            f"`{name}` must be whole on every rank to step on a manifold; got a "
            f"{type(p).__name__}. Exclude it from `fully_shard` with `ignored_params`, "
            f"or constrain the layer with `isometry.orthogonal`."
        )
