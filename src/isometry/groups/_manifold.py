"""What every set of matrices here offers: the geometry that weights and optimizers use.

Points are tensors `(*batch, *shape)`; so are tangent vectors. Nothing is stored.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from isometry._checks import unitary_bound
from isometry.groups._frames import AbstractFrame, AmbientFrame
from isometry.groups._haar import check_batch
from isometry.groups._maps import (
    KNOWN,
    AbstractMap,
    AbstractRetraction,
    Exp,
    parse_map,
)

#: a map, or its name
Retraction = AbstractMap | str
EXP = Exp()

# of the mean: each squares the distance if the points are close, and halves it if not
_ITERATIONS = 100


class AbstractManifold(ABC):
    r"""A compact manifold of matrices or vectors, with its metric.

    `Q`, `P` are points, `E`, `F` tangent vectors at `Q`, `G` the Euclidean gradient
    $\partial f / \partial \operatorname{Re} Q + i\, \partial f / \partial
    \operatorname{Im} Q$ that autograd returns; all with any batch axes before `shape`.
    Subclasses are frozen dataclasses: equal if they denote the same set, hashable, and
    their `repr` says which.
    """

    #: whether points have a complex dtype
    is_complex: bool
    #: classes of the maps that end on this manifold
    maps: tuple[type[AbstractMap], ...] = (Exp,)
    #: whether a geodesic joins any two points
    is_connected: bool = True
    #: whether matrices with orthonormal columns are points already, or at least those
    #: close to a point are: nothing else is asked of them
    is_free: bool = False

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
        """Orthogonal projection of any `X` to the tangent space at `Q`."""

    @abstractmethod
    def inner(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """Metric at `Q`; one real number for each point of the batch."""

    @abstractmethod
    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """Riemannian gradient: the tangent vector that represents `G` in the metric."""

    @abstractmethod
    def retract(self, Q: Tensor, E: Tensor, retraction: Retraction = EXP) -> Tensor:
        """Point reached from `Q` along `E` by a retraction, or by that of a name."""

    @abstractmethod
    def log(self, Q: Tensor, P: Tensor) -> Tensor:
        """Tangent vector at `Q` whose geodesic ends at `P`; the inverse of `exp`."""

    @abstractmethod
    def transport(self, Q: Tensor, P: Tensor, E: Tensor) -> Tensor:
        """Tangent vector at `P` that corresponds to `E` at `Q`: a vector transport."""

    @abstractmethod
    def curvature(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """Sectional curvature of the plane that `E` and `F` span at `Q`."""

    @abstractmethod
    def border_distance(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""How far `E` is inside the domain $|\operatorname{Im} \lambda| < \pi$.

        $\pi$ minus the largest angle of the skew matrix that moves `Q` along `E`;
        negative outside of the domain.
        """

    @property
    def rank(self) -> int:
        """Dimension of a maximal torus: how many angles `from_angles` takes."""
        raise ValueError(
            f"`rank` must be the dimension of a maximal torus; {self} has no `rank`. "
            f"Add it to the class, with `from_angles` or, in a group, `torus`."
        )

    def from_angles(self, theta: Tensor) -> Tensor:
        """Point that planes, turned by the angles `theta`, make of the origin."""
        del theta
        raise ValueError(
            f"`theta` must be the angles of a maximal torus; {self} has none. Use "
            f"`random` or `origin`."
        )

    def largest_angle(self, X: Tensor, B: Tensor | None) -> Tensor:
        """Largest angle by which the coordinates `X` turn `B`, or a little more."""
        base = self.origin(dtype=X.dtype, device=X.device) if B is None else B
        base = base.expand_as(X)
        return math.pi - self.border_distance(base, self.project(base, X))

    def angles(self, X: Tensor) -> Tensor | None:
        """Angles of the skew matrix with coordinates `X`; None off the groups."""
        del X

    @abstractmethod
    def point(
        self, X: Tensor, B: Tensor | None, retraction: Retraction = EXP
    ) -> Tensor:
        """Point with free coordinates `X` around the base `B`; 0 are those of `B`.

        None stands for `origin`, and saves a product.
        """

    @abstractmethod
    def coordinates(
        self, P: Tensor, B: Tensor | None, retraction: Retraction = EXP
    ) -> Tensor:
        """Free coordinates of `P` around `B`: `point` maps them to `P`."""

    @abstractmethod
    def velocity(self, Q: Tensor, E: Tensor) -> Tensor:
        """Coordinates around `Q` in which `E` is the velocity at 0."""

    @abstractmethod
    def nearest(self, X: Tensor) -> Tensor:
        """Point closest to `X` in the Frobenius norm."""

    @abstractmethod
    def polish(self, Q: Tensor) -> Tensor:
        """Point that `Q` is up to rounding; cheaper than `nearest`."""

    @abstractmethod
    def defect(self, Q: Tensor) -> Tensor:
        """How far `Q` is from the manifold: zero, up to rounding, for its points."""

    @abstractmethod
    def random(
        self,
        *batch: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Points distributed uniformly: by the measure that the symmetries preserve."""

    @abstractmethod
    def origin(self, *batch: int, **options: Any) -> Tensor:
        """The point with ones on its diagonal (or first): the identity of a group."""

    def exp(self, Q: Tensor, E: Tensor) -> Tensor:
        """Point reached from `Q` after unit time along the geodesic of velocity `E`."""
        return self.retract(Q, E, EXP)

    def step(self, Q: Tensor, E: Tensor, retraction: AbstractRetraction) -> Tensor:
        """The point that `retract` reaches, for an optimizer: without a gradient."""
        return self.retract(Q, E, retraction)

    def frame(self) -> AbstractFrame:
        """How an optimizer sees tangent vectors here, as arrays of real numbers."""
        return AmbientFrame(self)

    def distance(self, Q: Tensor, P: Tensor) -> Tensor:
        """Length of the geodesic from `Q` to `P`.

        The gradient is 0 where they are the same point up to their `tolerance`: what is
        left of the direction is rounding.
        """
        E = self.log(Q, P)
        square = self.inner(Q, E, E).clamp(min=0)
        apart = square > self.tolerance(E.dtype) ** 2
        # the other roots have an infinite derivative, and 0 times that is NaN
        length = torch.where(apart, square, 1).sqrt()
        return torch.where(apart, length, square.detach().sqrt())

    def geodesic(self, Q: Tensor, P: Tensor, t: Tensor | float) -> Tensor:
        """Point at time `t` of the shortest geodesic from `Q` at 0 to `P` at 1.

        Args:
            Q: points.
            P: points.
            t: a number, or one for each pair; it may lie outside of 0 to 1.

        Returns:
            Points.
        """
        E = self.log(Q, P)
        if isinstance(t, Tensor):
            t = t.reshape(*t.shape, *[1] * len(self.shape))
        return self.exp(Q, t * E)

    def mean(self, Q: Tensor, *, weights: Tensor | None = None) -> Tensor:
        r"""Riemannian mean of points: the minimum of $\sum_i w_i\, d(M, Q_i)^2$.

        It is unique if the points lie in a small enough ball: one of radius $\pi / 2$
        in angles on SO(3). The gradient goes through all iterations.

        Args:
            Q: points; the first axis counts them, other batch axes stay.
            weights: one for each point, of any sum; equal ones by default.

        Returns:
            One point for each element of the other batch axes.

        Raises:
            ValueError: if there are no points, or the iteration does not come to rest.
        """
        self.check_tensor(Q, name="Q")
        if Q.ndim == len(self.shape) or len(Q) == 0:
            raise ValueError(
                f"`Q` must have a first axis that counts the points; got "
                f"{tuple(Q.shape)}."
            )
        if weights is None:
            weights = torch.ones(len(Q), dtype=Q.dtype, device=Q.device)
        w = (weights / weights.sum()).reshape(-1, *[1] * (Q.ndim - 1)).to(Q.dtype)
        M, step = self.nearest((w * Q).sum(0)), Q.new_zeros(())
        for _ in range(_ITERATIONS):
            E = (w * self.log(M.expand_as(Q), Q)).sum(0)
            M = self.polish(self.exp(M, E))
            step = E.detach().abs().max() if E.numel() else step
            # written so that NaN ends the loop
            if not bool(step > self.tolerance(Q.dtype)):
                return M
        raise ValueError(
            f"`Q` must be points near each other; got points whose mean moved by "
            f"{float(step):.1e} after {_ITERATIONS} iterations."
        )

    def tolerance(self, dtype: torch.dtype) -> float:
        r"""Largest `defect` of a point: $10\, n \max(4, \sqrt n)\, \varepsilon$."""
        # what torch computes is accepted; what is computed here leaves less, by
        # tests/groups/test_membership.py: samples up to 4 n eps, products of two 6, a
        # retraction 7.5 (all in U(1)), and 15 in the octet, where the group only has an
        # algebra and finds the defect by a logarithm
        return unitary_bound(max(1, *self.shape), dtype)

    def dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        """The dtype itself, if of the right field, or torch's default of the field."""
        if dtype is None:
            default = torch.get_default_dtype()
            return default.to_complex() if self.is_complex else default
        if dtype.is_complex != self.is_complex or not (
            dtype.is_complex or dtype.is_floating_point
        ):
            raise TypeError(
                f"`dtype` must be {self._field} for {self}; got {dtype}. "
                f"Take the manifold of that field."
            )
        return dtype

    def contains(self, Q: Tensor) -> Tensor:
        """Whether each `Q` is a point, up to the `tolerance` of its dtype."""
        self.check_tensor(Q, name="Q")
        return self.defect(Q) <= self.tolerance(Q.dtype)

    def check_tensor(self, Q: Tensor, *, name: str) -> None:
        """Raise unless `Q` has the shape and the field of points."""
        if not isinstance(Q, Tensor):
            raise TypeError(
                f"`{name}` must be a torch.Tensor; got {type(Q).__name__}. "
                f"Convert it with `torch.as_tensor`."
            )
        ndim = len(self.shape)
        if Q.ndim < ndim or tuple(Q.shape[Q.ndim - ndim :]) != self.shape:
            want = ", ".join(map(str, self.shape))
            raise ValueError(
                f"`{name}` must have shape (*batch, {want}) for {self}; "
                f"got {tuple(Q.shape)}. Take the manifold of the size of the tensor."
            )
        if Q.is_complex() != self.is_complex or not (
            Q.is_complex() or Q.is_floating_point()
        ):
            raise TypeError(
                f"`{name}` must have a {self._field} dtype for {self}; got {Q.dtype}. "
                f"Convert it, or take the manifold of its field."
            )

    def check(self, Q: Tensor, *, name: str) -> None:
        """Raise unless every `Q` is a point, with the defect found and its bound."""
        self.check_tensor(Q, name=name)
        if Q.numel() == 0:
            return
        defect = self.defect(Q)
        bound = self.tolerance(Q.dtype)
        # written so that NaN fails
        if not bool((defect <= bound).all()):
            worst = float(torch.where(defect.isnan(), math.inf, defect).max())
            raise ValueError(
                f"`{name}` must be a point of {self}; got a defect of {worst:.1e}, "
                f"above {bound:.1e} for {Q.dtype}. Project it first, with "
                f"`{self}.nearest({name})`."
            )

    def resolve(
        self, retraction: Retraction, *, name: str = "retraction"
    ) -> AbstractRetraction:
        """The retraction of this name, or the one that was passed, if it ends here.

        Args:
            retraction: a map, or its name.
            name: what to call the argument in the message.

        Returns:
            The map.

        Raises:
            ValueError: if it is none, or does not end on this manifold.
        """
        is_map = isinstance(retraction, AbstractMap)
        found = retraction if is_map else parse_map(retraction, name=name)
        if isinstance(found, AbstractRetraction) and isinstance(found, self.maps):
            return found
        raise self._no_map(retraction, name, [m for m in KNOWN if KNOWN[m].steps])

    def resolve_coordinates(
        self, retraction: Retraction, *, name: str = "retraction"
    ) -> AbstractMap:
        """The map of this name, or the one passed, if coordinates can belong to it."""
        found = parse_map(retraction, name=name)
        if found is not None and found.parametrizes and isinstance(found, self.maps):
            return found
        raise self._no_map(
            retraction, name, [m for m in KNOWN if KNOWN[m].parametrizes]
        )

    def _no_map(self, value: object, name: str, known: list[str]) -> ValueError:
        ours = [key for key in known if isinstance(KNOWN[key], self.maps)]
        return ValueError(
            f"`{name}` must be one of {', '.join(ours)} for {self}; got {value!r}. "
            f"'exp' is on every manifold."
        )

    def check_exponential(self, retraction: AbstractRetraction) -> None:
        """Raise unless coordinates are found by the logarithm."""
        if not retraction.is_exponential:
            raise ValueError(
                f"`retraction` must be 'exp' to find coordinates on {self}; got "
                f"{retraction.name!r}. Let the base be the point itself."
            )

    @property
    def _field(self) -> str:
        return "complex" if self.is_complex else "real floating-point"


def check_size(n: int, *, least: int = 0) -> None:
    """Raise unless `n` can be the size of a matrix or vector."""
    if not isinstance(n, int) or n < least:
        raise ValueError(
            f"`n` must be an integer, at least {least}; got {n!r}. "
            f"It is the size of one point, without batch axes."
        )


def repeated(point: Tensor, batch: tuple[int, ...]) -> Tensor:
    """A batch of copies of one point."""
    check_batch(batch)
    return point.repeat(*batch, *[1] * point.ndim)
