"""Loading checkpoints from plain layers, torch's `orthogonal` and geotorch."""

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isometry._dtypes import in_float32_or_wider
from isometry._orthonormal import unitary_bound
from isometry._torch import autocast_off
from isometry.groups import AbstractMap, AbstractRetraction, Cayley, Exp, Householder
from isometry.groups._maps import MapLike, parse_map
from isometry.parametrizations._constraint import rounding_bound
from isometry.parametrizations._holder import Constrained, constrained

# the maps of geotorch, and of torch's `orthogonal`, which has one more
_GEOTORCH_MAPS = (Exp(), Cayley())
_TORCH_MAPS = (*_GEOTORCH_MAPS, Householder())
_log = logging.getLogger("isometry")
_NEAREST = "%s: took the nearest point of %s, at distance %.2g"
_NO_BASE = (
    "%s: the checkpoint has no base, so the base is the identity. If you saved this "
    "file yourself, without the buffers, the weight is not the one that you trained: "
    "save the whole `state_dict()`, which includes the base."
)


class AbstractAdopter(ABC):
    """A layer that can load a checkpoint from another kind of layer."""

    @abstractmethod
    def adopt(self, state: dict[str, Tensor], prefix: str) -> None:
        """Convert the entries of another kind of layer to entries of this layer.

        Weights that this layer constrains get the key of a plain weight.

        Args:
            state: the checkpoint, which is changed in place.
            prefix: the prefix of the layer's keys in the checkpoint.
        """


