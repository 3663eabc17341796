"""Constrained weights of nn.RNN, nn.LSTM and nn.GRU.

These modules keep a list of their weights, filled when a weight is assigned. A
parametrized weight is computed anew at each access, and a list that holds an old one
is how training freezes (pytorch#65688), breaks with "backward a second time" or
refuses a deepcopy. Here the list is computed as well.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

# the weights as they are during a forward pass
_DURING = "_isometry_weights"


def keep_weights_fresh(module: nn.Module) -> None:
    """Let a recurrent module read each of its weights once in a forward pass."""
    if not isinstance(module, nn.RNNBase):
        return
    # a class of its own for each module: torch's parametrize has just made it
    cls: Any = type(module)
    cls._flat_weights = property(_weights, _ignore)
    if "forward" not in vars(cls):
        cls.forward = _reading_once(cls.forward)
    cls._init_flat_weights = _nothing
    cls._update_flat_weights = _nothing
    cls.flatten_parameters = _nothing
    # torch's own reads all weights, to put one that is assigned into the list
    cls.__setattr__ = nn.Module.__setattr__
    # hidden now; when the constraint is removed, torch finds that these are not its
    # weights, and looks for them anew
    module.__dict__["_flat_weights"] = []
    names = cast("Any", module)._flat_weights_names
    module.__dict__["_flat_weight_refs"] = [weakref.ref(nn.RNNBase) for _ in names]


def restore_weights(module: nn.Module) -> None:
    """Let a recurrent module without parametrizations fill its list again."""
    if isinstance(module, nn.RNNBase) and not parametrize.is_parametrized(module):
        cast("Any", module)._init_flat_weights()


def _reading_once(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of torch, which asks for its list of weights several times."""

    @functools.wraps(forward)
    def wrapped(module: Any, *args: Any, **kwargs: Any) -> Any:
        module.__dict__[_DURING] = _read(module)
        try:
            return forward(module, *args, **kwargs)
        finally:
            module.__dict__.pop(_DURING, None)

    return wrapped


def _weights(module: Any) -> list[Tensor | None]:
    during = module.__dict__.get(_DURING)
    return _read(module) if during is None else during


def _read(module: Any) -> list[Tensor | None]:
    return [getattr(module, name, None) for name in module._flat_weights_names]


def _ignore(module: Any, value: Any) -> None:
    """torch assigns the list, and single weights in it, at several places."""


def _nothing(module: Any) -> None:
    """There is no list to keep, and no single block of memory for cuDNN."""
