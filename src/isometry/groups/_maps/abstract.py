"""The interface of maps from free coordinates to orthogonal matrices."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from isometry._torch import autocast_off
from isometry.linalg import skew
from isometry.linalg._tall import tall_map

# Steps above this length, roughly in radians, count as long. Three formulas are only
# for shorter steps:
# - `AbstractRational.increment`. In a long step, its rounding error would no longer be
#   proportional to the size of the step.
# - The Cholesky factor in `QR.step`. In a long step, it would lose digits that
#   Householder's decomposition keeps.
# - The formula of `TallFrame`. Long steps are left to `Stiefel.step`.
LONG_STEP = 1.0


class AbstractMap(ABC):
    """A map from free coordinates to matrices with orthonormal columns.

    There are two kinds: `Householder`, and subclasses of `AbstractRetraction`. To write
    your own map, subclass `AbstractRetraction`. All maps are frozen dataclasses:
    hashable, and equal if their classes and fields are equal. The attribute `maps` of a
    manifold lists the classes that it accepts.
    """

    #: name of the map in options, messages and checkpoints
    name: str
    #: whether this map can parametrize a weight
    can_parametrize: bool = False
    #: whether the map is the exponential itself, whose inverse is the logarithm
    is_exponential: bool = False


class AbstractRetraction(AbstractMap):
    r"""A map from skew to orthogonal or unitary matrices, $\phi(A) = I + A + O(A^2)$.

    To write your own, give it a `name` and the method `at_identity`, which must be
    differentiable and accept batches. By default, `inverse` raises an error. The other
    methods have defaults that are correct but may be slow: override them where there is
    a better formula. `isometry.testing.check_map` checks `at_identity`, `inverse`,
    `order` and `is_equivariant`.
    """

    can_parametrize = True
    #: whether the map commutes with rotations, $\phi(V A V^H) = V \phi(A) V^H$
    is_equivariant: bool = True
    #: the lowest power of $A$ in which the map differs from the exponential
    order: float = 2.0
    #: whether `step` returns a factor of $Q + E$, which is orthonormal up to rounding
    is_factor: bool = False

    @abstractmethod
    def at_identity(self, A: Tensor) -> Tensor:
        r"""Orthogonal or unitary matrices $\phi(A)$ of skew matrices `A`."""

    def inverse(self, Q: Tensor) -> Tensor:
        r"""The smallest skew $A$ with $\phi(A) = Q$; by default, an error.

        Raises:
            ValueError: if the map has no inverse, or does not reach `Q`.
        """
        del Q
        raise ValueError(
            f"`retraction` must have an inverse to find coordinates; got "
            f"{self.name!r}, which has none. Choose the point itself as the base."
        )

    def around(self, X: Tensor, B: Tensor | None) -> Tensor:
        r"""$B\,\phi(\operatorname{skew} X)$, where None stands for $B = I$."""
        A = skew(X)
        with autocast_off(A.device):
            Q = self.at_identity(A)
            return Q if B is None else B @ Q

    def tall(self, X: Tensor, B: Tensor | None = None) -> Tensor:
        r"""$\phi(A) B$, with the skew $A$ that moves a tall `B` along `X`.

        The matrix `A` is defined in `isometry.linalg.expm_tall`; the part of `X` that
        is normal to the manifold at `B` has no effect. If `B` is None, the first
        columns of the identity are used. This implementation computes with n x n
        matrices; subclasses may override it with a faster one.
        """
        return tall_map(X, B, of_skew=lambda A, k: self.at_identity(A)[..., :k])

    def vector(self, E: Tensor, q: Tensor) -> Tensor:
        """The unit vector reached from `q` along `E`: `tall` with a single column."""
        return self.tall(E[..., None], q[..., None])[..., 0]

    def increment(self, A: Tensor) -> Tensor | None:
        r"""$\phi(A) - I$ for a batch of short steps `A`; by default, None.

        Multiplying a point by $\phi(A)$ causes rounding errors proportional to the size
        of the point. Adding to the point its product with $\phi(A) - I$ causes rounding
        errors proportional to the size of the step, plus one final rounding. The result
        need not be differentiable.

        Returns:
            The matrices; None if a step is long or not finite, or if the map has no
            such formula.
        """
        del A

    def quotient(self, M: Tensor, R: Tensor, norm: float) -> Tensor | None:
        r"""$\rho(M) R$ with $\rho(x) = (\phi(x) - 1) / x$; by default, None.

        The product is used for short steps. The eigenvalues of `M` are imaginary, with
        absolute values of at most `norm`. When `TallFrame` calls this method, `norm` is
        below 1. The result need not be differentiable.

        Returns:
            The product; None if the map has no such formula.
        """
        del M, R, norm

    def step(self, Q: Tensor, E: Tensor) -> Tensor:
        """`tall(E, Q)` for a tangent `E`, for optimizers.

        The result need not be differentiable.
        """
        return self.tall(E, Q)

    def phase(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        r"""The angle by which $\phi$ rotates a plane, and its derivative in `theta`.

        The angle is $\alpha$ in $\phi(i\theta) = e^{i\alpha(\theta)}$, up to full
        turns. Only a map with `is_equivariant` has such a function.
        """
        with torch.inference_mode(mode=False), torch.enable_grad():
            # a copy, because a tensor made in inference mode cannot have a gradient
            theta = theta.detach().clone().requires_grad_()
            zero = torch.zeros_like(theta)
            rows = (torch.stack([zero, -theta], -1), torch.stack([theta, zero], -1))
            Q = self.at_identity(torch.stack(rows, -2))
            turn = torch.atan2(Q[..., 1, 0], Q[..., 0, 0])
            (slope,) = torch.autograd.grad(turn.sum(), theta)
        return turn.detach(), slope
