"""Frames: tangent vectors as arrays of real numbers, for the optimizers.

A frame converts gradients to real arrays, moves points along them, and transports other
vectors, such as a momentum, to the new point. So an optimizer can apply the usual
update rules for real vectors.
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isometry._backend.memory import recycled
from isometry._operators import largest
from isometry._orthonormal import converge, identity, newton_schulz, unitarity_defect
from isometry.groups._maps import AbstractRetraction
from isometry.groups._maps.abstract import LONG_STEP

if TYPE_CHECKING:
    from isometry.groups._group import AbstractGroup
    from isometry.groups._manifold import AbstractManifold

#: tangent vectors in the state of an optimizer, keyed by name
Vectors = dict[str, Tensor]
#: what a step multiplies a vector by: a number, or a tensor that broadcasts with it
Scale = float | Tensor

# If a point has this defect or more, `settle` returns NaN, because the nearest
# orthonormal matrix may not be the point that the step should have reached
_LOST = 0.1

# `settle` makes a point unitary, but does not restore further conditions, such as
# determinant 1 in SU(n); `polish` does. The error in these conditions grows with the
# length of the steps. After a step of this length or more (in radians), `BodyFrame`
# polishes at once. After shorter steps, the polish after every 16th step is enough:
# after 15 steps of 3.14 radians, the defect was at most 0.13 times the tolerance (eight
# groups, ten seeds, single and double precision).
_HALF_TURN = math.pi

# with fewer rows than this, `BodyFrame._move` avoids `baddbmm`, which is less accurate
_FEW_ROWS = 32


class AbstractFrame(ABC):
    """Tangent vectors of one manifold as real arrays, and how points move along them.

    Points `Q` and Euclidean gradients `G` have shape `(b, *shape)`, with one batch
    axis. Complex tangent vectors have an extra last axis of length 2, for their real
    and imaginary parts.
    """

    #: number of steps after which rounding errors must be removed from a point
    polish_every: int

    def __init__(self, manifold: "AbstractManifold") -> None:
        self.manifold = manifold

    @abstractmethod
    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """The Riemannian gradient at `Q`, from the Euclidean gradient `G`."""

    def square(self, V: Tensor) -> Tensor:
        """The squares of a vector's entries, or their mean, for rules such as Adam's.

        These rules average the squares over steps, and divide the vector by the square
        root of the average. The shape of the result broadcasts with the vector.

        By default the result is the mean, one number for each vector, because single
        entries of vectors at different points cannot be compared. The mean is the
        squared norm of the array, divided by the number of real numbers in a point.
        """
        total = torch.linalg.vector_norm(V.flatten(1), dim=1).square_()
        reals = math.prod(self.manifold.shape) * (1 + self.manifold.is_complex)
        return total.div_(reals).view(-1, *[1] * (V.ndim - 1))

    @abstractmethod
    def advance(
        self,
        Q: Tensor,
        V: Tensor,
        scale: Scale,
        vectors: Vectors,
        retraction: AbstractRetraction,
    ) -> tuple[Tensor, Vectors]:
        """The point reached from `Q` along `scale * V`, and `vectors` moved there.

        The tensors in `vectors` may be overwritten. One of them may be `V` itself.
        """

    def reals(self, X: Tensor) -> Tensor:
        """A tangent matrix as a real array."""
        return torch.view_as_real(X.resolve_conj()) if X.is_complex() else X

    def matrix(self, V: Tensor) -> Tensor:
        """The tangent matrix for a real array: the inverse of `reals`."""
        return torch.view_as_complex(V.contiguous()) if self.manifold.is_complex else V


class BodyFrame(AbstractFrame):
    r"""A group in the frame of its Lie algebra: $A$ stands for the tangent vector $QA$.

    $$ A = Q^H \operatorname{grad} f(Q), \qquad Q \leftarrow Q\,\phi(-\eta A). $$

    Here $\phi$ is the retraction and $\eta$ the learning rate. After a step from $Q$ to
    $P$, left translation transports the vector $QA$ to $PA$. This is an isometry and
    does not change $A$. So the entries of $A$ at different points can be compared, and
    each entry has its own average of squares.
    """

    # The defect grows with the square root of the number of steps. In single precision,
    # the defect divided by sqrt(n) is 5.5e-7 after 128 steps, according to
    # docs/theory/optimizers.md. So it is about 2e-7 after 16 steps.
    polish_every = 16

    def __init__(self, group: "AbstractGroup") -> None:
        self.manifold = self.group = group

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """The projection of `Q^H G` onto the algebra; in O, SO and U, its skew part."""
        U = torch.bmm(Q.mH, G, out=recycled(Q.shape, Q))
        if self.group.is_unrestricted:
            A = torch.sub(U, U.mH, out=recycled(Q.shape, Q))
            return self.reals(A.div_(2))
        return self.reals(self.group.algebra_projection(U))

    def square(self, V: Tensor) -> Tensor:
        """The square of each entry."""
        return torch.mul(V, V, out=recycled(V.shape, V))

    def advance(
        self,
        Q: Tensor,
        V: Tensor,
        scale: Scale,
        vectors: Vectors,
        retraction: AbstractRetraction,
    ) -> tuple[Tensor, Vectors]:
        """Retract the step `scale * V` at the identity, and multiply `Q` by the result.

        Returns the new `Q`, and `vectors` unchanged.
        """
        A = self.matrix(torch.mul(V, scale, out=recycled(V.shape, V)))
        if not self.group.is_unrestricted:
            # An adaptive rule scales each entry separately, so A may have left the
            # algebra. In SU(n), for example, its trace may be nonzero.
            A = self.group.algebra_projection(A)
        return self._move(Q, A, retraction), vectors

    def _move(self, Q: Tensor, A: Tensor, retraction: AbstractRetraction) -> Tensor:
        if retraction.is_factor:
            P = retraction.step(Q, Q @ A)
            return P if self.group.is_unrestricted else self.group.polish(P)
        change = retraction.increment(A)
        if change is None:
            # The rounding errors of this product are proportional to the size of Q, not
            # of the step. So `settle` removes them now; the next `polish` may be many
            # steps away.
            P = Q @ self.group.algebra_retraction(A, retraction)
            length = torch.linalg.matrix_norm(A)
            P = settle(P, length)
            if self.group.is_unrestricted:
                return P
            # written so that NaN counts as long
            is_short = largest(length, unknown=_HALF_TURN) < _HALF_TURN
            return P if is_short else self.group.polish(P)
        if Q.shape[-1] < _FEW_ROWS:
            # Not `baddbmm`: some BLAS libraries add the terms of the product to Q one
            # by one, and each addition causes a rounding error proportional to the size
            # of Q. In U(9) this made the defect three times as large.
            return Q + Q @ change
        return torch.baddbmm(Q, Q, change, out=recycled(Q.shape, Q))


class AmbientFrame(AbstractFrame):
    """A frame for any manifold, with tangent vectors as arrays of the ambient space.

    `square` is the mean of a vector's squared entries, a number that does not change
    under rotations.
    """

    # A Riemannian gradient is tangent only up to a rounding error. This error is
    # proportional to the Euclidean gradient, which may be much larger than the
    # Riemannian gradient. So every step ends with a polish.
    polish_every = 1

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """The Riemannian gradient."""
        # Copy, because the update rule may overwrite the result. A manifold defined by
        # a user may return `G` itself, the gradient of the parameter, which must not
        # change.
        return self.reals(self.manifold.gradient(Q, G).clone())

    def advance(
        self,
        Q: Tensor,
        V: Tensor,
        scale: Scale,
        vectors: Vectors,
        retraction: AbstractRetraction,
    ) -> tuple[Tensor, Vectors]:
        """Move `Q` with the manifold's `step`, and `vectors` with its `transport`."""
        P = self.manifold.step(Q, self.matrix(scale * V), retraction)
        moved: Vectors = {}
        for name, F in vectors.items():
            moved[name] = self.reals(self.manifold.transport(Q, P, self.matrix(F)))
        return P, moved


