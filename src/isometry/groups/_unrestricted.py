"""Manifolds of matrices on which orthonormal columns are the only local condition."""

from typing import Any

from torch import Tensor

from isometry._orthonormal import newton_schulz, unitarity_defect
from isometry.groups._manifold import AbstractManifold
from isometry.groups._maps import AbstractMap
from isometry.groups._maps.factors import q_factor
from isometry.linalg import polar


class AbstractUnrestricted(AbstractManifold):
    """A manifold of all matrices of one shape with orthonormal columns.

    SO, which also needs a positive determinant, overrides the methods that depend on
    the determinant.
    """

    is_unrestricted = True
    maps = (AbstractMap,)

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
