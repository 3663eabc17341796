"""Compact matrix Lie groups, with default methods derived from the Lie algebra."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry._checks import check_angles, check_joined, check_size, no_torus
from isometry._nan import is_finite
from isometry._orthonormal import newton_schulz, unitarity_defect
from isometry._torch import autocast_off, constant_in_graphs
from isometry.groups._ambient import arrays, fixed_gaussian, flat
from isometry.groups._derived import basis, derived_log
from isometry.groups._frames import BodyFrame
from isometry.groups._manifold import (
    EXP,
    AbstractManifold,
    AbstractUnrestricted,
    Base,
)
from isometry.groups._maps import AbstractRetraction, RetractionLike
from isometry.groups._nearest import determinant, nearest_rotation
from isometry.linalg import expm_skew, logm_unitary, skew
from isometry.linalg._norms import krylov_norm, spectral_norm
from isometry.linalg._skew import lower_triangle

# Number of factors in the random walk of `random`. Let rho be a nontrivial irreducible
# representation. The norm of the mean of rho(Q) measures the error of the samples Q,
# because the mean is zero for the Haar measure. If Q is one factor of the walk, the
# norm is about the fraction of the weights of rho that are zero, which is at most 1/3
# in SO(3). The means of independent factors multiply, so for the end of the walk in
# SO(3) the norm is at most 3^-16 = 2e-8.
_WALK = 16


class AbstractGroup(AbstractManifold):
    r"""A compact group of orthogonal or unitary `n` x `n` matrices.

    The metric is $\langle X, Y \rangle = \operatorname{Re} \operatorname{tr}(X^H Y)$,
    which is bi-invariant. A subclass defines its size, whether it is complex, and how
    free coordinates become an element of its Lie algebra (`algebra`, which must be
    linear and onto). All other methods have defaults that follow from the algebra,
    except that `rank` is None and `torus` raises an error. The groups of this package
    replace some defaults with closed forms, and `isometry.testing.check_manifold`
    compares most of the closed forms with the defaults. A group that is not connected
    sets `is_connected = False`, because its algebra describes only the identity
    component. If the sign of the determinant does not tell the connected components of
    a group apart, the group also overrides `component`.

    The tangent vectors at $Q$ are the matrices $E = QA$ with $A$ in the algebra.

    References:
        [LM19] section 3 and appendix A.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of rows, and also of columns, of the matrices."""

    @abstractmethod
    def algebra(self, X: Tensor) -> Tensor:
        """Skew matrix of the Lie algebra with free coordinates `X`.

        Both `X` and the result have the shape `(*batch, n, n)`, with any number of
        batch axes.
        """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one point."""
        return (self.size, self.size)

    @property
    def dimension(self) -> int:
        """Dimension of the group: the rank of the linear map `algebra`."""
        return len(self._basis()[0])

    # `constant_in_graphs` marks this method and not the function `basis`: Dynamo in
    # torch 2.7 accepts a group as `self` of a marked method, but not as an argument of
    # a marked function
    @constant_in_graphs
    def _basis(self) -> tuple[Tensor, Tensor]:
        return basis(self)

    def _expand(self, X: Tensor, images: Tensor) -> Tensor:
        """The value of a linear map at the projection of `X` onto the Lie algebra.

        Each row of `images` is the value of the map at one element of the orthonormal
        basis of the algebra, flattened by `flat`.
        """
        components = flat(X, self) @ self._basis()[0].mT.to(X.real)
        return arrays(components @ images.to(components), self)

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """The coordinates `X` of smallest norm with `algebra(X) = A`."""
        return self._expand(A, self._basis()[1])

    def algebra_projection(self, X: Tensor) -> Tensor:
        """Element of the Lie algebra closest to `X`, which may be any matrix."""
        return self._expand(X, self._basis()[0])

    def algebra_log(self, Q: Tensor) -> Tensor:
        """Element of the Lie algebra whose exponential is `Q`.

        If the principal logarithm is in the Lie algebra, it is returned. Otherwise
        Newton's method finds a logarithm in the algebra, not always the shortest one.
        The numbers in `Q` decide what is computed, so the method fails on the meta
        device and in `torch.vmap`. A group with a closed form should override this
        method.
        """
        return derived_log(self, Q)

    def torus(self, theta: Tensor) -> Tensor:
        """Element of the Lie algebra of a maximal torus, with the angles `theta`.

        By default this raises an error, because the torus does not follow from
        `algebra`.
        """
        del theta
        raise no_torus(self)

    def from_angles(self, theta: Tensor) -> Tensor:
        """Point of a maximal torus: the exponential of `torus(theta)`."""
        check_angles(theta, self.rank)
        return expm_skew(self.torus(theta))

    def project(self, Q: Tensor, X: Tensor) -> Tensor:
        r"""$Q\,P(Q^H X)$, with $P$ the projection onto the Lie algebra."""
        return Q @ self.algebra_projection(Q.mH @ X)

    def inner(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        r"""$\operatorname{Re} \operatorname{tr}(E^H F)$, the same at every `Q`."""
        del Q
        return (E.conj() * F).real.sum((-2, -1))

    def retract(self, Q: Tensor, E: Tensor, retraction: RetractionLike = EXP) -> Tensor:
        r"""$Q\,\phi(Q^H E)$, with $\phi$ the retraction at the identity."""
        # Q^H E is in the Lie algebra only up to rounding, so project it
        A = self.algebra_projection(Q.mH @ E)
        return Q @ self.algebra_retraction(A, self.resolve(retraction))

    def algebra_retraction(self, A: Tensor, retraction: AbstractRetraction) -> Tensor:
        """The retraction at the identity, from the Lie algebra to the group."""
        return retraction.at_identity(A)

    def frame(self) -> BodyFrame:
        """The frame of the Lie algebra, which is the same at every point."""
        return BodyFrame(self)

    def log(self, Q: Tensor, P: Tensor) -> Tensor:
        r"""$Q \log(Q^H P)$, with the logarithm that `algebra_log` computes.

        In SO(n) and U(n) this vector is the velocity of a shortest geodesic from `Q` to
        `P`, which is the only shortest one if no angle of $Q^H P$ is $\pi$. Points in
        different connected components have no logarithm.
        """
        self.check_tensors(Q=Q, P=P)
        try:
            # the Newton-Schulz step removes the rounding error of the product
            return Q @ self.algebra_log(newton_schulz(Q.mH @ P))
        except ValueError as error:
            about_product = error
        # The error is about the product Q^H P. If no geodesic joins `Q` and `P`, or if
        # one of them is not in the group, raise an error about the arguments instead.
        remedy = "Negate a column of `P` for each determinant of the wrong sign."
        check_joined(self.component(Q), self.component(P), remedy=remedy)
        self.check_point(Q, name="Q")
        self.check_point(P, name="P")
        raise about_product

    def transport(self, Q: Tensor, P: Tensor, E: Tensor) -> Tensor:
        r"""$P Q^H E$: left translation, an isometry."""
        return P @ (Q.mH @ E)

    def connection(self, X: Tensor, Y: Tensor) -> Tensor:
        r"""$\nabla_X Y = \frac12 [X, Y]$ for left-invariant fields, at the identity.

        Args:
            X: value of the first field at the identity, in the Lie algebra.
            Y: value of the second field.

        Returns:
            The Levi-Civita derivative, in the Lie algebra.
        """
        return (X @ Y - Y @ X) / 2

    def curvature(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        r"""Sectional curvature of the plane through $E = QX$ and $F = QY$.

        It is $\frac14 \lVert [X, Y] \rVert^2$ if $E$ and $F$ are orthonormal.
        """
        X, Y = Q.mH @ E, Q.mH @ F
        bracket = 2 * self.connection(X, Y)
        return self.inner(Q, bracket, bracket) / (4 * self._area(Q, X, Y))

    def border_distance(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""$\pi$ minus the largest angle of the skew matrix $Q^H E$."""
        return math.pi - spectral_norm(Q.mH @ E)

    def largest_angle(self, X: Tensor, B: Base) -> Tensor:
        """Estimate of the largest angle of the skew matrix with coordinates `X`.

        The estimate is at most 10 percent too large. For Gaussian coordinates it was
        never too small, in tests with 400 seeds and sizes up to 1024. It does not
        depend on `B`. Cost: about 20 matrix-vector products.
        """
        del B
        A = self.algebra(X)
        # start from a fixed vector, so that the estimate depends only on the
        # coordinates
        v = fixed_gaussian(A.shape[-1], 1, dtype=A.dtype, seed=0).to(A.device)
        # `krylov_norm` is a lower bound. For Gaussian matrices it was up to 8.4 percent
        # below the norm. The worst case, over 400 seeds and sizes up to 1024, was a
        # real matrix with n = 100.
        return 1.1 * krylov_norm(A, v)

    def angles(self, X: Tensor) -> Tensor:
        r"""Ascending angles $\theta$ of the skew matrix $A$ with the coordinates `X`.

        These are the $\theta$ in $A = V \operatorname{diag}(i \theta) V^H$, computed in
        double precision. If $A$ is not finite, the angles are NaN.
        """
        A = self.algebra(X)
        A = A.to(torch.promote_types(A.dtype, torch.float64))
        finite = is_finite(A)
        # LAPACK must not be given NaN: MKL's eigenvalue solver would end the process
        theta = torch.linalg.eigvalsh(-1j * torch.where(finite, A, 0))
        return torch.where(finite[..., 0], theta, math.nan)

    def point(self, X: Tensor, B: Base, retraction: RetractionLike = EXP) -> Tensor:
        r"""$B\,\phi(A)$, where $A$ has the coordinates `X` in the Lie algebra.

        Here $\phi$ is the retraction at the identity.
        """
        # Whenever a weight is computed, this method is called with a retraction that
        # has been checked before. Such a retraction need not pass through `resolve`,
        # which takes time.
        is_checked = isinstance(retraction, self.maps)
        if not is_checked or not isinstance(retraction, AbstractRetraction):
            retraction = self.resolve(retraction)
        if self.is_unrestricted:
            return retraction.around(X, B)
        with autocast_off(X.device):
            Q = self.algebra_retraction(self.algebra(X), retraction)
            return Q if B is None else B @ Q

    def coordinates(
        self, P: Tensor, B: Base, retraction: RetractionLike = EXP
    ) -> Tensor:
        r"""Coordinates of an $A$ in the Lie algebra with $B\,\phi(A) = P$.

        Here $\phi$ is the retraction at the identity.
        """
        retraction = self.resolve(retraction)
        Q = newton_schulz(P if B is None else B.mH @ P)
        if retraction.is_exponential:
            A = self.algebra_log(Q)
        else:
            A = self.algebra_projection(retraction.inverse(Q))
        return self.algebra_coordinates(A)

    def velocity(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""Coordinates of $Q^H E$ in the Lie algebra."""
        return self.algebra_coordinates(self.algebra_projection(Q.mH @ E))

    def nearest(self, X: Tensor) -> Tensor:
        r"""Point of the group near `X`, but not exactly the closest one.

        It is $\exp A$, where `derived_log` computes $A$ from the rotation or unitary
        matrix nearest to `X`. The closest point differs from $\exp A$ to second order
        in the distance from `X` to the group.
        """
        return expm_skew(derived_log(self, nearest_rotation(X)))

    def defect(self, Q: Tensor) -> Tensor:
        r"""The larger of $\lVert Q^H Q - I \rVert_F$ and the distance to `nearest`."""
        distance = torch.linalg.matrix_norm(self.nearest(Q) - Q)
        return torch.maximum(unitarity_defect(Q), distance)

    def component(self, Q: Tensor) -> Tensor:
        """The sign of the determinant; zero if the group is connected."""
        if self.is_connected:
            return super().component(Q)
        # not `sgn`, which is 0 for NaN
        d = determinant(Q).real[..., None]
        return d / d.abs()

    def random(self, *batch: int, **options: Any) -> Tensor:
        r"""Haar samples from the identity component, up to a small error.

        The samples are the ends of random walks: products of exponentials of Gaussian
        elements of the Lie algebra. The error decreases exponentially with the number
        of factors. The Gaussian elements have standard deviation $\pi \sqrt n$ in every
        direction (in a complex group, $\pi \sqrt{n / 2}$). The largest angle of a unit
        vector of the algebra is at least $1 / \sqrt n$, so one standard deviation along
        this vector is a rotation by at least $\pi$ (in a complex group,
        $\pi / \sqrt 2$). The walk is computed in double precision.
        """
        dtype = self.resolve_dtype(options.pop("dtype", None))
        options["dtype"] = torch.promote_types(dtype, torch.float64)
        width = math.pi * math.sqrt(self.size)
        Q = self.origin(*batch, dtype=options["dtype"], device=options.get("device"))
        for _ in range(_WALK):
            A = self.algebra_projection(self.gaussian(*batch, **options))
            Q = Q @ expm_skew(width * A)
        return newton_schulz(Q).to(dtype)


@dataclass(frozen=True)
class AbstractClassicalGroup(AbstractGroup):
    """A family of groups with one member for each `n`, such as SO(n)."""

    n: int

    def __post_init__(self) -> None:
        check_size(self.n)

    @property
    def size(self) -> int:
        """Number of rows, and also of columns, of the matrices."""
        return self.n

    @property
    def rank(self) -> int:
        """Number of angles that `torus` takes; by default, `n`."""
        return self.n

    def torus(self, theta: Tensor) -> Tensor:
        r"""$\operatorname{diag}(i \theta)$."""
        return torch.diag_embed(1j * theta)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Samples from the Haar measure: the points nearest to Gaussian matrices.

        If a Gaussian matrix is multiplied by a point of the group, its distribution
        does not change. In Sp and Torus, its nearest point is then multiplied by the
        same point. So the distribution of the nearest point is invariant under
        multiplication: it is the Haar measure.
        """
        return self.nearest(self.gaussian(*batch, **options))


class AbstractUnrestrictedGroup(AbstractUnrestricted, AbstractClassicalGroup):
    """A group whose Lie algebra consists of all skew matrices: O, SO and U."""

    @property
    def is_unrestricted(self) -> bool:
        """True, unless a subclass overrides `algebra`.

        The Lie algebra of such a subclass may be smaller.
        """
        return type(self).algebra is AbstractUnrestrictedGroup.algebra

    def algebra(self, X: Tensor) -> Tensor:
        """Skew matrix with the lower triangle of `X`; see `skew`.

        The diagonal of `X` is read only if `X` is complex.
        """
        return skew(X)

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """The lower triangle of `A`, with the diagonal divided by i if complex."""
        return lower_triangle(A)

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The skew part."""
        return (X - X.mH) / 2

    def algebra_log(self, Q: Tensor) -> Tensor:
        """The principal logarithm, which exists for rotations and unitary matrices."""
        return logm_unitary(Q)
