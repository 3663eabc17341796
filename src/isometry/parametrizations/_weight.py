"""What may be constrained: checks of the module and of the parameter."""

from typing import cast

from torch import nn
from torch.nn.utils import parametrize


def checked_weight(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter, if it can be constrained."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"`module` must be a torch.nn.Module; got {type(module).__name__}. "
            f"Pass the layer that owns the weight."
        )
    kind = parametrize.type_before_parametrizations(module).__name__
    if parametrize.is_parametrized(module, name):
        lists = cast("nn.ModuleDict", module.parametrizations)
        parts = [type(part).__name__ for part in lists[name].children()]
        raise ValueError(
            f"`{name}` must not be constrained already; {kind} has {parts} on it. "
            f"Remove that first, with `isometry.fold` or torch's "
            f"`remove_parametrizations`."
        )
    known = dict(module.named_parameters(recurse=False))
    weight = known.get(name)
    if not isinstance(weight, nn.Parameter):
        raise TypeError(
            f"`{name}` must be a parameter of the module; {kind} has the parameters "
            f"{list(known)}. Pass the layer that owns it, and its name there."
        )
    _check_values(module, name, weight)
    return weight


def _check_values(module: nn.Module, name: str, weight: nn.Parameter) -> None:
    if isinstance(weight, nn.UninitializedParameter):
        raise TypeError(
            f"`{name}` must have a shape; {type(module).__name__} is lazy. "
            f"Run a forward pass first."
        )
    if not (weight.is_floating_point() or weight.is_complex()):
        raise TypeError(
            f"`{name}` must have a floating-point or complex dtype; got "
            f"{weight.dtype}. Convert the module first."
        )
    if not weight.is_meta and not bool(weight.isfinite().all()):
        raise ValueError(
            f"`{name}` must be finite; got NaN or infinity in it. "
            f"Initialize it again, for instance with `nn.init.orthogonal_`."
        )
    if isinstance(module, nn.Embedding) and name == "weight":
        unfit = [n for n in ("max_norm", "sparse") if getattr(module, n)]
        if unfit:
            raise ValueError(
                f"`module` must not have {unfit[0]} set to be constrained; got "
                f"{getattr(module, unfit[0])}. It would change a computed weight."
            )
