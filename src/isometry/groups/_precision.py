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
    """Mark a method: `AbstractFullPrecision` must not wrap it, or an override of it."""
    _MARKED.add(method)
    return method


class AbstractFullPrecision:
    """A base class that makes the public methods of its subclasses switch autocast off.

    Inside `torch.autocast`, products of float32 matrices are computed in bfloat16 or
    float16, and a point is then off its manifold by 1e-2. So when a subclass is made,
    its public methods are wrapped. A subclass may also inherit from a class that does
    not derive from this one, such as a user's mixin. If the mixin overrides one of the
    wrapped methods, the subclass gets a wrapped method that calls the override. Methods
    marked by `leaves_autocast_on` are not wrapped.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            if _is_public(name, method) and not _is_marked(cls, name):
                setattr(cls, name, _in_full(method))
        # `family` has the classes whose methods were wrapped when the classes were
        # made. The other base classes, here called mixins, still have their plain
        # methods.
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
    """A method that calls the next method with this name in the MRO after `cls`.

    For `cls` itself, the next method is `method`. In the MRO of a subclass of `cls`,
    the method of another base class may come first.
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

    Without a tensor argument, it is the keyword argument `device`, as for `random`, or
    else the default device.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    device = kwargs.get("device")
    return torch.get_default_device() if device is None else torch.device(device)
