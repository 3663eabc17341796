"""The interface of all manifolds: the geometry that weights and optimizers use.

Points and tangent vectors are tensors `(*batch, *shape)`. A manifold stores no tensors.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isometry._checks import check_batch, check_is_tensor, no_torus
from isometry._orthonormal import unitary_bound
from isometry._torch import is_fake
from isometry.groups._frames import AbstractFrame, AmbientFrame
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
from isometry.groups._mean import mean
from isometry.groups._precision import AbstractFullPrecision

EXP = Exp()

#: the base point of coordinates; None stands for the origin
Base = Tensor | None


class AbstractManifold(AbstractFullPrecision, ABC):
    r"""A compact manifold of matrices or vectors, with its metric.

    `Q` and `P` are points, `E` and `F` are tangent vectors at `Q`, and `G` is the
    Euclidean gradient $\partial f / \partial \operatorname{Re} Q + i\, \partial f /
    \partial \operatorname{Im} Q$ that autograd returns. All have any number of batch
    axes before `shape`. Subclasses are frozen dataclasses: hashable, equal if class and
    fields are equal, and with a `repr` that names the set.
    """

    #: whether points have a complex dtype
    is_complex: bool
    #: classes of the maps that can be used with this manifold
    maps: tuple[type[AbstractMap], ...] = (Exp,)
    #: whether any two points are joined by a geodesic
    is_connected: bool = True
    #: whether orthonormal columns are the only local condition: near a point, every
    #: matrix with orthonormal columns is a point
    is_unrestricted: bool = False

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one point."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of real degrees of freedom."""

    @abstractmethod
    def project(self, Q: Tensor, X: Tensor) -> Tensor:
        """Orthogonal projection of any `X` onto the tangent space at `Q`."""

    @abstractmethod
    def inner(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """Inner product of `E` and `F` at `Q`: one real number for each point."""

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """Riemannian gradient: the tangent vector that represents `G` in the metric.

        By default it is the projection of `G`, which is correct in the metric of the
        ambient space.
        """
        return self.project(Q, G)

    @abstractmethod
    def retract(self, Q: Tensor, E: Tensor, retraction: RetractionLike = EXP) -> Tensor:
        """The point reached from `Q` along `E` by a retraction (a map or its name)."""

    @abstractmethod
    def log(self, Q: Tensor, P: Tensor) -> Tensor:
        """Tangent vector at `Q` whose geodesic ends at `P`; the inverse of `exp`."""

    def transport(self, Q: Tensor, P: Tensor, E: Tensor) -> Tensor:
        """The vector `E` transported from `Q` to `P`; by default `project(P, E)`."""
        del Q
        return self.project(P, E)

    @abstractmethod
    def curvature(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """Sectional curvature of the plane that `E` and `F` span at `Q`."""

    def _area(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """Squared area of the parallelogram that `E` and `F` span."""
        ee, ff, ef = (self.inner(Q, *pair) for pair in ((E, E), (F, F), (E, F)))
        return ee * ff - ef * ef

    @abstractmethod
    def border_distance(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""Distance of `E` from the border of the domain where angles are below $\pi$.

        This is $\pi$ minus the largest angle of the skew matrix that moves `Q` along
        `E`. It is negative outside the domain.
        """

    @property
    def rank(self) -> int | None:
        """Number of angles that `from_angles` takes; None if no torus is defined.

        In a group it is the dimension of a maximal torus, except that SU(n) takes one
        angle more, and subtracts the mean.
        """
        return None

    def from_angles(self, theta: Tensor) -> Tensor:
        """The origin, turned by the angles `theta` of a torus; by default, an error."""
        del theta
        raise no_torus(self)

    def largest_angle(self, X: Tensor, B: Base) -> Tensor:
        """Largest angle by which the coordinates `X` rotate `B`, or an estimate."""
        B = self._base(B, like=X)
        return math.pi - self.border_distance(B, self.project(B, X))

    def angles(self, X: Tensor) -> Tensor | None:
        """Angles of the skew matrix with coordinates `X`; None except in a group."""
        del X

    @abstractmethod
    def point(self, X: Tensor, B: Base, retraction: RetractionLike = EXP) -> Tensor:
        """The point with free coordinates `X` around the base `B`.

        The coordinates of `B` itself are zero. If `B` is None, the base is `origin`,
        which saves a product.
        """

    def coordinates(
        self, P: Tensor, B: Base, retraction: RetractionLike = EXP
    ) -> Tensor:
        """The free coordinates around `B` that `point` maps to `P`.

        By default this is the logarithm of `P` at `B`, so any map other than the
        exponential raises an error.
        """
        retraction = self.resolve(retraction)
        if not retraction.is_exponential:
            raise ValueError(
                f"`retraction` must be 'exp' to find coordinates on {self}; got "
                f"{retraction.name!r}. Choose the point itself as the base."
            )
        return self.log(self._base(B, like=P), P)

    def velocity(self, Q: Tensor, E: Tensor) -> Tensor:
        """Derivative of the coordinates around `Q` when a point leaves `Q` along `E`.

        By default it is `E` itself.
        """
        del Q
        return E

    @abstractmethod
    def nearest(self, X: Tensor) -> Tensor:
        """Point nearest to `X` in the Frobenius norm; in some groups, approximately."""

    def polish(self, Q: Tensor) -> Tensor:
        """`Q` with its rounding errors removed; by default, the nearest point."""
        return self.nearest(Q)

    @abstractmethod
    def defect(self, Q: Tensor) -> Tensor:
        """How far `Q` is from the manifold: zero, up to rounding, for its points."""

    def component(self, Q: Tensor) -> Tensor:
        """Real numbers `(*batch, m)` that label the connected component of each `Q`.

        Two points have the same label if and only if a path joins them. By default the
        label is one zero, as on any connected manifold.
        """
        return Q.real.new_zeros(*Q.shape[: Q.ndim - len(self.shape)], 1)

    @abstractmethod
    def random(self, *batch: int, **options: Any) -> Tensor:
        """Points from the uniform distribution, which all symmetries leave invariant.

        Args:
            *batch: sizes of the batch axes.
            **options: `generator`, `dtype` and `device`, as in `torch.randn`.
        """

    def gaussian(self, *batch: int, **options: Any) -> Tensor:
        """Standard normal arrays, shaped like points; options as in `random`."""
        check_batch(batch)
        options["dtype"] = self.resolve_dtype(options.get("dtype"))
        return torch.randn(*batch, *self.shape, **options)

    def origin(self, *batch: int, **options: Any) -> Tensor:
        """The identity matrix, or its first columns (a vector is one column)."""
        check_batch(batch)
        options["dtype"] = self.resolve_dtype(options.get("dtype"))
        columns = torch.eye(self.shape[0], math.prod(self.shape[1:]), **options)
        return columns.reshape(self.shape).repeat(*batch, *[1] * len(self.shape))

    def _base(self, B: Base, *, like: Tensor) -> Tensor:
        """`B`, or the origin if `B` is None, expanded to the shape of `like`."""
        B = self.origin(dtype=like.dtype, device=like.device) if B is None else B
        return B.expand_as(like)

    def exp(self, Q: Tensor, E: Tensor) -> Tensor:
        """Point reached from `Q` in unit time along the geodesic with velocity `E`."""
        self.check_tensors(Q=Q, E=E)
        return self.retract(Q, E, EXP)

    def step(self, Q: Tensor, E: Tensor, retraction: AbstractRetraction) -> Tensor:
        """Like `retract`, for optimizers: the result need not be differentiable."""
        return self.retract(Q, E, retraction)

    def frame(self) -> AbstractFrame:
        """The frame in which an optimizer represents tangent vectors as real arrays."""
        return AmbientFrame(self)

    def distance(self, Q: Tensor, P: Tensor) -> Tensor:
        """Length of the geodesic from `Q` to `P`.

        The gradient is 0 where `Q` and `P` are the same point up to `tolerance`,
        because there the direction from `Q` to `P` is only rounding error.
        """
        E = self.log(Q, P)
        square = self.inner(Q, E, E).clamp(min=0)
        apart = square > self.tolerance(E.dtype) ** 2
        # the root has an infinite derivative at 0, and 0 times infinity is NaN
        length = torch.where(apart, square, 1).sqrt()
        return torch.where(apart, length, square.detach().sqrt())

    def geodesic(self, Q: Tensor, P: Tensor, t: Tensor | float) -> Tensor:
        """Point at time `t` on the geodesic that `log` finds: `Q` at 0, `P` at 1.

        Args:
            Q: points.
            P: points.
            t: a number, or one number for each pair; it may be below 0 or above 1.
        """
        E = self.log(Q, P)
        if isinstance(t, Tensor):
            t = t.reshape(*t.shape, *[1] * len(self.shape))
        return self.exp(Q, t * E)

    def mean(self, Q: Tensor, *, weights: Tensor | None = None) -> Tensor:
        r"""Riemannian mean of points: it minimizes $\sum_i w_i\, d(M, Q_i)^2$.

        The mean is unique if the points lie in a small ball. On SO(3) it is unique if
        rotations by less than $\pi / 2$ lead from some center to all points. Autograd
        differentiates through all iterations.

        Args:
            Q: points. The mean is taken over the first axis; other batch axes stay.
            weights: one for each point, with a nonzero sum; None means equal weights.

        Returns:
            One point for each element of the other batch axes.

        Raises:
            TypeError: on the meta device and in FakeTensorMode.
            ValueError: if there are no points, or one is not on the manifold; if
                `weights` is not one finite number for each point, with a nonzero sum;
                or if the iteration does not converge.
        """
        return mean(self, Q, weights)

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
        """The error for points with a defect above `bound`. A subclass may say more.

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

    def resolve_coordinates(
        self, retraction: MapLike, *, name: str = "retraction"
    ) -> AbstractRetraction | Householder:
        """Like `resolve`, for any map that can parametrize a weight."""
        return self._map(retraction, name, _can_parametrize)

    def _map(self, value: object, name: str, is_able: Callable[..., bool]) -> Any:
        """The map, or the map of this name, if `maps` and `is_able` accept it."""
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
