"""Checks of the parameter to constrain, and the search for modules that share it.

A constraint turns the parameter into coordinates. From then on, every module that holds
the parameter must compute with the constrained weight. Otherwise it would silently
compute with the coordinates.

The caller passes one module, but the parameter may be tied to a weight of any other
module, even outside of the same model, and torch does not record which modules hold a
parameter. So `places_of` asks Python's garbage collector for all modules in the
process. To save this search where nothing is tied, it first counts the references to
the parameter.
"""

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, cast

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from isometry._checks import check_is_module
from isometry._declare import manifold_of
from isometry._dtypes import DTYPES
from isometry._torch import is_fake
from isometry._typing import Layer
from isometry.parametrizations._holder import (
    Constrained,
    CoordinatesHolder,
    holders_of,
    holds_coordinates,
)
from isometry.parametrizations._owner import adapt, own_class

# a module, and the name under which it holds a parameter
Place = tuple[nn.Module, str]

_REMOVE = "torch.nn.utils.parametrize.remove_parametrizations"

# options of an embedding, and why they must not be used with a constrained weight
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
        places: all places that hold the parameter, in any module.
    """

    module: Layer
    name: str
    weight: nn.Parameter
    places: list[Place]


def target_of(module: Layer, name: str) -> Target[Layer]:
    """The parameter `name` with its places; raises if it cannot be constrained."""
    check_is_module(module, remedy="Pass the layer that owns the weight.")
    kind = parametrize.type_before_parametrizations(module).__name__
    if parametrize.is_parametrized(module, name):
        lists = cast("nn.ModuleDict", module.parametrizations)
        parts = [type(part).__name__ for part in lists[name].children()]
        remedy = "isometry.fold" if name in holders_of(module) else _REMOVE
        raise ValueError(
            f"`{name}` must not be constrained already; {kind} has {parts} on it. "
            f"Remove the parametrization first, with `{remedy}`."
        )
    parameters = parameters_of(module)
    if not isinstance(parameters.get(name), nn.Parameter):
        names = [key for key, p in parameters.items() if p is not None]
        raise TypeError(
            f"`{name}` must be a parameter of the module; {kind} has the parameters "
            f"{names}. Pass the layer that owns it (in a model, "
            f"`model.get_submodule(...)`), and its name there."
        )
    # call `places_of` while no local variable refers to the parameter, because
    # `places_of` counts references
    places = places_of(module, name)
    weight = cast("nn.Parameter", parameters[name])
    for owner, key in places:
        _check_values(owner, key, weight)
    if weight.is_inference():
        # autograd cannot use a parameter that was made in inference mode, so replace it
        with torch.inference_mode(mode=False):
            weight = nn.Parameter(weight.clone(), requires_grad=weight.requires_grad)
        for owner, key in places:
            setattr(owner, key, weight)
    return Target(module, name, weight, places)


def _check_values(module: nn.Module, name: str, weight: nn.Parameter) -> None:
    """Raise if the parameter, or an option of its module, rules out a constraint."""
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


def places_of(module: nn.Module, name: str) -> list[Place]:
    """All places, in any module, that hold the parameter `name` of `module`.

    The place that the user named comes first, so that errors are about it.

    Raises:
        ValueError: if a parametrized weight is computed from the parameter.
    """
    parameters = parameters_of(module)
    # Searching all objects takes long in a large program. The search is not needed if
    # the parameter has no more references than a new parameter has, or if `parameters`
    # is the only dictionary that refers to it.
    example = {name: nn.Parameter()}
    if sys.getrefcount(parameters[name]) <= sys.getrefcount(example[name]):
        return [(module, name)]
    weight = parameters[name]
    dictionaries = [id(d) for d in gc.get_referrers(weight) if isinstance(d, dict)]
    tables = [(module, parameters)]
    if dictionaries != [id(parameters)]:
        # A shallow copy of `module` shares the dictionary `_parameters` with it. Leave
        # out the copy, which does not hold the parameter a second time.
        tables += [
            (m, t) for m in _modules() if (t := parameters_of(m)) is not parameters
        ]
    other_places = [
        (owner, key)
        for owner, table in tables
        for key, p in table.items()
        if p is weight and not (owner is module and key == name)
    ]
    lists = [m for m, _ in other_places if isinstance(m, ParametrizationList)]
    if lists:
        raise ValueError(
            f"`{name}` must not be tied to a weight with a parametrization of its own; "
            f"got one with {type(lists[0][0]).__name__}. Remove the parametrization "
            f"first, with `{_REMOVE}`."
        )
    return [(module, name), *other_places]


def tie(place: Place, holder: CoordinatesHolder) -> None:
    """Replace the parameter at `place` with the weight that `holder` computes."""
    module, name = place
    if parametrize.is_parametrized(module):
        own_class(module)
    # torch turns the weight into a property that reads a list of parametrizations, and
    # we replace this list with the shared holder
    parametrize.register_parametrization(module, name, nn.Identity(), unsafe=True)
    cast("nn.ModuleDict", module.parametrizations)[name] = holder
    holder.places += 1
    adapt(module, name)


def tied_elsewhere(entries: list[Constrained]) -> list[Constrained]:
    """Entries for all other places that share a constrained weight with `entries`."""
    holders = {(id(entry.owner), entry.name): entry.holder for entry in entries}
    counts = Counter(holders.values())
    # as in `places_of`, search all objects only if that is necessary
    if all(holder.places <= count for holder, count in counts.items()):
        return []
    return [
        Constrained(name, module, name, holder)
        for module in _modules()
        for name, holder in holders_of(module).items()
        if holder in counts and (id(module), name) not in holders
    ]


def check_place(module: nn.Module, name: str, parameter: Any) -> None:
    """Raise if a parameter that holds coordinates takes the place of a weight.

    torch calls this function whenever a parameter is registered. Under a new name,
    coordinates are accepted.
    """
    # return early for almost all parameters, because the search of all modules is slow
    if not holds_coordinates(parameter) or isinstance(module, ParametrizationList):
        return
    # If coordinates replace an existing parameter, someone is tying weights, which is
    # refused. Compilers, exporters and `nn.ParameterList` add coordinates under a new
    # name, which is harmless.
    replaces = parameters_of(module).get(name, parameter) is not parameter
    # When torch removes a constraint, it overwrites the coordinates with the weight and
    # registers the parameter under the weight's name. A tied module may still need the
    # coordinates, so this case is checked too.
    was_constrained = manifold_of(module, name) is not None
    if not (replaces or was_constrained):
        return
    for owner in _modules():
        for holder in holders_of(owner).values():
            if parameters_of(holder).get("original") is parameter:
                raise ValueError(
                    f"`{name}` must not be tied to the coordinates of a constrained "
                    f"weight; got a parameter with a weight on "
                    f"{holder.constraint.manifold}. Tie plain weights (after "
                    f"`isometry.fold`), then constrain one of them: the other follows."
                )


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The parameters of `module` itself; empty before `nn.Module.__init__` has run."""
    return vars(module).get("_parameters", {})


def _modules() -> Iterator[nn.Module]:
    """All modules in this process."""
    # `isinstance` would read an object's `__class__`, which makes a proxy or a lazy
    # import load the object that it stands for
    return (o for o in gc.get_objects() if issubclass(type(o), nn.Module))
