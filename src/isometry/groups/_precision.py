"""Geometry in full precision, also inside `torch.autocast`."""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor

from isometry._torch import autocast_off

_Method = TypeVar("_Method", bound=Callable[..., Any])

# the methods that `leaves_autocast_on` has marked
_MARKED: set[Callable[..., Any]] = set()


def leaves_autocast_on(method: _Method) -> _Method:
    """Mark a method that `AbstractFullPrecision` must not wrap, nor its overrides."""
    _MARKED.add(method)
    return method


class AbstractFullPrecision:
    """A base class whose methods switch autocast off, also in subclasses.

    Inside `torch.autocast`, products of float32 matrices are computed in bfloat16 or
    float16, and a point is then off its manifold by 1e-2. So when a subclass is made,
    its public methods are wrapped. If another base class, such as a user's mixin,
    overrides a method of the family, the subclass gets a wrapped method that calls it.
    Methods marked by `leaves_autocast_on` are not wrapped.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            if _is_public(name, method) and not _is_marked(cls, name):
                setattr(cls, name, _in_full(method))
        # The methods of other base classes were not wrapped when these were made.
        family = [c for c in cls.__mro__ if issubclass(c, AbstractFullPrecision)]
        for mixin in [c for c in cls.__mro__ if c not in family]:
            for name, method in list(vars(mixin).items()):
                if not _is_public(name, method) or _is_marked(cls, name):
                    continue
                # a class before `mixin` in `cls.__mro__` may have overridden the method
                is_used = getattr(cls, name) is method
                if is_used and any(name in vars(c) for c in family):
                    setattr(cls, name, _in_full(_inherited(cls, name, method)))


def _is_public(name: str, method: object) -> bool:
    return isinstance(method, FunctionType) and not name.startswith("_")


def _is_marked(cls: type, name: str) -> bool:
    return any(vars(c).get(name) in _MARKED for c in cls.__mro__)


def _inherited(cls: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls what `cls` inherits under this name, which is now `method`.

    In a subclass of `cls`, another base class may come in between.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(cls, self), name)(*args, **kwargs)

    return call


def _in_full(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that switches autocast off on the device of its arguments."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast_off(_device(args, kwargs)):
            return method(self, *args, **kwargs)

    return call


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of the first tensor argument.

    Without one, it is the device on which `random` draws its samples.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    device = kwargs.get("device")
    return torch.get_default_device() if device is None else torch.device(device)
