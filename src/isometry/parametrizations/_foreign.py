"""Checkpoints of unconstrained layers, of torch's `orthogonal` and of geotorch."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from isometry.groups import Cayley, Exp, Householder
from isometry.groups._maps import AbstractMap, parse_map
from isometry.parametrizations._constrained import Constrained, constrained
from isometry.parametrizations._constraint import worst_defect

_PEERS = (Exp(), Cayley(), Householder())


def load_foreign(
    module: nn.Module,
    state_dict: Mapping[str, Tensor],
    *,
    retraction: str | AbstractMap | Mapping[str, str | AbstractMap] | None = None,
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
    which map it was made with: it is taken to be that of our constraint, but for a
    rectangular weight of torch, whose default is "householder" there, you must say so.
    The peers see the kernel of a convolution as many small matrices, which is another
    constraint: such a checkpoint is refused.

    Args:
        module: a model, with its weights constrained by `isometry`.
        state_dict: the checkpoint, as `torch.load(..., weights_only=True)` returns it.
        retraction: "exp", "cayley" or "householder", for all weights or by their names
            (`{"0.weight": "householder"}`); None for the map of the constraint.
        strict: as in `load_state_dict`.

    Returns:
        What `load_state_dict` returns: missing and unexpected keys.

    Raises:
        TypeError: if `module` is not a module or `state_dict` not a mapping.
        ValueError: if keys or shapes do not fit, a weight is not finite or not on its
            manifold, or its map must be named; nothing is then loaded.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"`state_dict` must be a mapping from names to tensors; got "
            f"{type(state_dict).__name__}. Pass what `module.state_dict()` returned."
        )
    state = dict(state_dict)
    for found in constrained(module, remove_duplicate=False):
        holder = found.key.removesuffix(found.name) + f"parametrizations.{found.name}."
        weight = state.pop(found.key, None)
        if weight is not None:
            _check_weight(found, weight)
        else:
            by_name = isinstance(retraction, Mapping)
            chosen = retraction.get(found.key) if by_name else retraction
            weight = _peer_weight(state, holder, found, chosen)
        if weight is None:
            continue
        # a copy is asked for coordinates: until all is well, nothing changes
        twin = copy.deepcopy(found.constraint)
        points = twin.layout.points(weight.to(found.coordinates))
        Q = twin.manifold.polish(twin.manifold.nearest(points))
        state[f"{holder}original"] = twin.start(Q)
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
    state: dict[str, Tensor], holder: str, found: Constrained, named: Any
) -> Tensor | None:
    """The weight that a peer's keys mean, which are removed; None if there are none."""
    if f"{holder}0.map" in state or f"{holder}original" not in state:
        return None
    X = state.pop(f"{holder}original")
    base = state.pop(f"{holder}0.base", None)
    own = found.constraint.retraction
    if named is None and own.steps and _is_torchs_rectangle(X):
        raise ValueError(
            f"`retraction` must be given for {found.key!r}, a rectangular weight of "
            f"torch's `orthogonal`, whose default is 'householder' there; got None. "
            f"Pass {{{found.key!r}: 'householder'}}, or the map that was chosen."
        )
    wide = X.shape[-2] < X.shape[-1]
    n = max(X.shape[-2:])
    if base is not None and tuple(base.shape) != (*X.shape[:-2], n, n):
        raise ValueError(
            f"`{holder}0.base` must have shape {(*X.shape[:-2], n, n)}; got "
            f"{tuple(base.shape)}. Load one of torch's `orthogonal` or of geotorch."
        )
    Q = _peer_map(named or own).columns(X.mT if wide else X)
    if base is not None:
        Q = base.to(Q) @ Q
    W = Q.mT if wide else Q
    _check_weight(found, W)
    constraint = found.constraint
    defect = worst_defect(constraint.manifold, constraint.layout.points(W))
    # the peers' own errors: up to 1e-3, measured in float32
    if not defect <= 1e-2:
        raise ValueError(
            f"`{found.key}` must be a point of {constraint.manifold}; the checkpoint "
            f"has one with a defect of {defect:.1e}. It was constrained otherwise (the "
            f"peers see a kernel as many small matrices): load it into the peer, and "
            f"take its plain weight."
        )
    return W


def _is_torchs_rectangle(X: Tensor) -> bool:
    """Whether torch made these coordinates: it leaves -1 on their diagonal."""
    diagonal = X.diagonal(dim1=-2, dim2=-1)
    return X.shape[-2] != X.shape[-1] and bool((diagonal.abs() == 1).all())


def _peer_map(value: str | AbstractMap) -> AbstractMap:
    """The map with which a peer made a checkpoint."""
    # geotorch and torch have names of their own for the exponential
    found = parse_map("exp" if value in ("expm", "matrix_exp") else value)
    if found not in _PEERS:
        raise ValueError(
            f"`retraction` must be 'exp', 'cayley' or 'householder', the maps of the "
            f"peers; got {value!r}. Name the one that the checkpoint was made with."
        )
    return found


def _check_weight(found: Constrained, weight: Tensor) -> None:
    if tuple(weight.shape) != found.constraint.layout.shape:
        raise ValueError(
            f"`{found.key}` must have shape {found.constraint.layout.shape}, that of "
            f"the weight; got {tuple(weight.shape)}. Build the model with the sizes of "
            f"the checkpoint."
        )
    if not bool(weight.isfinite().all()):
        raise ValueError(
            f"`{found.key}` must be finite; got NaN or infinity in the checkpoint. "
            f"Load an earlier one."
        )
