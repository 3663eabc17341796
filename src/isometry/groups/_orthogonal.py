"""The rotations."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry.groups._group import AbstractGroup
from isometry.groups._haar import flip_to_positive_determinant, gaussian, haar_frame
from isometry.groups._manifold import check_size
from isometry.groups._nearest import (
    determinant,
    nearest_rotation,
    newton_schulz,
    unitarity_defect,
)
from isometry.linalg import logm_unitary, skew
from isometry.linalg._expm.rotation import rotation


@dataclass(frozen=True)
class SO(AbstractGroup):
    r"""Special orthogonal group: real $Q^T Q = I$ with determinant $+1$.

    $$ \mathfrak{so}(n) = \{ A \in \mathbb{R}^{n \times n} : A^T = -A \}, \qquad
       \dim = n (n-1) / 2. $$

    Args:
        n: size of the matrices.
    """

    n: int

    def __post_init__(self) -> None:
        check_size(self.n)

    @property
    def is_complex(self) -> bool:
        """Whether points have a complex dtype."""
        return False

    @property
    def retractions(self) -> tuple[str, ...]:
        """The retractions that end in the group."""
        return ("exp", "cayley", "pade-m", "polar", "qr")

    @property
    def size(self) -> int:
        """The `n` of `n` x `n`."""
        return self.n

    @property
    def dimension(self) -> int:
        """Number of planes to rotate in."""
        return self.n * (self.n - 1) // 2

    @property
    def rank(self) -> int:
        """Number of planes that can turn independently."""
        return self.n // 2

    def algebra(self, X: Tensor) -> Tensor:
        """Skew matrix with the strictly lower triangle of `X`."""
        return skew(X)

    def point(self, X: Tensor, B: Tensor | None, retraction: str = "exp") -> Tensor:
        r"""$B\,\phi(A)$, where the skew $A$ has the lower triangle of `X`."""
        # a subclass may have another algebra
        if retraction == "exp" and type(self) is SO:
            return rotation(X, B)
        return super().point(X, B, retraction)

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """The strictly lower triangle."""
        return A.tril(-1)

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The skew part."""
        return (X - X.mT) / 2

    def algebra_log(self, Q: Tensor) -> Tensor:
        """The principal logarithm."""
        return logm_unitary(Q)

    def torus(self, theta: Tensor) -> Tensor:
        r"""Blocks $\begin{pmatrix} 0 & -\theta \\ \theta & 0 \end{pmatrix}$."""
        lower = theta.new_zeros(*theta.shape[:-1], max(self.n - 1, 0))
        lower[..., : 2 * self.rank : 2] = theta
        A = torch.diag_embed(lower, offset=-1)[..., : self.n, : self.n]
        return A - A.mT

    def nearest(self, X: Tensor) -> Tensor:
        """The polar factor, if it is no reflection.

        If it is, the singular vector of the smallest singular value is turned round.
        """
        return nearest_rotation(X)

    def polish(self, Q: Tensor) -> Tensor:
        """One step of Newton and Schulz."""
        return newton_schulz(Q)

    def defect(self, Q: Tensor) -> Tensor:
        r"""$\lVert Q^T Q - I \rVert_F$, and infinity for a reflection."""
        reflection = determinant(Q) < 0
        return torch.where(reflection, math.inf, unitarity_defect(Q))

    def check(self, Q: Tensor, *, name: str) -> None:
        """Raise unless every `Q` is a rotation, with what is wrong with it."""
        self.check_tensor(Q, name=name)
        reflection = determinant(Q) < 0
        unitary = unitarity_defect(Q) <= self.tolerance(Q.dtype)
        if reflection.any() and unitary.all():
            raise ValueError(
                f"`{name}` must have determinant 1 to be a point of {self}; got "
                f"determinant -1 ({int(reflection.sum())} of {reflection.numel()} "
                f"matrices). Negate a column, or take `Stiefel({self.n}, {self.n})`, "
                f"which has both determinants."
            )
        super().check(Q, name=name)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Haar measure."""
        return flip_to_positive_determinant(
            haar_frame(gaussian_of(self, batch, options))
        )


def gaussian_of(group: AbstractGroup, batch: tuple[int, ...], options: Any) -> Tensor:
    """Gaussian matrices of the group's shape and field."""
    return gaussian(
        batch,
        group.shape,
        generator=options.pop("generator", None),
        dtype=group.dtype(options.pop("dtype", None)),
        device=options.pop("device", None),
        **options,
    )
