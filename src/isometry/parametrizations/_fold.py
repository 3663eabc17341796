"""Conversion of constrained weights to plain parameters, for inference and export."""

from typing import cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from isometry._declare import record
from isometry._typing import Layer
from isometry.parametrizations._holder import Constrained, constrained
from isometry.parametrizations._owner import own_class, restore_weights
from isometry.parametrizations._target import tied_elsewhere


def fold(module: Layer) -> Layer:
    """Turn every constrained weight inside `module` into a plain parameter.

    Use it before inference, export and quantization. The module computes the same
    function as before. Unless it has other parametrizations, it has its original class
    again, and its `state_dict` has its original names. The weights are new parameters,
    and nothing keeps them orthogonal when they are trained. Tied weights stay tied: a
    weight that a module outside of `module` shares is folded there too. If a
    parametrization of your own contains a constrained weight, this weight is folded,
    but the parametrization stays. An `ExpRNN`, `ExpLSTM` or `ExpGRU` can also become
    one of torch's layers, with its method `to_torch`.

    Args:
        module: the module; its submodules are visited too.

    Returns:
        The module.

    Raises:
        TypeError: if `module` is not a module.
    """
    entries = constrained(module, remove_duplicate=False)
    entries += tied_elsewhere(entries)
    weights = {id(entry.coordinates): _plain_parameter(entry) for entry in entries}
    for entry in entries:
        owner, name = entry.owner, entry.name
        # a module may occur several times, and is folded at its first occurrence
        if not parametrize.is_parametrized(owner, name):
            continue
        own_class(owner)
        # When torch removes a parametrization, the `original` of its list becomes the
        # parameter. In our list that would be the coordinates, so replace our list with
        # one that holds the weight.
        weight = weights[id(entry.coordinates)]
        new_list = parametrize.ParametrizationList([nn.Identity()], weight, unsafe=True)
        cast("nn.ModuleDict", owner.parametrizations)[name] = new_list
        parametrize.remove_parametrizations(owner, name, leave_parametrized=False)
        record(owner, name, None)
        restore_weights(owner)
    # Parametrizations that the user has put on other weights remain. When the user
    # removes one later, torch deletes a property from the class of its module. Copies
    # that shared this class would lose the parametrization too, so each module gets a
    # class of its own.
    for part in module.modules():
        if parametrize.is_parametrized(part):
            own_class(part)
    return module


# Leave inference mode: a parameter that was made in it could not be trained later, and
# no error would say so.
@torch.inference_mode(mode=False)
@torch.no_grad()
def _plain_parameter(entry: Constrained) -> nn.Parameter:
    """A new parameter that holds the values of a constrained weight."""
    weight = getattr(entry.owner, entry.name)
    weight = weight.clone(memory_format=torch.contiguous_format)
    return nn.Parameter(weight, requires_grad=entry.coordinates.requires_grad)
