"""How an optimizer sees a manifold: tangent vectors as arrays of real numbers.

A frame turns gradients into such arrays, moves points along them, and takes others
along to the point reached. The rules of the optimizers are then those of real vectors.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isometry._backend.memory import recycled
from isometry.groups._maps import AbstractRetraction
from isometry.groups._nearest import (
    after_newton_schulz,
    newton_schulz,
    unitarity_defect,
)

if TYPE_CHECKING:
    from isometry.groups._group import AbstractGroup
    from isometry.groups._manifold import AbstractManifold

Scale = float | Tensor

# of a matrix this far off, the nearest point may be another than the one meant
_LOST = 0.1

# below this size a BLAS may add the terms of a complex product to Q one by one
_SMALL = 32


class AbstractFrame(ABC):
    """Tangent vectors of one manifold as real arrays, with the metric's gradients.

    Points `Q` and Euclidean gradients `G` are `(b, *shape)`, with one batch axis; real
    and imaginary parts of vectors are apart, on a last axis of length 2.
    """

    manifold: "AbstractManifold"
    #: after how many steps rounding is to be removed from a point
    polish_every: int

    @abstractmethod
    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """The vector of steepest ascent at `Q`."""

    @abstractmethod
    def square(self, V: Tensor) -> Tensor:
        """Squares that adaptive rules scale a vector by, of a shape to divide it."""

    @abstractmethod
    def advance(
        self,
        Q: Tensor,
        V: Tensor,
        scale: Scale,
        carried: Sequence[Tensor],
        retraction: AbstractRetraction,
    ) -> tuple[Tensor, list[Tensor]]:
        """The point reached from `Q` along `scale * V`, and vectors carried there."""

    def reals(self, X: Tensor) -> Tensor:
        """A tangent matrix as a real array."""
        return torch.view_as_real(X.resolve_conj()) if X.is_complex() else X

    def matrix(self, V: Tensor) -> Tensor:
        """The inverse of `reals`."""
        return torch.view_as_complex(V.contiguous()) if self.manifold.is_complex else V


class BodyFrame(AbstractFrame):
    r"""A group in the frame of its Lie algebra: $QA$ is the skew matrix $A$.

    $$ A = Q^H \operatorname{grad} f(Q), \qquad Q \leftarrow Q\,\phi(\eta A). $$

    Left translation takes $QA$ to $PA$: it is an isometry, and here it does nothing.
    Every entry of the algebra has its own square: the frame is the same at all points,
    so that averages over time make sense entry by entry.
    """

    # the defect grows as the root of the number of steps, and is 2e-7 after 16 in
    # single precision: docs/theory/optimizers.md
    polish_every = 16

    def __init__(self, group: "AbstractGroup") -> None:
        self.manifold = self.group = group

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """The skew part of `Q^H G`, or what of it is in the Lie algebra."""
        U = torch.bmm(Q.mH, G, out=recycled(Q.shape, Q))
        if self.group.is_free:
            A = torch.sub(U, U.mH, out=recycled(Q.shape, Q))
            return self.reals(A.div_(2))
        return self.reals(self.group.algebra_projection(U))

    def square(self, V: Tensor) -> Tensor:
        """Entry by entry."""
        return torch.mul(V, V, out=recycled(V.shape, V))

    def advance(
        self,
        Q: Tensor,
        V: Tensor,
        scale: Scale,
        carried: Sequence[Tensor],
        retraction: AbstractRetraction,
    ) -> tuple[Tensor, list[Tensor]]:
        """By a retraction at the identity; vectors stay as they are."""
        A = self.matrix(torch.mul(V, scale, out=recycled(V.shape, V)))
        if not self.group.is_free:
            # scaled entry by entry, it may have left the algebra: SU(n) has no trace
            A = self.group.algebra_projection(A)
        return self._move(Q, A, retraction), list(carried)

    def _move(self, Q: Tensor, A: Tensor, retraction: AbstractRetraction) -> Tensor:
        if retraction.is_factor:
            P = retraction.factor(Q, Q @ A)
            return P if self.group.is_free else self.group.polish(P)
        change = retraction.increment(A)
        if change is None:
            # the product of two rotations has more rounding than a polish now and then
            # removes
            P = Q @ self.group.algebra_retraction(A, retraction)
            return settle(P, torch.linalg.matrix_norm(A))
        if Q.shape[-1] < _SMALL:
            # a BLAS may round each term of the sum as Q is rounded: three times the
            # defect in U(9)
            return Q + Q @ change
        return torch.baddbmm(Q, Q, change, out=recycled(Q.shape, Q))


class AmbientFrame(AbstractFrame):
    """Any manifold in the space around it, by its own retractions and transport.

    There is no frame in which entries could be compared from point to point, so a
    vector has one square: the mean over its entries, which rotations preserve.
    """

    # a gradient that is tangent up to rounding only may be much larger than the step
    polish_every = 1

    def __init__(self, manifold: "AbstractManifold") -> None:
        self.manifold = manifold

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        """The Riemannian gradient."""
        return self.reals(self.manifold.gradient(Q, G))

    def square(self, V: Tensor) -> Tensor:
        """The mean square of all entries of a point."""
        axes = len(self.manifold.shape) + self.manifold.is_complex
        return (V * V).mean(tuple(range(-axes, 0)), keepdim=True)

    def advance(
        self,
        Q: Tensor,
        V: Tensor,
        scale: Scale,
        carried: Sequence[Tensor],
        retraction: AbstractRetraction,
    ) -> tuple[Tensor, list[Tensor]]:
        """By the manifold's retraction and its vector transport."""
        E = self.matrix(scale * V)
        P = self.manifold.step(Q, E, retraction)
        moved = [self.manifold.transport(Q, P, self.matrix(F)) for F in carried]
        return P, [self.reals(F) for F in moved]


def settle(P: Tensor, length: Tensor) -> Tensor:
    r"""`P` after steps of some length in radians, made orthonormal again.

    The angles of a step are known to $\varepsilon$ times its length. If that is longer
    than $\varepsilon^{-1/2}$, or `P` far from orthonormal (the denominator of a Pade
    approximant has a condition number that grows as a power of the length), there is
    nothing to go by: NaN, which is no step.

    Cost: three products, two more if the length has cost half of the digits.
    """
    eps = torch.finfo(P.dtype).eps
    defect = unitarity_defect(P)
    # written so that NaN is lost
    is_close = (defect < _LOST) & (length < eps**-0.5)
    P = torch.where(is_close[:, None, None], P, math.nan)
    e = float(torch.where(is_close, defect, 0.0).max())
    P, e = newton_schulz(P), after_newton_schulz(e)
    while e > eps / 4:
        P, e = newton_schulz(P), after_newton_schulz(e)
    return P
