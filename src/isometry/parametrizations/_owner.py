"""What a module does differently once it owns a constrained weight.

torch's parametrize gives every such module a class of its own. We wrap methods in that
class, so all wrappers disappear with it when the constraint is removed.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from isometry.parametrizations._cache import read_fast
from isometry.parametrizations._coordinates import Coordinates
from isometry.parametrizations._recurrent import keep_weights_fresh

_OF_THE_TYPE = ("__dict__", "__weakref__")

Method = Callable[..., Any]


def coordinates_of(module: nn.Module) -> dict[str, Coordinates]:
    """Coordinates of the constrained weights that `module` itself has, by name."""
    lists = getattr(module, "parametrizations", None)
    items = lists.items() if isinstance(lists, nn.ModuleDict) else ()
    return {name: parts for name, parts in items if isinstance(parts, Coordinates)}


def own_class(module: nn.Module) -> None:
    """Give a parametrized module a class that no copy of it shares.

    torch makes the weight a property of a new class, and a deepcopy shares that class.
    Folding the copy would then remove the property from the original, too.
    """
    cls = type(module)
    inner = {k: v for k, v in vars(cls).items() if k not in _OF_THE_TYPE}
    object.__setattr__(module, "__class__", type(cls.__name__, cls.__bases__, inner))


def adapt(module: nn.Module, name: str) -> None:
    """Change the class of a module whose weight `name` has just been constrained."""
    read_fast(module, name)
    cls: Any = type(module)
    for key, wrap in _WRAPPERS.items():
        if hasattr(cls, key) and key not in vars(cls):
            method = getattr(cls, key)
            setattr(cls, key, functools.wraps(method)(wrap(method)))
    keep_weights_fresh(module)


def _resetting(reset: Method) -> Method:
    """Let torch initialize the weight, then start at the nearest point."""

    def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for coordinates in coordinates_of(module).values():
                stack.enter_context(coordinates.initializing())
            return reset(module, *args, **kwargs)

    return wrapped


def _registering(register: Method) -> Method:
    """Refuse a parameter in place of the weight, and say how to assign a value."""

    def wrapped(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if name in coordinates_of(module):
            raise TypeError(
                f"`{name}` must be assigned as a plain tensor, since it is "
                f"constrained; got {type(param).__name__}. Assign `value.detach()`, "
                f"which copies it, or remove the constraint first, with "
                f"`isometry.fold`."
            )
        register(module, name, param)

    return wrapped


def _loading(load: Method) -> Method:
    """Refuse the plain weight of another layer, even with `strict=False`."""

    def wrapped(
        module: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        errors: list[str] = args[-1]
        for name in coordinates_of(module):
            saved = f"{prefix}parametrizations.{name}.0.map"
            if prefix + name in state_dict and saved not in state_dict:
                errors.append(
                    f"`{prefix}{name}` must have coordinates, as a constrained weight "
                    f"has; got a plain weight. It loads with `isometry.load_foreign`."
                )
        load(module, state_dict, prefix, *args)

    return wrapped


_WRAPPERS = {
    "reset_parameters": _resetting,
    # the method of nn.MultiheadAttention
    "_reset_parameters": _resetting,
    "register_parameter": _registering,
    "_load_from_state_dict": _loading,
}