class TallFrame(AbstractFrame):
    r"""A frame for tall matrices: $(\Omega, E_\perp)$ stands for $Q\,\Omega + E_\perp$.

    Here $\Omega^H = -\Omega$ and $Q^H E_\perp = 0$. The two matrices are stacked in one
    array with $k + n$ rows. The skew matrix $A = E_\perp Q^H - Q E_\perp^H + Q \Omega
    Q^H$ moves $Q$ along $E = Q\,\Omega + E_\perp$. With $Z = (Q, E_\perp)$ and
    $\rho(x) = (e^x - 1)/x$,

    $$ P = e^A Q = Q + Z\, \rho(J Z^H Z)\, J Z^H Q, \qquad
       J = \begin{pmatrix} \Omega & -I \\ I & 0 \end{pmatrix}. $$

    $P$ is a rotation of $Q$ for any $Z$, even if $Q^H E_\perp$ is not exactly zero. In
    practice $Q^H E_\perp$ is a rounding error in proportion to the Euclidean gradient,
    and the Euclidean gradient may be much larger than $E$.

    For Cayley and Pade, a rational function replaces $e^x$ and $e^A$. Steps longer than
    about a radian use `Stiefel.step` instead, and so do all steps by maps without
    `quotient`, such as polar and qr. A tangent vector $F = Q\,\Omega_F + F_\perp$ is
    transported by

    $$ Q\,\Omega_F + F_\perp \mapsto P\,\Omega_F + (I - P P^H) F_\perp, $$

    that is, $\Omega_F$ stays the same and $F_\perp$ is projected.

    As $\lVert E \rVert_F^2 = \lVert \Omega \rVert_F^2 + \lVert E_\perp \rVert_F^2$,
    `square` is the same number as in `AmbientFrame`.

    Cost of a step with momentum: seven products of $n k^2$, and some of $k^3$. The host
    reads the norm of the step from the device.
    """

    polish_every = 16

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        r"""Gradient in the canonical metric.

        $$ \Omega = U - U^H, \qquad E_\perp = G - Q U, \qquad U = Q^H G. $$
        """
        count, n, k = Q.shape
        U = torch.bmm(Q.mH, G)
        E = recycled((count, n + k, k), Q)
        torch.sub(U, U.mH, out=E[:, :k])
        torch.baddbmm(G, Q, U, alpha=-1, out=E[:, k:])
        return self.reals(E)

    def advance(
        self,
        Q: Tensor,
        V: Tensor,
        scale: Scale,
        vectors: Vectors,
        retraction: AbstractRetraction,
    ) -> tuple[Tensor, Vectors]:
        """Move `Q` by the retraction, and transport `vectors` in place."""
        if isinstance(scale, Tensor):
            # if `lr` is a tensor, `scale` can have a dtype other than the weight's
            scale = scale.view(-1, 1, 1).to(V)
        P, along_V = self._move(Q, V, scale, retraction)
        for F in vectors.values():
            F_perp = self._split(F)[1]
            # the momentum is often V itself; then `_move` may have computed P^H F_perp
            along = along_V if F is V else None
            F_perp.baddbmm_(P, P.mH @ F_perp if along is None else along, alpha=-1)
        return P, vectors

    def _move(
        self, Q: Tensor, V: Tensor, scale: Scale, retraction: AbstractRetraction
    ) -> tuple[Tensor, Tensor | None]:
        """The point `P` reached along `scale * V`, and `P^H E_perp` or None.

        The matrix `P^H E_perp` is a by-product of the formula for short steps. The
        second result is None if that formula was not used.
        """
        Omega, E_perp = self._split(V)
        if not retraction.is_factor:
            B, S = torch.bmm(Q.mH, E_perp), torch.bmm(E_perp.mH, E_perp)
            X = _coefficients(scale * Omega, scale * B, scale**2 * S, retraction)
            if X is not None:
                along_Q, across = X.split(Q.shape[2], 1)
                P = torch.baddbmm(Q, Q, along_Q, out=recycled(Q.shape, Q))
                P.baddbmm_(E_perp, scale * across)
                return P, B + X.mH @ torch.cat([B, scale * S], -2)
        E = torch.baddbmm(E_perp, Q, Omega).mul_(scale)
        P = self.manifold.step(Q, E, retraction)
        if not retraction.is_factor:
            P = settle(P, torch.linalg.matrix_norm(E))
        return P, None

    def _split(self, V: Tensor) -> tuple[Tensor, Tensor]:
        X = self.matrix(V)
        k = V.shape[2]
        return X[:, :k], X[:, k:]


