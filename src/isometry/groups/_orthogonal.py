"""The rotation group SO(n), and the orthogonal group O(n)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry._orthonormal import unitarity_defect
from isometry.groups._group import AbstractUnrestrictedGroup
from isometry.groups._nearest import determinant, nearest_rotation, turn_last_column


@dataclass(frozen=True)
class AbstractOrthogonal(AbstractUnrestrictedGroup):
    """The common part of SO(n) and O(n): their dimension and their maximal torus."""

    is_complex = False

    @property
    def dimension(self) -> int:
        """Number of coordinate planes, each with one degree of freedom."""
        return self.n * (self.n - 1) // 2

    @property
    def rank(self) -> int:
        """Number of planes that can be rotated independently."""
        return self.n // 2

    def torus(self, theta: Tensor) -> Tensor:
        r"""Skew matrix with 2 x 2 blocks on the diagonal, one for each angle.

        $$ \begin{pmatrix} 0 & -\theta \\ \theta & 0 \end{pmatrix} $$
        """
        lower = theta.new_zeros(*theta.shape[:-1], max(self.n - 1, 0))
        lower[..., : 2 * self.rank : 2] = theta
        A = torch.diag_embed(lower, offset=-1)[..., : self.n, : self.n]
        return A - A.mT


@dataclass(frozen=True)
class SO(AbstractOrthogonal):
    r"""Special orthogonal group: real $Q^T Q = I$ with determinant $+1$.

    $$ \mathfrak{so}(n) = \{ A \in \mathbb{R}^{n \times n} : A^T = -A \}, \qquad
       \dim = n (n-1) / 2. $$

    Args:
        n: size of the matrices.
    """

    def nearest(self, X: Tensor) -> Tensor:
        """The rotation nearest to `X`: its polar factor, if that is a rotation.

        If the polar factor is a reflection, the singular vector of the smallest
        singular value is reversed.
        """
        return nearest_rotation(X)

    def defect(self, Q: Tensor) -> Tensor:
        r"""$\lVert Q^T Q - I \rVert_F$, or infinity if the determinant is negative."""
        reflection = determinant(Q) < 0
        return torch.where(reflection, math.inf, unitarity_defect(Q))

    def refusal(
        self, Q: Tensor, bound: float, dtype: torch.dtype, *, name: str, projection: str
    ) -> ValueError:
        """The error for a `Q` outside SO(n); it also reports negative determinants."""
        det, defect = determinant(Q), unitarity_defect(Q)
        reflection = det < 0
        # matrices that have a negative determinant and are not orthogonal either
        neither = reflection & ~(defect <= bound)
        if neither.any():
            return ValueError(
                f"`{name}` must be a point of {self}; got a defect of "
                f"{float(defect[neither].max()):.1e}, above {bound:.1e} for {dtype}, "
                f"and determinant {float(det[neither].min()):.2g}. Project it first, "
                f"with `{projection}`."
            )
        if reflection.any():
            return ValueError(
                f"`{name}` must have determinant 1 to be a point of {self}; got "
                f"determinant -1 ({int(reflection.sum())} of {reflection.numel()} "
                f"matrices). Negate a column, or use `O({self.n})`, which has both "
                f"determinants."
            )
        return super().refusal(Q, bound, dtype, name=name, projection=projection)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Samples from the Haar measure on SO(n).

        A sample on O(n) is drawn, and its last column is negated if `det` is -1.
        """
        return turn_last_column(super().random(*batch, **options))


@dataclass(frozen=True)
class O(AbstractOrthogonal):  # noqa: E742 - the group's name in every textbook
    r"""Orthogonal group: real $Q^T Q = I$ with determinant $+1$ or $-1$.

    $$ \mathfrak{o}(n) = \mathfrak{so}(n), \qquad \dim = n (n-1) / 2. $$

    It has two connected components: matrices of determinant $+1$ and of determinant
    $-1$. A retraction stays in the component of its starting point, and a weight stays
    in the component of its base. By default, `isometry.orthogonal` constrains a square
    real weight to this group.

    Args:
        n: size of the matrices.
    """

    is_connected = False
