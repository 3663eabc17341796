"""Checks that a parameter of a module can be constrained."""

from dataclasses import dataclass
from typing import Generic, cast

from torch import nn
from torch.nn.utils import parametrize

from isometry._dtypes import DTYPES
from isometry._torch import is_fake
from isometry._typing import Layer
from isometry.parametrizations._constraint import AbstractConstraint
from isometry.parametrizations._ties import Place, other_places, parameters_of

# options of an embedding, and why a constrained weight cannot have them
_CONFLICTS = {
    "max_norm": "it would rescale rows of the orthogonal weight",
    "sparse": "the gradient of a computed weight is dense",
    "padding_idx": "it would set a row of the orthogonal weight to zero",
}


@dataclass(frozen=True)
class Target(Generic[Layer]):
    """A parameter that can be constrained.

    Attributes:
        module: the module that owns the parameter.
        name: name of the parameter in the module.
        weight: the parameter.
        ties: the other places where modules hold the parameter.
    """

    module: Layer
    name: str
    weight: nn.Parameter
    ties: list[Place]


def target_of(module: Layer, name: str) -> Target[Layer]:
    """The parameter, if it can be constrained, and where else it is used."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"`module` must be a torch.nn.Module; got {type(module).__name__}. "
            f"Pass the layer that owns the weight."
        )
    kind = parametrize.type_before_parametrizations(module).__name__
    if parametrize.is_parametrized(module, name):
        lists = cast("nn.ModuleDict", module.parametrizations)
        parts = list(lists[name].children())
        ours = any(isinstance(part, AbstractConstraint) for part in parts)
        remedy = (
            "isometry.fold"
            if ours
            else "torch.nn.utils.parametrize.remove_parametrizations"
        )
        raise ValueError(
            f"`{name}` must not be constrained already; {kind} has "
            f"{[type(part).__name__ for part in parts]} on it. "
            f"Remove that first, with `{remedy}`."
        )
    mine = parameters_of(module)
    if not isinstance(mine.get(name), nn.Parameter):
        known = [key for key, p in mine.items() if p is not None]
        raise TypeError(
            f"`{name}` must be a parameter of the module; {kind} has the parameters "
            f"{known}. Pass the layer that owns it (in a model, "
            f"`model.get_submodule(...)`), and its name there."
        )
    # first, while no variable here refers to the parameter: `other_places` counts
    # references
    ties = other_places(module, name)
    weight = cast("nn.Parameter", mine[name])
    for owner, key in (module, name), *ties:
        _check_values(owner, key, weight)
    return Target(module, name, weight, ties)


def _check_values(module: nn.Module, name: str, weight: nn.Parameter) -> None:
    if isinstance(weight, nn.UninitializedParameter):
        raise TypeError(
            f"`{name}` must have a shape; {type(module).__name__} is lazy. "
            f"Run a forward pass first."
        )
    if weight.dtype not in DTYPES:
        raise TypeError(
            f"`{name}` must have one of the dtypes {', '.join(map(str, DTYPES))}; got "
            f"{weight.dtype}. Convert the module first."
        )
    if not is_fake(weight) and not bool(weight.isfinite().all()):
        raise ValueError(
            f"`{name}` must be finite; got NaN or infinity in it. "
            f"Initialize it again, for instance with `nn.init.orthogonal_`."
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and name == "weight":
        for option, reason in _CONFLICTS.items():
            value = getattr(module, option)
            if value is not None and value is not False:
                raise ValueError(
                    f"`module` must not have {option} set if its weight is "
                    f"constrained; got {value}. Leave it out: {reason}."
                )
