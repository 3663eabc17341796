"""Changes to a module that owns a constrained weight.

When a weight is parametrized, torch derives a new class from the class of the module,
makes the weight a property of the new class, and gives this class to the module. We
change the new class further, because torch's property alone leaves four problems:

- Reading the weight is slow.
- Copies of the module share the class.
- `reset_parameters` misses the weight: it writes to a temporary tensor, or to the
  coordinates.
- A recurrent module reads its weights from a list of its own, which is out of date.

Our changes are in the new class only, so they disappear with it when the last
parametrization is removed.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from isometry._torch import compute_flat_weights, fill_flat_weights, flat_weights
from isometry.parametrizations._cache import read_fast
from isometry.parametrizations._holder import holders_of

# name of the attribute that marks a class which `adapt` has changed
_ADAPTED = "_isometry_adapted"

# name of the attribute that holds the weights of a recurrent module during its forward
# pass
_PASS_WEIGHTS = "_isometry_weights"

Method = Callable[..., Any]


def own_class(module: nn.Module) -> None:
    """Give a parametrized module a class that no copy of the module shares.

    torch makes the weight a property of a new class, which copies of the module share
    at first. As long as they do, removing a parametrization from a copy also removes
    the property from the original.
    """
    cls = type(module)
    # `type` creates these two entries itself
    automatic_names = ("__dict__", "__weakref__")
    namespace = {k: v for k, v in vars(cls).items() if k not in automatic_names}
    new_class = type(cls.__name__, cls.__bases__, namespace)
    object.__setattr__(module, "__class__", new_class)


def adapt(module: nn.Module, name: str) -> None:
    """Adapt the class of a module whose weight `name` has just been constrained."""
    read_fast(module, name)
    # This class belongs to this module alone: torch made it for the module's first
    # parametrization, or `own_class` made it for a copy. So no other module changes.
    cls: Any = type(module)
    # constraining a second weight of the module must not wrap a method again
    if hasattr(cls, _ADAPTED):
        return
    setattr(cls, _ADAPTED, True)
    for key, replacement in _REPLACEMENTS.items():
        method = getattr(cls, key, None)
        if method is not None:
            setattr(cls, key, _replaced(method, replacement))
    if isinstance(module, nn.RNNBase):
        _keep_weights_fresh(module)


def _replaced(method: Method, replacement: Method) -> Method:
    """A method that calls `replacement`, with `method` as an additional first argument.

    The new method has the name, docstring and signature of `method`.
    """

    @functools.wraps(method)
    def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        return replacement(method, module, *args, **kwargs)

    return call


def _reset_parameters(
    reset: Method, module: nn.Module, /, *args: Any, **kwargs: Any
) -> Any:
    """Takes the place of `reset_parameters`: initializes weights, not coordinates."""
    with ExitStack() as stack:
        for holder in holders_of(module).values():
            stack.enter_context(holder.initializing())
        return reset(module, *args, **kwargs)


def _register_parameter(
    register: Method, module: nn.Module, name: str, param: nn.Parameter | None
) -> None:
    """Takes the place of `register_parameter`: no parameter can replace a weight."""
    if name in holders_of(module):
        raise TypeError(
            f"`{name}` must be assigned as a plain tensor, since it is constrained; "
            f"got {type(param).__name__}. Assign `value.detach()`, which copies it, or "
            f"remove the constraint first, with `isometry.fold`."
        )
    register(module, name, param)


def _load_from_state_dict(
    load: Method, module: nn.Module, state: dict[str, Any], prefix: str, *args: Any
) -> None:
    """Takes the place of `_load_from_state_dict`: refuses a plain weight.

    A constrained weight that is in the checkpoint must be there as coordinates, even
    with `strict=False`.
    """
    # after loading, torch raises an error with the messages in this list, if any
    errors: list[str] = args[-1]
    for name in holders_of(module):
        saved = f"{prefix}parametrizations.{name}.0.map"
        if prefix + name in state and saved not in state:
            errors.append(
                f"`{prefix}{name}` must be saved as coordinates, because it is "
                f"constrained; got a plain weight. Load the checkpoint with "
                f"`isometry.load_foreign`."
            )
    load(module, state, prefix, *args)


def _deepcopy(deepcopy: Method, module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Takes the place of `__deepcopy__`: each copy gets a class of its own."""
    result = deepcopy(module, memo)
    # a user's own `__deepcopy__` may return an object of another class
    if type(result) is type(module):
        own_class(result)
    return result


_REPLACEMENTS: dict[str, Method] = {
    "__deepcopy__": _deepcopy,
    "reset_parameters": _reset_parameters,
    # nn.MultiheadAttention resets its parameters in a method with this name
    "_reset_parameters": _reset_parameters,
    "register_parameter": _register_parameter,
    "_load_from_state_dict": _load_from_state_dict,
}


def _keep_weights_fresh(module: nn.RNNBase) -> None:
    """Make a recurrent module of torch read current weights, once per forward pass.

    nn.RNN, nn.LSTM and nn.GRU keep a list of their weights, which they fill when a
    weight is assigned. A parametrized weight is computed at each access, so the list
    would hold an old tensor. Training would then change nothing (pytorch#65688) or
    raise "backward a second time", or a deepcopy would raise. So we make the list a
    property that reads the weights at each access. During a forward pass, the property
    returns the weights that were read when the pass began.
    """
    cls: Any = type(module)
    cls.forward = _read_once(cls.forward)
    compute_flat_weights(module, _weights)


def _read_once(forward: Method) -> Method:
    """Wrap `forward`, so that a pass computes each weight only once.

    Torch's `forward` reads each weight many times.
    """

    @functools.wraps(forward)
    def wrapped(module: Any, *args: Any, **kwargs: Any) -> Any:
        module.__dict__[_PASS_WEIGHTS] = flat_weights(module)
        try:
            return forward(module, *args, **kwargs)
        finally:
            module.__dict__.pop(_PASS_WEIGHTS, None)

    return wrapped


def _weights(module: Any) -> list[Tensor | None]:
    """The current weights; during a forward pass, the weights read at its start."""
    weights = module.__dict__.get(_PASS_WEIGHTS)
    return flat_weights(module) if weights is None else weights


def restore_weights(module: nn.Module) -> None:
    """Refill a recurrent module's list of weights if none of them is parametrized."""
    if isinstance(module, nn.RNNBase) and not parametrize.is_parametrized(module):
        fill_flat_weights(module)
