"""Finding the constrained weights of a model."""

from dataclasses import dataclass
from typing import cast

from torch import nn

from isometry.parametrizations._owner import coordinates_of
from isometry.parametrizations._reflections import Reflections
from isometry.parametrizations._trivialization import Trivialization


@dataclass(frozen=True)
class Constrained:
    """A constrained weight: where it is, and what constrains it."""

    key: str
    owner: nn.Module
    name: str
    coordinates: nn.Parameter
    constraint: Trivialization | Reflections


def constrained(
    module: nn.Module, *, remove_duplicate: bool = True
) -> list[Constrained]:
    """All constrained weights inside `module`.

    Args:
        module: a module.
        remove_duplicate: whether to list a weight only once if it occurs several
            times, because it is tied or because its module is used twice.

    Returns:
        One entry for each weight.

    Raises:
        TypeError: if `module` is not a module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"`module` must be a torch.nn.Module; got {type(module).__name__}. "
            f"Pass the model, or a constrained layer."
        )
    entries = {}
    for path, owner in module.named_modules(remove_duplicate=remove_duplicate):
        for name, parts in coordinates_of(owner).items():
            X = cast("nn.Parameter", parts.original)
            constraint = cast("Trivialization | Reflections", parts.constraint)
            key = f"{path}.{name}" if path else name
            entry = Constrained(key, owner, name, X, constraint)
            entries.setdefault(parts if remove_duplicate else key, entry)
    return list(entries.values())
