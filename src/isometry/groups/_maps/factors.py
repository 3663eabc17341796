"""Maps that compute a factor of a matrix, and products of reflections."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from isometry._operators import largest
from isometry._orthonormal import converge, identity, unit_vectors
from isometry._torch import autocast_off
from isometry.groups._maps.abstract import LONG_STEP, AbstractMap, AbstractRetraction
from isometry.groups._nearest import normal_part
from isometry.linalg import householder, polar
from isometry.linalg._householder import reflections


class AbstractFactor(AbstractRetraction):
    r"""The orthonormal factor of $Q + E$, for a point $Q$ and a tangent vector $E$.

    Optimizers can step along this map. It is not onto, so it cannot parametrize a
    weight: in a plane it rotates only by angles below $\pi/2$.
    """

    can_parametrize = False
    is_factor = True

    @abstractmethod
    def of(self, X: Tensor) -> Tensor:
        """The orthonormal factor of a matrix `X` of full rank; it is differentiable."""

    def at_identity(self, A: Tensor) -> Tensor:
        """The orthonormal factor of $I + A$."""
        return self.of(identity(A) + A)

    def tall(self, X: Tensor, B: Tensor | None = None) -> Tensor:
        """The orthonormal factor of `B + E`, where `E` is the tangent part of `X`."""
        if B is None:
            B = torch.eye(*X.shape[-2:], dtype=X.dtype, device=X.device)
        with autocast_off(X.device):
            return self.of(B + X - normal_part(B, X))

    def vector(self, E: Tensor, q: Tensor) -> Tensor:
        """The sum `q + E`, divided by its length."""
        return unit_vectors(q + E)


@dataclass(frozen=True)
class Polar(AbstractFactor):
    """Polar factor of a point plus a tangent vector.

    It is the point nearest to the sum, except in SU(n), where it is scaled to
    determinant 1.
    """

    name = "polar"
    order = 3.0

    def of(self, X: Tensor) -> Tensor:
        """The polar factor, by a singular value decomposition."""
        return polar(X)

    def step(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""Polar factor of $X = Q + E$, by Newton-Schulz steps.

        As $E$ is tangent, $X^H X = I + E^H E$ has eigenvalues between $1$ and $1 + d$,
        with $d = \lVert E^H E \rVert_F$. Scale $X$ by $\sqrt c$ with $c = 2 / (2 + d)$:
        then the eigenvalues of $X^H X$ are within $e = d / (2 + d) < 1$ of 1. Each step

        $$ X \leftarrow \tfrac12 X (3I - X^H X), \qquad
           e \leftarrow \tfrac14 e^2 (3 + e) $$

        brings them closer to 1, so $d$ determines the number of steps. In single
        precision one step suffices up to $d = 4 \cdot 10^{-4}$, two up to 0.03. The
        rounding error of $Q$ is removed as well. If $d \ge 1/\varepsilon$ the result is
        NaN.

        Cost: two products for each step. The host reads $d$ from the device.
        """
        X = Q + E
        gram = X.mH @ X
        eye = identity(X)
        d = torch.linalg.matrix_norm(gram - eye, keepdim=True)
        eps = torch.finfo(X.dtype).eps
        d = torch.where(d < 1 / eps, d, math.nan)
        c = 2 / (2 + d)
        X = (X * c.sqrt()) @ (1.5 * eye - gram * (c / 2))
        # a matrix with NaN stays NaN, and has no effect on the number of steps
        farthest = largest(d.nan_to_num(nan=0.0), unknown=1 / eps)
        return converge(X, farthest / (2 + farthest))


@dataclass(frozen=True)
class QR(AbstractFactor):
    """Q factor of a point plus a tangent vector; in SU(n), scaled to determinant 1."""

    name = "qr"
    is_equivariant = False

    def of(self, X: Tensor) -> Tensor:
        """The Q factor, by Householder's decomposition, with R's diagonal positive."""
        return q_factor(X)

    def step(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""$X R^{-1}$ with $X = Q + E$ and Cholesky's factor $R^H R = X^H X$.

        As $E$ is tangent, $X^H X = I + E^H E$, whose condition number is at most
        $1 + \lVert E \rVert^2$. So for steps up to a radian $R$ keeps every digit that
        the decomposition of $X$ itself would keep. For longer steps, $X$ is decomposed.
        For steps of $\varepsilon^{-1/2}$ or more, a column may be pure rounding error,
        with a random sign, so the result is NaN.

        Cost, up to a radian: as many operations as one and a half products of $n k^2$.
        """
        X = Q + E
        length = torch.linalg.matrix_norm(E, keepdim=True)
        # written so that NaN counts as long
        if not largest(length, unknown=math.inf) <= LONG_STEP:
            has_digits = length < torch.finfo(X.dtype).eps ** -0.5
            P = q_factor(torch.where(has_digits, X, Q))
            return torch.where(has_digits, P, math.nan)
        R = torch.linalg.cholesky_ex(X.mH @ X, upper=True).L
        return torch.linalg.solve_triangular(R, X, upper=True, left=False)


def q_factor(X: Tensor) -> Tensor:
    """The factor Q of X = QR, made unique by a positive diagonal of R.

    If a rotation multiplies X from the left, it multiplies Q too. The distribution of a
    Gaussian matrix does not change under rotations, so its Q is uniformly distributed.
    The Q that LAPACK computes is not, because the diagonal of its R may have negative
    entries.
    """
    Q, R = torch.linalg.qr(X)
    phase = R.diagonal(dim1=-2, dim2=-1).detach().sgn()
    # a zero on the diagonal (X singular) must not make a column vanish
    phase = torch.where(phase == 0, 1, phase)
    return Q * phase[..., None, :]


@dataclass(frozen=True)
class Householder(AbstractMap):
    """Products of Householder reflections, along the columns of the coordinates.

    The map has no base, and the optimizers of `isometry.optim` cannot step along it.
    The length of a column has no effect on the product, except that a column of zeros
    stands for the identity and has the gradient zero.
    """

    name = "householder"
    can_parametrize = True

    def product(self, V: Tensor) -> Tensor:
        """First k columns of the product of reflections along the k columns of `V`."""
        return householder(V, columns=V.shape[-1])

    def vectors(self, Q: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors `V` and phases that give `Q`.

        `Q` is `product(V)` with each column multiplied by its phase.
        """
        return reflections(Q)
