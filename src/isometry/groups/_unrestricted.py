"""All matrices with orthonormal columns: what Stiefel, O, SO and U share."""

from typing import Any

from torch import Tensor

from isometry._orthonormal import newton_schulz, unitarity_defect
from isometry.groups._group import AbstractClassicalGroup
from isometry.groups._manifold import AbstractManifold
from isometry.groups._maps import AbstractMap
from isometry.groups._maps.factors import q_factor
from isometry.linalg import logm_unitary, polar, skew
from isometry.linalg._skew import lower_triangle


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


class AbstractUnrestrictedGroup(AbstractUnrestricted, AbstractClassicalGroup):
    """A group whose Lie algebra consists of all skew matrices: O, SO and U."""

    # Inherited from `AbstractUnrestricted`, but stated again in the class that defines
    # `algebra`: otherwise `AbstractGroup.__init_subclass__` would set it to False.
    is_unrestricted = True

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
