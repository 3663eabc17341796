"""The number of free parameters of a network."""

import math

from torch import nn

from isometry._declare import declared_parameters
from isometry.nn._cell import AbstractCell
from isometry.parametrizations._holder import constrained


def count_parameters(module: nn.Module) -> int:
    r"""The number of free real parameters of a model.

    A complex number counts as two. A constrained weight or declared parameter counts as
    the dimension of its manifold, $n(n-1)/2$ for an orthogonal and $n^2$ for a unitary
    matrix, however it is stored. Parameters that do not require a gradient do not
    count, nor do numbers that a cell ignores, such as the upper triangle of the `X` of
    a `ScoRNN`. The tables of [LM19] count in this way, except in a few rows with
    misprints.

    Args:
        module: the model, with its output layer.

    Returns:
        The number of free real parameters.
    """
    manifolds = {
        **{c.coordinates: c.constraint.manifold for c in constrained(module)},
        **{p: manifold for _, p, manifold in declared_parameters(module)},
    }
    redundant = {
        p: cell.redundant.get(name, 0)
        for cell in module.modules()
        if isinstance(cell, AbstractCell)
        for name, p in cell.named_parameters(recurse=False)
    }
    total = 0
    for p in module.parameters():
        if p.requires_grad and p in manifolds:
            manifold = manifolds[p]
            # `or 1` avoids a division by zero; a point without entries has dimension 0
            points = p.numel() // (math.prod(manifold.shape) or 1)
            total += points * manifold.dimension
        elif p.requires_grad:
            total += p.numel() * (2 if p.is_complex() else 1) - redundant.get(p, 0)
    return total
