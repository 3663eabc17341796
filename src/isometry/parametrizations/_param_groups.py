"""Parameter groups of a model, for an optimizer."""

from typing import Any

from torch import nn

from isometry._checks import check_not_negative
from isometry._declare import declared_parameters
from isometry.groups import AbstractManifold
from isometry.parametrizations._holder import constrained


def param_groups(
    module: nn.Module,
    lr: float,
    *,
    orthogonal_lr_ratio: float = 0.1,
    weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, with coordinates apart from plain parameters.

    Coordinates of constrained weights get the rate `lr * orthogonal_lr_ratio`; [LM19]
    trains them at a tenth of the rate of the other parameters. Coordinates get no
    weight decay, which would pull the weights towards their base. A scheduler that sets
    all rates to one value, such as `OneCycleLR` with a single `max_lr`, undoes the
    ratio: give it a list of rates. `LBFGS` accepts only one parameter group.

    Parameters that were declared with `isometry.declare` form one parameter group for
    each manifold, for the optimizers of `isometry.optim`, which update parameters of
    equal shape as one batch. With any other optimizer the parameters would leave the
    manifold, so the first step of such an optimizer raises.

    Args:
        module: the model.
        lr: learning rate of the plain parameters.
        orthogonal_lr_ratio: learning rate of coordinates and declared parameters, as a
            multiple of `lr`.
        weight_decay: weight decay of the plain parameters; None leaves it to the
            argument or default of the optimizer.

    Returns:
        The parameter groups that are not empty: first plain parameters, then
        coordinates, then declared parameters.

    Raises:
        TypeError: if `module` is not a module, or another argument is not a number.
        ValueError: if a number is negative or NaN.
    """
    decay = {} if weight_decay is None else {"weight_decay": weight_decay}
    check_not_negative(lr=lr, orthogonal_lr_ratio=orthogonal_lr_ratio, **decay)
    # keyed by identity, so that a shared parameter is listed once
    coordinates = {id(e.coordinates): e.coordinates for e in constrained(module)}
    special_ids = set(coordinates)
    by_manifold: dict[AbstractManifold, list[nn.Parameter]] = {}
    for _, p, manifold in declared_parameters(module):
        by_manifold.setdefault(manifold, []).append(p)
        special_ids.add(id(p))
    plain_parameters = [p for p in module.parameters() if id(p) not in special_ids]
    rate = {"lr": lr * orthogonal_lr_ratio, "weight_decay": 0.0}
    groups = [
        {"params": plain_parameters, "lr": lr, **decay},
        {"params": list(coordinates.values()), **rate},
        *({"params": ps, **rate, "manifold": m} for m, ps in by_manifold.items()),
    ]
    return [group for group in groups if group["params"]]
