"""The interface of all manifolds: the geometry that weights and optimizers use.

Points and tangent vectors are tensors `(*batch, *shape)`. A manifold stores no tensors.
"""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from isometry._checks import check_batch, no_torus
from isometry._orthonormal import newton_schulz, unitarity_defect
from isometry.groups._frames import AbstractFrame, AmbientFrame
from isometry.groups._maps import AbstractMap, AbstractRetraction, Exp, RetractionLike
from isometry.groups._maps.factors import q_factor
from isometry.groups._mean import mean
from isometry.groups._point_set import AbstractPointSet
from isometry.groups._precision import leaves_autocast_on
from isometry.linalg import polar

EXP = Exp()

#: the base point of coordinates; None stands for the origin
Base = Tensor | None


class AbstractManifold(AbstractPointSet):
    r"""A compact manifold of matrices or vectors, with its metric.

    In the methods, `Q` and `P` are points, `E` and `F` are tangent vectors at `Q`, and
    `G` is the Euclidean gradient $\partial f / \partial \operatorname{Re} Q + i\,
    \partial f / \partial \operatorname{Im} Q$ that autograd returns. Each of them may
    have any number of batch axes before the axes of `shape`. Subclasses are frozen
    dataclasses: hashable, equal if class and fields are equal, and with a `repr` that
    names the set.

    This class has the geometry. What is accepted as a point, and which maps can be
    used, follows from `is_complex`, `shape`, `defect` and `maps`, which the base class
    `AbstractPointSet` declares.
    """

    #: whether any two points are joined by a geodesic
    is_connected: bool = True

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of real degrees of freedom."""

    @property
    def is_unrestricted(self) -> bool:
        """Whether orthonormal columns are the only local condition; by default False.

        If True, every matrix with orthonormal columns that is near a point is a point.
        """
        return False

    @abstractmethod
    def project(self, Q: Tensor, X: Tensor) -> Tensor:
        """Orthogonal projection of any `X` onto the tangent space at `Q`."""

    @abstractmethod
    def inner(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """Inner product of `E` and `F` at `Q`: one real number for each point."""

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """Riemannian gradient: the tangent vector that represents `G` in the metric.

        By default it is the projection of `G`. This is correct if `inner` is the inner
        product of the ambient space.
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
        """Largest angle by which the coordinates `X` rotate `B`.

        A subclass may return an estimate, as groups do.
        """
        B = self._base(B, like=X)
        return math.pi - self.border_distance(B, self.project(B, X))

    def angles(self, X: Tensor) -> Tensor | None:
        """Angles of the skew matrix with coordinates `X`; None except in a group."""
        del X

    # `AbstractFullPrecision` need not wrap `point`: layers call it with autocast off
    # already, and the methods of this package's manifolds that multiply switch it off
    # themselves.
    @leaves_autocast_on
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

    @leaves_autocast_on
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
        is_apart = square > self.tolerance(E.dtype) ** 2
        # the root has an infinite derivative at 0, and 0 times infinity is NaN
        length = torch.where(is_apart, square, 1).sqrt()
        return torch.where(is_apart, length, square.detach().sqrt())

    def geodesic(self, Q: Tensor, P: Tensor, t: Tensor | float) -> Tensor:
        """Point at time `t` on the geodesic from `Q` (at time 0) to `P` (at time 1).

        The geodesic is the one that `log` finds.

        Args:
            Q: points.
            P: points.
            t: a number, or one number for each pair of points; it may be below 0 or
                above 1.
        """
        E = self.log(Q, P)
        if isinstance(t, Tensor):
            t = t.reshape(*t.shape, *[1] * len(self.shape))
        return self.exp(Q, t * E)

    def mean(self, Q: Tensor, *, weights: Tensor | None = None) -> Tensor:
        r"""Riemannian mean: the point $M$ that minimizes $\sum_i w_i\, d(M, Q_i)^2$.

        If no weight is negative, the mean is unique for points in a small ball. On
        SO(3), the ball is small enough if rotations by less than $\pi / 2$ lead from
        its center to all points. Autograd differentiates through all iterations.

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


class AbstractUnrestricted(AbstractManifold):
    """A manifold of all matrices of one shape with orthonormal columns.

    SO, which also needs a positive determinant, overrides the methods that depend on
    the determinant.
    """

    maps = (AbstractMap,)

    @property
    def is_unrestricted(self) -> bool:
        """True: the columns need only be orthonormal."""
        return True

    def nearest(self, X: Tensor) -> Tensor:
        """The polar factor of `X`.

        If `X` is square, real and invertible, the determinants of `X` and of the result
        have the same sign.
        """
        return polar(X)

    def polish(self, Q: Tensor) -> Tensor:
        """One Newton-Schulz step, which removes the rounding error."""
        return newton_schulz(Q)

    def defect(self, Q: Tensor) -> Tensor:
        r"""$\lVert Q^H Q - I \rVert_F$."""
        return unitarity_defect(Q)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Uniformly distributed points: Q factors of Gaussian matrices."""
        return q_factor(self.gaussian(*batch, **options))
