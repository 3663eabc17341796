"""The base class of constraints, with checks of assigned and loaded values."""

from abc import ABC, abstractmethod
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from isometry._checks import check_is_tensor, check_same_shape
from isometry._dtypes import HALF, in_float32_or_wider
from isometry._orthonormal import unitarity_defect
from isometry.groups import AbstractManifold, AbstractMap
from isometry.parametrizations._initial import Init
from isometry.parametrizations._layout import Layout

_Map = TypeVar("_Map", bound=AbstractMap)

# The column norms that `is_filled` recognizes: the gains of `nn.init.calculate_gain`
# with the usual slope of leaky_relu, and the square roots of 3 and 4, for three or four
# stacked orthogonal matrices, as in the gates of nn.GRU and nn.LSTM. Other norms must
# not be recognized, because trained coordinates may have orthogonal columns too. For
# instance, the first step of Adam gives coordinates of equal absolute value.
_GAINS = (1.0, 5 / 3, 2**0.5, (2 / 1.0001) ** 0.5, 0.75, 3**0.5, 2.0)


# No generated `__eq__` and `__repr__`: torch compares modules by identity, and prints
# them with `extra_repr`. The generated `__init__` sets fields before it calls
# `__post_init__`, which calls `nn.Module.__init__`. Before that, a module cannot hold
# parameters, buffers or modules, so the fields for buffers have `init=False`.
@dataclass(eq=False, repr=False)
class AbstractConstraint(nn.Module, ABC, Generic[_Map]):
    """Computes a weight on a manifold from coordinates, and coordinates from a weight.

    The `state_dict` holds the name of the map, as bytes. Coordinates are valid only for
    the map they were trained with, so a checkpoint made with another map is refused.

    Args:
        manifold: the manifold of the weight.
        layout: how the weight is arranged as points of the manifold.
        retraction: the map from coordinates to points.
        dtype: dtype of the weight; coordinates and `buffer` are float32 or wider.
        init: how the weight is initialized, at first and in `reset_parameters`.
        buffer: the initial value of the buffer that `depends_on` names.

    Attributes:
        depends_on: name of the buffer on which the weight depends, in addition to the
            coordinates.
        is_upright: whether the weight is a point or a batch of points as it is, without
            being reshaped or transposed.
    """

    depends_on: ClassVar[str]

    manifold: AbstractManifold
    layout: Layout
    retraction: _Map
    dtype: torch.dtype
    init: Init
    buffer: InitVar[Tensor | None]
    map: Tensor = field(init=False)

    def __post_init__(self, buffer: Tensor | None) -> None:
        super().__init__()
        self.is_upright = self.layout == Layout(self.layout.shape)
        self.register_buffer("map", self._map_bytes())
        self.register_buffer(self.depends_on, buffer)

    @property
    def moves_automatically(self) -> bool:
        """Whether there is a base that moves automatically."""
        return False

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> Tensor:
        """Check the weight `W`, set the buffer to match, and return its coordinates."""
        check_is_tensor(W, name="value")
        return self.start(self.checked_points(W))

    @abstractmethod
    def start(self, Q: Tensor) -> Tensor:
        """Set the buffer to match the points `Q`, and return their coordinates.

        `Q` is not checked.
        """

    @abstractmethod
    def repair(self) -> None:
        """Correct the buffer in place if a write or a cast has made it invalid."""

    def repair_checkpoint(self, state: dict[str, Tensor], prefix: str) -> str | None:
        """Check the constraint's buffer in a checkpoint, and correct it in place.

        For example, a base that was saved in half precision is off its manifold. This
        default implementation does nothing.

        Args:
            state: the checkpoint of a model.
            prefix: the prefix of this constraint's keys in the checkpoint.

        Returns:
            An error message if the checkpoint cannot be loaded, otherwise None.
        """
        del state, prefix
        return None

    def is_filled(self, X: Tensor) -> bool:
        """Whether `X` looks filled by `nn.init.orthogonal_` or `eye_`, and is not skew.

        A loop such as `for name, p in rnn.named_parameters(): if "weight_hh" in name:
        nn.init.orthogonal_(p)` overwrites the coordinates of a constrained weight,
        because their name contains the name of the weight. The user wants the weight to
        be that orthogonal matrix, but its entries would be used as coordinates, which
        give another weight.

        Returns:
            True if `X`, as a matrix, has orthonormal rows or columns times one of
            `_GAINS`, unless the points of `X` are skew, or the matrix has a single row
            or column.
        """
        # the matrix that `nn.init.orthogonal_` would make orthogonal
        M = X.flatten(1) if X.ndim > 1 else X[None]
        M = M.mH if M.shape[0] < M.shape[1] else M
        n, k = M.shape
        # Test the norms of the first two columns before the defect, because this is
        # fast. If `nn.init.orthogonal_` wrote X, both are equal to one of the gains;
        # otherwise this is very unlikely. A single column may have such a norm by
        # chance, and proves nothing.
        if k < 2:
            return False
        squares = torch.linalg.vector_norm(M[:, :2], dim=0).square().tolist()
        gains = [g for g in _GAINS if all(abs(s / g**2 - 1) < 1e-3 for s in squares)]
        if not gains:
            return False
        # coordinates that are skew are valid, even if they are orthogonal
        points = self.layout.points(X)
        if points.shape[-2] == points.shape[-1] and torch.equal(points, -points.mH):
            return False
        defect = min(float(unitarity_defect(M / gain)) for gain in gains)
        return defect <= 10 * k * n**0.5 * torch.finfo(M.dtype).eps

    def refuse_filled(self, X: Tensor) -> None:
        """Raise if coordinates were initialized as if they were the weight.

        `X` must not be a fake or sharded tensor, whose values cannot be read here. Meta
        tensors are accepted.

        Raises:
            ValueError: if the coordinates look like a matrix that `nn.init` has filled.
        """
        if not X.is_meta and self.is_filled(X.detach()):
            sizes = ", ".join(map(str, X.shape))
            raise ValueError(
                f"the coordinates of a weight on {self.manifold} must not be "
                f"initialized as if they were the weight; got an orthogonal matrix, as "
                f"from `nn.init.orthogonal_`. Assign to the weight itself, as in "
                f"`module.weight = nn.init.orthogonal_(torch.empty({sizes}))`, and "
                f"leave parameters with 'parametrizations' in their name alone."
            )

    def checked_points(self, W: Tensor) -> Tensor:
        """The points of the weight `W`, checked, in float32 or wider, and polished.

        Polishing removes rounding errors.

        Raises:
            ValueError: if `W` does not have the shape and dtype of the weight, or is
                not on the manifold.
        """
        like = torch.empty(self.layout.shape, dtype=self.dtype, device=W.device)
        check_same_shape(like, W, names=("weight", "value"))
        Q = self.layout.points(in_float32_or_wider(W))
        if W.is_meta:
            return Q
        bound = rounding_bound(self.manifold, W.dtype)
        if self.manifold.worst_defect(Q) > bound:
            raise self.manifold.refusal(
                Q, bound, W.dtype, name="value", projection=self._projection()
            )
        if W.dtype in HALF:
            Q = self.manifold.nearest(Q)
        return self.manifold.polish(Q)

    def _projection(self) -> str:
        """Code that projects a value onto the manifold, for an error message."""
        layout = self.layout
        points = "value.flatten(1)" if layout.flatten else "value"
        back = ".reshape_as(value)" if layout.flatten or layout.blocks > 1 else ""
        if layout.blocks > 1:
            points += f".unflatten(-2, ({layout.blocks}, -1))"
        if layout.transpose:
            points += ".mT"
            back = f".mT{back}"
        return f"{self.manifold}.nearest({points}){back}"

    def _map_bytes(self, device: torch.device | None = None) -> Tensor:
        """The name of the map as bytes, since a `state_dict` holds only tensors."""
        name = list(self.retraction.name.encode())
        return torch.tensor(name, dtype=torch.uint8, device=device)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        self.repair()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Averaging models averages the buffer `map` too, and the mean of two names is
        # not a name. So save new bytes instead of the buffer.
        destination[f"{prefix}map"] = self._map_bytes(self.map.device)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        errors: list[str] = args[-1]
        saved_bytes = state_dict.get(f"{prefix}map")
        if saved_bytes is not None:
            name = self.retraction.name
            if not saved_bytes.is_meta and (got := _decoded(saved_bytes)) != name:
                errors.append(
                    f"`{prefix}map` must be {name!r}, the map of the constraint; got "
                    f"{got!r}. Load into a model constrained with that map, then "
                    f"assign its weight to this one."
                )
            # Replace the saved name with our own, so that torch does not also report
            # different lengths. Make new bytes: the buffer `map` may be on the meta
            # device, and with `assign=True` it would stay there.
            state_dict[f"{prefix}map"] = self._map_bytes(saved_bytes.device)
        problem = self.repair_checkpoint(state_dict, prefix)
        if problem is not None:
            errors.append(problem)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The manifold, the map and, if there are several blocks, their number."""
        blocks = f", blocks={self.layout.blocks}" if self.layout.blocks > 1 else ""
        return f"{self.manifold!r}, {self.retraction.name}{blocks}"


def _decoded(saved_bytes: Tensor) -> str:
    """The name of a map, from the bytes in a checkpoint.

    If they cannot be decoded, the result is a text that shows their numbers.
    """
    # `int`, because casting a whole checkpoint turns bytes into floating-point numbers
    try:
        return bytes(map(int, saved_bytes.tolist())).decode()
    except (ValueError, OverflowError):
        return str(saved_bytes.tolist())


def rounding_bound(manifold: AbstractManifold, dtype: torch.dtype) -> float:
    """Largest defect accepted for a point whose entries were rounded to `dtype`."""
    if dtype not in HALF:
        return manifold.tolerance(dtype)
    # If rounding changes Q by dQ, then Q^H Q changes by at most 2 |Q|_2 |dQ|_F to first
    # order. With k orthonormal columns, |Q|_2 = 1 and |Q|_F = sqrt(k), so |dQ|_F is at
    # most (eps / 2) sqrt(k). The factor 1.1 covers the second-order term.
    return 1.1 * torch.finfo(dtype).eps * max(manifold.shape[-1], 1) ** 0.5
