"""An optimizer that knows nothing of manifolds must not step on one."""

from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

_hooks: list[Any] = []


def guard_steps() -> None:
    """From now on, raise before an optimizer steps on a manifold that it ignores.

    torch's optimizers store every option of a parameter group, even one that they do
    not read, such as `manifold`. A step of such an optimizer would leave the manifold
    silently.
    """
    if not _hooks:
        # a compiled step need not trace the hook
        eager: Any = torch.compiler.disable
        _hooks.append(register_optimizer_step_pre_hook(eager(_check_step)))


def _check_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if _knows_manifolds(optimizer):
        return
    for i, group in enumerate(optimizer.param_groups):
        if group.get("manifold") is not None:
            raise TypeError(
                f"`optimizer` must keep parameters on their manifold; got "
                f"{type(optimizer).__name__}, which ignores the {group['manifold']} of "
                f"`param_groups[{i}]`. Use an optimizer of `isometry.optim`, or "
                f"constrain the weight with `isometry.constrain`, which works with any "
                f"optimizer."
            )


def _knows_manifolds(optimizer: Optimizer) -> bool:
    """Whether it, or an optimizer that it wraps, has the option `manifold`."""
    return any(
        isinstance(one, Optimizer) and "manifold" in one.defaults
        for one in (optimizer, *vars(optimizer).values())
    )
