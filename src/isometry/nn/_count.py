"""The number of free parameters of a network."""

from torch import nn

from isometry.groups._declare import declared
from isometry.nn._recurrent import AbstractCell
from isometry.parametrizations._coordinates import constrained


def count_parameters(module: nn.Module) -> int:
    r"""The number of free real parameters of a model, as the paper's tables count them.

    A complex number counts as two. A constrained weight counts as the dimension of its
    manifold, $n(n-1)/2$ for an orthogonal and $n^2$ for a unitary matrix, however its
    coordinates are stored. Parameters that are not trained do not count.

    Args:
        module: the model, with its output layer.

    Returns:
        The number.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    total = sum(p.numel() * (2 if p.is_complex() else 1) for p in trained)
    known = {id(p) for p in trained}
    entries = constrained(module, remove_duplicate=False)
    coordinates = {(id(c.owner), c.name): c.coordinates for c in entries}
    for _, owner, name, manifold in declared(module):
        p = coordinates.get((id(owner), name))
        p = owner.get_parameter(name) if p is None else p
        if id(p) in known:
            # a tied weight is declared in several places, and counts once
            known.remove(id(p))
            points = p.numel() // manifold.origin(device="meta").numel()
            size = p.numel() * (2 if p.is_complex() else 1)
            total -= size - points * manifold.dimension
    cells = [cell for cell in module.modules() if isinstance(cell, AbstractCell)]
    return total - sum(cell.redundant for cell in cells)
