"""Constrained weights of nn.RNN, nn.LSTM and nn.GRU.

These modules keep a list of their weights, which they fill when a weight is assigned. A
parametrized weight is computed at each access, so the list would hold an old one. Then
training freezes (pytorch#65688), stops with "backward a second time", or a deepcopy
raises. Here the list is computed at each access, too.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

# name of the attribute that holds the weights during a forward pass
_DURING = "_isometry_weights"


def keep_weights_fresh(module: nn.Module) -> None:
    """Let a recurrent module read each of its weights once in a forward pass."""
    if not isinstance(module, nn.RNNBase):
        return
    # torch's parametrize has just made this class, for this module alone
    cls: Any = type(module)
    cls._flat_weights = property(_weights, _ignore)
    if "forward" not in vars(cls):
        cls.forward = _reading_once(cls.forward)
    cls._init_flat_weights = _nothing
    cls._update_flat_weights = _nothing
    cls.flatten_parameters = _nothing
    # torch's own method reads all weights in order to update the list
    cls.__setattr__ = nn.Module.__setattr__
    # The property hides these two attributes. When the constraint is removed, torch
    # sees that they are not the weights, and fills the list again
    module.__dict__["_flat_weights"] = []
    names = cast("Any", module)._flat_weights_names
    module.__dict__["_flat_weight_refs"] = [weakref.ref(nn.RNNBase) for _ in names]


def restore_weights(module: nn.Module) -> None:
    """Let a recurrent module without parametrizations fill its list again."""
    if isinstance(module, nn.RNNBase) and not parametrize.is_parametrized(module):
        cast("Any", module)._init_flat_weights()


def _reading_once(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward pass that computes each weight once, though torch reads it often."""

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
    """Ignore the assignments to the list that torch makes in several places."""


def _nothing(module: Any) -> None:
    """Do nothing: there is no list to update, and no block of memory for cuDNN."""
