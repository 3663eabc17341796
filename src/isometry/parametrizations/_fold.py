"""Constrained weights as plain parameters, for inference and export."""

import torch
from torch import nn
from torch.nn.utils import parametrize

from isometry._typing import Layer
from isometry.groups._declare import record
from isometry.parametrizations._constrained import constrained
from isometry.parametrizations._owner import own_class
from isometry.parametrizations._recurrent import restore_weights


def fold(module: Layer) -> Layer:
    """Bake every constrained weight inside `module` into a plain parameter.

    For inference, export and quantization: the module computes the same, is of its
    original class, and its `state_dict` has the names that it had before. The weights
    are new parameters; nothing keeps them orthogonal when they are trained.

    Args:
        module: the module; those inside it are visited too.

    Returns:
        The module.

    Raises:
        TypeError: if `module` is not a module.
    """
    for found in constrained(module):
        owner, name = found.owner, found.name
        with torch.no_grad():
            weight = getattr(owner, name)
            weight = weight.clone(memory_format=torch.contiguous_format)
        weight = nn.Parameter(weight, requires_grad=found.coordinates.requires_grad)
        own_class(owner)
        parametrize.remove_parametrizations(owner, name, leave_parametrized=False)
        owner.register_parameter(name, weight)
        record(owner, name, None)
        restore_weights(owner)
    return module