def _coefficients(
    Omega: Tensor, B: Tensor, S: Tensor, retraction: AbstractRetraction
) -> Tensor | None:
    r"""$\rho(M) R$ with $\rho(x) = (\phi(x) - 1) / x$, for a retraction $\phi$.

    In the notation of `TallFrame`, $M = J Z^H Z$ and $R = J Z^H Q$. The caller passes
    `B` $= Q^H E_\perp$, which is not exactly zero because of rounding, and `S`
    $= E_\perp^H E_\perp$. Here $\Omega$ and $E_\perp$ are already multiplied by the
    scale of the step. The result is None if a step of the batch is long or not finite,
    or if the retraction does not implement `quotient`.
    """
    # the two terms are upper bounds on the spectral norms of Omega and of E_perp
    bounds = torch.linalg.matrix_norm(Omega) + torch.linalg.matrix_norm(S).sqrt()
    norm = largest(bounds, unknown=math.inf)
    # written so that NaN counts as long
    if not norm < LONG_STEP:
        return None
    R = torch.cat([Omega - B.mH, identity(S).expand_as(S)], -2)
    M = torch.cat([R, torch.cat([Omega @ B - S, B], -2)], -1)
    return retraction.quotient(M, R, norm)


def settle(P: Tensor, length: Tensor) -> Tensor:
    r"""`P` made orthonormal again, after a step of this `length` in radians.

    The angles of a step have an error of $\varepsilon$ times its length. The result is
    NaN if the length is $\varepsilon^{-1/2}$ or more, because at most half of the
    digits would be correct. It is also NaN if `P` is far from orthonormal. This can
    happen after a long step by a Pade approximant: the condition number of its
    denominator grows as a power of the length.

    Cost: three products if the defect of `P` is below $\sqrt{\varepsilon / 3}$. Each
    further Newton-Schulz step costs two more.
    """
    eps = torch.finfo(P.dtype).eps
    defect = unitarity_defect(P)
    # written so that NaN does not count as close
    is_close = (defect < _LOST) & (length < eps**-0.5)
    P = torch.where(is_close[:, None, None], P, math.nan)
    e = largest(torch.where(is_close, defect, 0.0), unknown=_LOST)
    return converge(newton_schulz(P), e)
