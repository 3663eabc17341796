"""Checkpoints of unconstrained layers, of torch's `orthogonal` and of geotorch."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isometry.linalg import cayley, expm_skew
from isometry.parametrizations._fold import constrained
from isometry.parametrizations._reflections import Reflections
from isometry.parametrizations._trivialization import Trivialization


def load_foreign(
    module: nn.Module,
    state_dict: Mapping[str, Tensor],
    *,
    map_name: str | None = None,
    strict: bool = True,
) -> Any:
    r"""Load a checkpoint whose weights were constrained elsewhere, or not at all.

    For each constrained weight of `module`, the checkpoint may hold one of

    - a plain `weight`: the nearest point is taken;
    - torch's or geotorch's `original` $X$ and `base` $B$ (square, also for a tall
      weight): $W = B\,\phi(A)$ cut to its columns, with $A = L - L^H$ and $L$ the lower
      triangle of $X$ padded to a square (torch's Householder: the reflections of $X$);
      the rounding errors of the peer are removed, by the nearest point;
    - our own keys, which load as they are.

    Everything else loads as by `module.load_state_dict`. The checkpoint does not say
    which map it was made with: if it was not that of our constraint, name it.

    Args:
        module: a model, with its weights constrained by `isometry`.
        state_dict: the checkpoint, as `torch.load(..., weights_only=True)` returns it.
        map_name: "exp", "cayley" or "householder"; None for that of the constraint.
        strict: as in `load_state_dict`.

    Returns:
        What `load_state_dict` returns: missing and unexpected keys.

    Raises:
        ValueError: if keys or shapes do not fit, or a weight is not finite; nothing is
            then loaded.
    """
    state = dict(state_dict)
    for found in constrained(module):
        prefix = found.key.removesuffix(found.name)
        holder = f"{prefix}parametrizations.{found.name}."
        weight = state.pop(found.key, None)
        if weight is None:
            weight = _peer_weight(state, holder, found.constraint, map_name)
        if weight is None:
            continue
        weight = _nearest(found.constraint, weight, found.key)
        # a copy is asked for coordinates: until all is well, nothing changes
        twin = copy.deepcopy(found.constraint)
        state[f"{holder}original"] = twin.right_inverse(weight)
        state |= {f"{holder}0.{k}": v for k, v in twin.state_dict().items()}
    _check_fit(module, state, strict=strict)
    return module.load_state_dict(state, strict=strict)


def _check_fit(module: nn.Module, state: Mapping[str, Tensor], *, strict: bool) -> None:
    """Raise before torch would, which loads what fits and then raises."""
    own = module.state_dict()
    odd = [
        f"{key} {tuple(state[key].shape)}"
        for key in own.keys() & state.keys()
        if own[key].shape != state[key].shape
    ]
    missing = sorted(own.keys() - state.keys()) if strict else []
    unexpected = sorted(state.keys() - own.keys()) if strict else []
    if odd or missing or unexpected:
        raise ValueError(
            f"`state_dict` must have the keys and shapes of the model; got "
            f"{unexpected} that it has not, none of {missing}, and the shapes "
            f"{sorted(odd)}. Build the model that was saved, or pass `strict=False` "
            f"for other keys."
        )


def _peer_weight(
    state: dict[str, Tensor],
    holder: str,
    constraint: Trivialization | Reflections,
    map_name: str | None,
) -> Tensor | None:
    """The weight that a peer's keys mean, which are removed; None if there are none."""
    ours = f"{holder}0.steps" in state or f"{holder}0.phase" in state
    if ours or f"{holder}original" not in state:
        return None
    X = state.pop(f"{holder}original")
    base = state.pop(f"{holder}0.base", None)
    wide = X.shape[-2] < X.shape[-1]
    Q = _mapped(X.mT if wide else X, map_name or constraint.map_name)
    if base is not None:
        Q = base.to(Q) @ Q
    return Q.mT if wide else Q


def _mapped(X: Tensor, map_name: str) -> Tensor:
    """The orthonormal columns that a tall `X` stands for at the peers."""
    n, k = X.shape[-2:]
    if map_name == "householder":
        V = X.tril(-1)
        tau = 2 / (1 + (V * V).sum(-2))
        signs = X.diagonal(dim1=-2, dim2=-1).sign()
        return torch.linalg.householder_product(V, tau) * signs[..., None, :]
    maps = {"exp": expm_skew, "matrix_exp": expm_skew, "cayley": cayley}
    if map_name not in maps:
        raise ValueError(
            f"`map_name` must be 'exp', 'cayley' or 'householder', the maps of the "
            f"peers; got {map_name!r}. Name the one that the checkpoint was made with."
        )
    L = torch.nn.functional.pad(X.tril(), (0, n - k))
    return maps[map_name](L - L.mH)[..., :k]


def _nearest(
    constraint: Trivialization | Reflections, weight: Tensor, key: str
) -> Tensor:
    layout, manifold = constraint.layout, constraint.manifold
    if tuple(weight.shape) != layout.shape:
        raise ValueError(
            f"`{key}` must have shape {layout.shape}, that of the weight; got "
            f"{tuple(weight.shape)}. Build the model with the sizes of the checkpoint."
        )
    if not bool(weight.isfinite().all()):
        raise ValueError(
            f"`{key}` must be finite; got NaN or infinity in the checkpoint. "
            f"Load an earlier one."
        )
    Q = manifold.nearest(layout.points(weight))
    return layout.weight(Q).to(constraint.dtype)
