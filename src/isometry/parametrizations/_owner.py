"""Changes to a module that owns a constrained weight.

torch's parametrize gives every such module a class of its own. We wrap methods in that
class, so all wrappers disappear with the class when the constraint is removed.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from isometry._torch import compute_flat_weights, fill_flat_weights, flat_weights
from isometry.parametrizations._cache import read_fast
from isometry.parametrizations._coordinates import coordinates_of

_OF_THE_TYPE = ("__dict__", "__weakref__")

# name of the attribute that marks a method which `adapt` has wrapped
_WRAPPED = "_isometry_wraps"

# name of the attribute that holds the weights during a forward pass
_DURING = "_isometry_weights"

Method = Callable[..., Any]


def own_class(module: nn.Module) -> None:
    """Give a parametrized module a class that no copy of it shares.

    torch makes the weight a property of a new class, and a copy shares that class.
    Removing a parametrization from the copy would then remove the property from the
    original, too.
    """
    cls = type(module)
    inner = {k: v for k, v in vars(cls).items() if k not in _OF_THE_TYPE}
    object.__setattr__(module, "__class__", type(cls.__name__, cls.__bases__, inner))


def adapt(module: nn.Module, name: str) -> None:
    """Change the class of a module whose weight `name` has just been constrained."""
    read_fast(module, name)
    cls: Any = type(module)
    for key, wrap in _WRAPPERS.items():
        method = getattr(cls, key, None)
        # a second weight of the same module must not wrap a method again
        if method is not None and not hasattr(method, _WRAPPED):
            method = functools.wraps(method)(wrap(method))
            setattr(method, _WRAPPED, True)
            setattr(cls, key, method)
    keep_weights_fresh(module)


def _resetting(reset: Method) -> Method:
    """Wrap `reset_parameters`, so that the constraint starts from the new values."""

    def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for coordinates in coordinates_of(module).values():
                stack.enter_context(coordinates.initializing())
            return reset(module, *args, **kwargs)

    return wrapped


def _registering(register: Method) -> Method:
    """Wrap `register_parameter`, so that no parameter can take the weight's place."""

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
    """Wrap the loading of a checkpoint, so that it refuses plain weights.

    It refuses them with `strict=False`, too.
    """

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


def _copying(copy: Method) -> Method:
    """Wrap `__deepcopy__`, so that each copy has a class of its own."""

    def wrapped(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
        result = copy(module, memo)
        # a method of the user's own may return something else
        if type(result) is type(module):
            own_class(result)
        return result

    return wrapped


_WRAPPERS = {
    "__deepcopy__": _copying,
    "reset_parameters": _resetting,
    # nn.MultiheadAttention resets its parameters by a method of this name
    "_reset_parameters": _resetting,
    "register_parameter": _registering,
    "_load_from_state_dict": _loading,
}


def keep_weights_fresh(module: nn.Module) -> None:
    """Let a recurrent module of torch read its current weights, once per forward pass.

    nn.RNN, nn.LSTM and nn.GRU keep a list of their weights, which they fill when a
    weight is assigned. A parametrized weight is computed at each access, so the list
    would hold an old tensor. Training would freeze (pytorch#65688) or stop with
    "backward a second time", or a deepcopy would raise. So here the list is computed at
    each access as well.
    """
    if not isinstance(module, nn.RNNBase):
        return
    # torch's parametrize has just made this class, for this module alone, so changing
    # the class affects no other module
    cls: Any = type(module)
    if "forward" not in vars(cls):
        cls.forward = _reading_once(cls.forward)
    compute_flat_weights(module, _weights)


def restore_weights(module: nn.Module) -> None:
    """Let a recurrent module fill its list, once no weight is parametrized."""
    if isinstance(module, nn.RNNBase) and not parametrize.is_parametrized(module):
        fill_flat_weights(module)


def _reading_once(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `forward` to compute each weight once, though torch reads it many times."""

    @functools.wraps(forward)
    def wrapped(module: Any, *args: Any, **kwargs: Any) -> Any:
        module.__dict__[_DURING] = flat_weights(module)
        try:
            return forward(module, *args, **kwargs)
        finally:
            module.__dict__.pop(_DURING, None)

    return wrapped


def _weights(module: Any) -> list[Tensor | None]:
    during = module.__dict__.get(_DURING)
    return flat_weights(module) if during is None else during