def load_foreign(
    module: nn.Module,
    state_dict: Mapping[str, Tensor],
    *,
    retraction: MapLike | Mapping[str, MapLike] | None = None,
    strict: bool = True,
) -> Any:
    r"""Load a checkpoint with plain weights, or weights constrained by another library.

    For each constrained weight of `module`, the checkpoint may hold one of these:

    - a plain `weight`: the nearest point of the manifold is taken, and the logger
      "isometry" says so at level INFO;
    - the `original` $X$ and the `base` $B$ from torch or geotorch, where $B$ is square
      even for a tall weight. The weight is $B\,\phi(A)$, cut to its first columns,
      where $A = L - L^H$ and $L$ is the lower triangle of $X$ padded to a square. For
      torch's Householder map, a product of reflections takes the place of $\phi(A)$. A
      wide weight is computed as its transpose, from the transpose of $X$. The nearest
      point is taken, which removes rounding errors. Without a `base`, $B = I$, and the
      logger warns: if the file lacks the base only because it was saved without
      buffers, the weight is not the one that was trained;
    - our own keys, which load as they are.

    An `ExpRNN`, `ExpLSTM` or `ExpGRU` also loads a checkpoint from an `nn.RNN`,
    `nn.LSTM` or `nn.GRU`. It takes the nearest rotation for each recurrent weight, gate
    by gate, and the sum of torch's two biases. (The two biases of a GRU's candidate
    stay apart.) If the weights were not rotations, the result is a different network,
    which needs more training.

    Everything else loads as with `module.load_state_dict`. A checkpoint from torch or
    geotorch does not say which map it was made with, so you must name the map, unless
    all maps give the same weight, as they do before training if there is a base. Both
    libraries use "exp" by default, except that torch uses "householder" for rectangular
    real weights. Both treat the kernel of a convolution as many small matrices. That is
    a different constraint, so such a checkpoint is refused.

    Args:
        module: a model whose weights `isometry` constrains.
        state_dict: the checkpoint, as `torch.load(..., weights_only=True)` returns it.
        retraction: the map of a checkpoint from torch or geotorch: "exp", "cayley" or
            "householder" for all weights, or a mapping from the names of weights
            (`{"0.weight": "householder"}`). The weight in `module` may be constrained
            with a different map.
        strict: as in `load_state_dict`.

    Returns:
        What `load_state_dict` returns: missing and unexpected keys.

    Raises:
        TypeError: if `module` is not a module, or `state_dict` is not a mapping.
        ValueError: if keys or shapes do not fit, if a weight is complex for a real
            layer or not finite, if a weight that torch or geotorch constrained is not
            on the manifold, if `retraction` does not name the map of a weight that
            needs it, or if it names an unknown weight or map. In these cases nothing is
            loaded.
        RuntimeError: if `load_state_dict` refuses our own keys, for instance because
            they were saved with another map.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"`state_dict` must be a mapping from names to tensors; got "
            f"{type(state_dict).__name__}. Pass what `module.state_dict()` returned."
        )
    entries = constrained(module, remove_duplicate=False)
    by_name = _maps_by_name(entries, retraction)
    state = dict(state_dict)
    for path, layer in module.named_modules(remove_duplicate=False):
        if isinstance(layer, AbstractAdopter):
            layer.adopt(state, f"{path}." if path else "")
    for entry in entries:
        prefix = _prefix(entry)
        plain_weight = state.pop(entry.key, None)
        if plain_weight is None:
            weight = _peer_weight(state, prefix, entry, by_name.get(entry.key))
        else:
            weight = plain_weight
            _check_weight(entry, weight)
        if weight is None:
            # the file has our own keys for this weight, or no keys at all for it
            continue
        # a copy of the constraint computes the coordinates, so that the model does not
        # change before the whole checkpoint has been checked
        twin = copy.deepcopy(entry.constraint)
        points = twin.layout.points(weight.to(entry.coordinates))
        Q = twin.manifold.polish(twin.manifold.nearest(points))
        state[f"{prefix}original"] = twin.start(Q)
        if plain_weight is not None:
            distance = float(torch.linalg.vector_norm(Q - points))
            _log.info(_NEAREST, entry.key, twin.manifold, distance)
        state |= {f"{prefix}0.{k}": v for k, v in twin.state_dict().items()}
    _check_fit(module, state, strict=strict)
    return module.load_state_dict(state, strict=strict)


def _prefix(entry: Constrained) -> str:
    """The prefix of the keys that belong to a constrained weight in a `state_dict`."""
    return entry.key.removesuffix(entry.name) + f"parametrizations.{entry.name}."


def _maps_by_name(
    entries: list[Constrained], retraction: MapLike | Mapping[str, MapLike] | None
) -> Mapping[str, MapLike | None]:
    """The argument `retraction` as a mapping from names of weights to maps.

    Raises:
        ValueError: if a name is not the name of a constrained weight.
    """
    names = [entry.key for entry in entries]
    if not isinstance(retraction, Mapping):
        return dict.fromkeys(names, retraction)
    unknown_names = sorted(map(str, retraction.keys() - set(names)))
    if unknown_names:
        raise ValueError(
            f"`retraction` must name only constrained weights of the model; got "
            f"{unknown_names}. Choose from {names}."
        )
    return retraction


def _check_fit(module: nn.Module, state: Mapping[str, Tensor], *, strict: bool) -> None:
    """Raise unless the keys and shapes of the checkpoint `state` fit the model.

    torch would raise too, but only after it has loaded the tensors that do fit. If
    `strict` is False, keys may be missing or unknown.
    """
    own_state = module.state_dict()
    shapes = sorted(
        f"{key} {tuple(state[key].shape)}"
        for key in own_state.keys() & state.keys()
        if own_state[key].shape != state[key].shape
    )
    absent_keys = own_state.keys() - state.keys() if strict else set()
    # report a missing weight once, under the name that the user knows
    for entry in constrained(module, remove_duplicate=False):
        prefix = _prefix(entry)
        if f"{prefix}original" in absent_keys:
            absent_keys = {k for k in absent_keys if not k.startswith(prefix)}
            absent_keys.add(entry.key)
    extra_keys = sorted(state.keys() - own_state.keys()) if strict else []
    parts = {
        "unexpected": extra_keys,
        "missing": sorted(absent_keys),
        "other shapes": shapes,
    }
    problems = [f"{what} {names}" for what, names in parts.items() if names]
    if problems:
        raise ValueError(
            f"`state_dict` must have the keys and shapes of the model; got "
            f"{', '.join(problems)}. Build the model that was saved, or pass "
            f"`strict=False` to ignore other keys."
        )


def _peer_weight(
    state: dict[str, Tensor], prefix: str, entry: Constrained, choice: MapLike | None
) -> Tensor | None:
    """The weight that torch or geotorch saved; None if `state` has no such weight.

    The keys of this weight are popped from `state`. `choice` is the map that the user
    has named, or None.
    """
    if f"{prefix}0.map" in state or f"{prefix}original" not in state:
        return None
    original, base = _pop_peer(state, prefix)
    is_wide = original.shape[-2] < original.shape[-1]
    X = in_float32_or_wider(original.mT if is_wide else original)
    with autocast_off(X.device):
        phi = _map_if_certain(entry.key, X) if choice is None else _peer_map(choice)
        Q = _peer_columns(phi, X)
        if base is None:
            _log.warning(_NO_BASE, entry.key)
        else:
            Q = base.to(Q) @ Q
    weight = Q.mT if is_wide else Q
    _check_weight(entry, weight)
    manifold = entry.constraint.manifold
    defect = manifold.worst_defect(entry.constraint.layout.points(weight))
    # Float32 weights that torch and geotorch computed had defects of up to 1e-3; the
    # bound is ten times that. A base in half precision was rounded, which may give a
    # larger defect.
    if not defect <= max(1e-2, rounding_bound(manifold, original.dtype)):
        raise ValueError(
            f"`{entry.key}` must be a point of {manifold}; got a weight with a defect "
            f"of {defect:.1e}, so it had another constraint (torch and geotorch treat "
            f"a kernel as many small matrices). Load it with the library that made it, "
            f"and save the plain weight."
        )
    return weight


def _pop_peer(state: dict[str, Tensor], prefix: str) -> tuple[Tensor, Tensor | None]:
    """Pop the `original` and the `base` of torch or geotorch; the base may be missing.

    Raises:
        ValueError: if `original` is not a matrix, or the shape of `base` does not fit.
    """
    original = state.pop(f"{prefix}original")
    base = state.pop(f"{prefix}0.base", None)
    if original.ndim < 2:
        raise ValueError(
            f"`{prefix}original` must be a matrix; got shape {tuple(original.shape)}. "
            f"Load it with the library that made it, and save the plain weight."
        )
    n = max(original.shape[-2:])
    shape = (*original.shape[:-2], n, n)
    if base is not None and tuple(base.shape) != shape:
        raise ValueError(
            f"`{prefix}0.base` must have shape {shape}; got {tuple(base.shape)}. Load "
            f"a checkpoint from torch's `orthogonal` or from geotorch."
        )
    return original, base


def _map_if_certain(key: str, X: Tensor) -> AbstractMap:
    """A map that torch or geotorch may have used; raises if their maps disagree on `X`.

    Torch and geotorch store the same keys for all maps. Only torch has the Householder
    map, for which the diagonal of the coordinates consists of 1 and -1.
    """
    diagonal = X.diagonal(dim1=-2, dim2=-1)
    in_torch = not X.is_complex() and bool((diagonal.abs() == 1).all())
    maps = _TORCH_MAPS if in_torch else _GEOTORCH_MAPS
    Qs = [_peer_columns(phi, X) for phi in maps]
    spread = max(float(torch.linalg.vector_norm(Q - Qs[0])) for Q in Qs[1:])
    # NaN passes here, because it is not above the bound; `_check_weight` refuses it
    if spread > unitary_bound(X.shape[-2], X.dtype):
        default = Householder() if in_torch and X.shape[-2] > X.shape[-1] else Exp()
        raise ValueError(
            f"`retraction` must be given for {key!r}, because the checkpoint does not "
            f"say which map it was made with, and the weights by "
            f"{', '.join(phi.name for phi in maps)} differ by {spread:.1e}; got None. "
            f"Pass {{{key!r}: {default.name!r}}}, the default, or the map that was "
            f"chosen."
        )
    return maps[0]


def _peer_map(value: MapLike) -> AbstractMap:
    """The map with which torch or geotorch made a checkpoint."""
    # "expm" is the name of the exponential in geotorch, "matrix_exp" in torch
    phi = parse_map("exp" if value in ("expm", "matrix_exp") else value)
    # within its reach, `Exp(reach=...)` is the exponential too, but as an object it is
    # not equal to `Exp()`
    if phi is not None and phi.is_exponential:
        phi = Exp()
    if phi not in _TORCH_MAPS:
        raise ValueError(
            f"`retraction` must be 'exp', 'cayley' or 'householder', the maps of torch "
            f"and geotorch; got {value!r}. Name the map that made the checkpoint."
        )
    return phi


def _peer_columns(phi: AbstractMap, X: Tensor) -> Tensor:
    """The orthonormal columns that torch and geotorch compute from a tall `X`."""
    if isinstance(phi, AbstractRetraction):
        n, k = X.shape[-2:]
        L = nn.functional.pad(X.tril(), (0, n - k))
        return phi.at_identity(L - L.mH)[..., :k]
    # LAPACK's product of reflections, with the signs of the diagonal of `X`
    V = X.tril(-1)
    tau = 2 / (1 + (V * V).sum(-2))
    signs = X.diagonal(dim1=-2, dim2=-1).sign()
    return torch.linalg.householder_product(V, tau) * signs[..., None, :]


def _check_weight(entry: Constrained, weight: Tensor) -> None:
    """Raise unless `weight` is finite, fits in shape, and is real if `entry` is."""
    if tuple(weight.shape) != entry.constraint.layout.shape:
        raise ValueError(
            f"`{entry.key}` must have the shape {entry.constraint.layout.shape} of the "
            f"weight; got {tuple(weight.shape)}. Build the model with the sizes of the "
            f"checkpoint."
        )
    if weight.is_complex() and not entry.coordinates.is_complex():
        raise ValueError(
            f"`{entry.key}` must be real, like the weight on "
            f"{entry.constraint.manifold}; got {weight.dtype}. Build the model with "
            f"the dtype of the checkpoint."
        )
    if not bool(weight.isfinite().all()):
        raise ValueError(
            f"`{entry.key}` must be finite; got NaN or infinity in the checkpoint. "
            f"Load an earlier checkpoint."
        )
