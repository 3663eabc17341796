"""The points of a manifold as a set: what is accepted as a point, or as a map."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isometry._checks import check_is_tensor
from isometry._orthonormal import unitary_bound
from isometry._torch import is_fake
from isometry.groups._maps import (
    KNOWN,
    AbstractMap,
    AbstractRetraction,
    Exp,
    Householder,
    MapLike,
    RetractionLike,
    parse_map,
)
from isometry.groups._precision import AbstractFullPrecision, leaves_autocast_on


class AbstractPointSet(AbstractFullPrecision, ABC):
    """A set of matrices or vectors of one shape, and the maps that can be used with it.

    A subclass defines `is_complex`, `shape` and `defect`, and may define `maps`. These
    attributes determine which dtypes, tensors, points and maps are accepted.
    """

    #: whether points have a complex dtype
    is_complex: bool
    #: classes of the maps that can be used with this manifold
    maps: tuple[type[AbstractMap], ...] = (Exp,)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one point."""

    @abstractmethod
    def defect(self, Q: Tensor) -> Tensor:
        """How far `Q` is from the manifold: zero, up to rounding, for its points."""

    def tolerance(self, dtype: torch.dtype) -> float:
        r"""Largest allowed `defect`: $10\, n \max(4, \sqrt n)\, \varepsilon$.

        Here $n$ is the largest number in `shape`, but at least 1.
        """
        # The bound accepts the orthogonal matrices that torch computes. Points that we
        # compute have smaller defects, which tests/groups/test_membership.py measures.
        # The largest defects occur in U(1): 4 n eps for samples, 6 n eps for products
        # of two points, and 7.5 n eps for retractions. An exception is the adjoint
        # representation of SU(3): its defect, through a logarithm, is up to 15 n eps.
        return unitary_bound(max(1, *self.shape), dtype)

    def worst_defect(self, Q: Tensor) -> float:
        """The largest defect in a batch; infinite for NaN, zero for an empty batch."""
        if Q.numel() == 0:
            return 0.0
        defect = self.defect(Q)
        return float(torch.where(defect.isnan(), math.inf, defect).max())

    @leaves_autocast_on
    def resolve_dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        """`dtype`, checked; for None, torch's default dtype or its complex version."""
        if dtype is None:
            default = torch.get_default_dtype()
            return default.to_complex() if self.is_complex else default
        if not self._has_field(dtype):
            raise TypeError(
                f"`dtype` must be {self._field} for {self}; got {dtype}. "
                f"Use a {self._field} dtype, or another manifold."
            )
        return dtype

    def contains(self, Q: Tensor) -> Tensor:
        """Whether each `Q` is a point, up to the `tolerance` of its dtype."""
        self.check_tensor(Q, name="Q")
        return self.defect(Q) <= self.tolerance(Q.dtype)

    def check_tensor(self, Q: Tensor, *, name: str) -> None:
        """Raise unless `Q` has the shape and the field (real or complex) of points."""
        check_is_tensor(Q, name=name)
        if tuple(Q.shape[-len(self.shape) :]) != self.shape:
            want = ", ".join(map(str, self.shape))
            raise ValueError(
                f"`{name}` must have shape (*batch, {want}) for {self}; "
                f"got {tuple(Q.shape)}. Use a manifold that fits the tensor."
            )
        if not self._has_field(Q.dtype):
            raise TypeError(
                f"`{name}` must have a {self._field} dtype for {self}; got {Q.dtype}. "
                f"Convert it, or use another manifold."
            )

    def check_tensors(self, **tensors: Tensor) -> None:
        """Call `check_tensor` on each tensor, with its keyword as `name`."""
        for name, Q in tensors.items():
            self.check_tensor(Q, name=name)

    def check_point(self, Q: Tensor, *, name: str) -> None:
        """Raise the error that `refusal` returns, unless every `Q` is a point."""
        self.check_tensor(Q, name=name)
        # meta and fake tensors have no numbers that could be wrong
        defect = 0.0 if is_fake(Q) else self.worst_defect(Q)
        bound = self.tolerance(Q.dtype)
        if defect > bound:
            code = f"{self}.nearest({name})"
            raise self.refusal(Q, bound, Q.dtype, name=name, projection=code)

    def refusal(
        self, Q: Tensor, bound: float, dtype: torch.dtype, *, name: str, projection: str
    ) -> ValueError:
        """The error for points with a defect above `bound`.

        A subclass may override this method to report more.

        Args:
            Q: the batch, in `dtype` or wider.
            bound: the largest defect that counts as rounding in `dtype`.
            dtype: the dtype of the value that was passed.
            name: name of the value in the message.
            projection: code that projects the value, for the message.
        """
        return ValueError(
            f"`{name}` must be a point of {self}; got a defect of "
            f"{self.worst_defect(Q):.1e}, above {bound:.1e} for {dtype}. Project it "
            f"first, with `{projection}`."
        )

    @leaves_autocast_on
    def resolve(
        self, retraction: RetractionLike, *, name: str = "retraction"
    ) -> AbstractRetraction:
        """The retraction, looked up if it is a name, and checked.

        Args:
            retraction: a retraction, or its name.
            name: name of the argument in the error message.

        Raises:
            ValueError: if it is not a retraction, or not a map into this manifold.
        """
        return self._map(retraction, name, lambda m: isinstance(m, AbstractRetraction))

    @leaves_autocast_on
    def resolve_coordinates(
        self, retraction: MapLike, *, name: str = "retraction"
    ) -> AbstractRetraction | Householder:
        """Like `resolve`, for any map that can parametrize a weight."""
        return self._map(retraction, name, _can_parametrize)

    def _map(self, value: object, name: str, is_able: Callable[..., bool]) -> Any:
        """The map `value`, or the map with this name; an error unless it is accepted.

        Both `maps` and `is_able` must accept the map.
        """
        phi = parse_map(value, name=name)
        if isinstance(phi, self.maps) and is_able(phi):
            return phi
        ours = [k for k, m in KNOWN.items() if isinstance(m, self.maps) and is_able(m)]
        raise ValueError(
            f"`{name}` must be one of {', '.join(ours)} for {self}; got {value!r}."
        )

    def _has_field(self, dtype: torch.dtype) -> bool:
        return dtype.is_complex if self.is_complex else dtype.is_floating_point

    @property
    def _field(self) -> str:
        return "complex" if self.is_complex else "real floating-point"


def _can_parametrize(phi: AbstractMap) -> bool:
    """Whether a constraint can compute weights by this map."""
    return isinstance(phi, AbstractRetraction | Householder) and phi.can_parametrize
