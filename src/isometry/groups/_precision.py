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
    its public methods are wrapped, and so are the methods that it inherits from other
    base classes, such as a user's mixin. Methods marked by `leaves_autocast_on` are not
    wrapped.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Base classes that do not inherit from `AbstractFullPrecision`, such as a
        # user's mixin, were not wrapped when they were made.
        mixins = [c for c in cls.__mro__ if not issubclass(c, AbstractFullPrecision)]
        for owner in (cls, *mixins):
            for name, method in list(vars(owner).items()):
                if name.startswith("_") or not isinstance(method, FunctionType):
                    continue
                # a class before `owner` in `cls.__mro__` may have overridden the method
                is_used = getattr(cls, name) is method
                is_marked = any(vars(c).get(name) in _MARKED for c in cls.__mro__)
                if is_used and not is_marked:
                    setattr(cls, name, _in_full(method))


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
