"""Constrained weights as plain parameters, for inference and export."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from isometry._typing import Layer
from isometry.groups._declare import record
from isometry.parametrizations._recurrent import restore_weights
from isometry.parametrizations._reflections import Reflections
from isometry.parametrizations._trivialization import Coordinates, Trivialization


@dataclass(frozen=True)
class Constrained:
    """A constrained weight: where it is, and what constrains it."""

    key: str
    owner: nn.Module
    name: str
    coordinates: nn.Parameter
    constraint: Trivialization | Reflections


def constrained(module: nn.Module) -> list[Constrained]:
    """Every weight inside `module` that we constrain.

    Raises:
        TypeError: if `module` is not a module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"`module` must be a torch.nn.Module; got {type(module).__name__}. "
            f"Pass the model, or a constrained layer."
        )
    found = []
    for path, owner in module.named_modules():
        lists = getattr(owner, "parametrizations", None)
        for name, parts in lists.items() if isinstance(lists, nn.ModuleDict) else ():
            if isinstance(parts, Coordinates):
                X = cast("nn.Parameter", parts.original)
                constraint = cast("Trivialization | Reflections", parts[0])
                key = f"{path}.{name}" if path else name
                found.append(Constrained(key, owner, name, X, constraint))
    return found


def fold(module: Layer) -> Layer:
    """Bake every constrained weight inside `module` into a plain parameter.

    For inference, export and quantization: the module computes the same, is of its
    original class, and its `state_dict` has the names that it had before. The weights
    are new parameters; nothing keeps them orthogonal when they are trained.

    Args:
        module: the module; those inside it are visited too.

    Returns:
        The module.

    Raises:
        TypeError: if `module` is not a module.
    """
    for found in constrained(module):
        owner, name = found.owner, found.name
        with torch.no_grad():
            weight = getattr(owner, name).clone()
        weight = nn.Parameter(weight, requires_grad=found.coordinates.requires_grad)
        parametrize.remove_parametrizations(owner, name, leave_parametrized=False)
        owner.register_parameter(name, weight)
        record(owner, name, None)
        restore_weights(owner)
    return module
