"""The rotation group SO(n), and the orthogonal group O(n)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry.groups._group import AbstractClassicalGroup, AbstractGroup
from isometry.groups._haar import flip_to_positive_determinant, gaussian, haar_frame
from isometry.groups._maps import AbstractMap
from isometry.groups._nearest import (
    determinant,
    nearest_rotation,
    newton_schulz,
    unitarity_defect,
)
from isometry.linalg import logm_unitary, polar, skew


@dataclass(frozen=True)
class AbstractOrthogonal(AbstractClassicalGroup):
    """What SO(n) and O(n) share: the Lie algebra of all real skew matrices."""

    is_complex = False
    is_free = True
    maps = (AbstractMap,)

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

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """The strictly lower triangle."""
        return A.tril(-1)

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The skew part."""
        return (X - X.mT) / 2

    def algebra_log(self, Q: Tensor) -> Tensor:
        """The principal logarithm, which exists only for rotations."""
        return logm_unitary(Q)

    def torus(self, theta: Tensor) -> Tensor:
        r"""Blocks $\begin{pmatrix} 0 & -\theta \\ \theta & 0 \end{pmatrix}$."""
        lower = theta.new_zeros(*theta.shape[:-1], max(self.n - 1, 0))
        lower[..., : 2 * self.rank : 2] = theta
        A = torch.diag_embed(lower, offset=-1)[..., : self.n, : self.n]
        return A - A.mT

    def polish(self, Q: Tensor) -> Tensor:
        """One step of Newton and Schulz."""
        return newton_schulz(Q)


@dataclass(frozen=True)
class SO(AbstractOrthogonal):
    r"""Special orthogonal group: real $Q^T Q = I$ with determinant $+1$.

    $$ \mathfrak{so}(n) = \{ A \in \mathbb{R}^{n \times n} : A^T = -A \}, \qquad
       \dim = n (n-1) / 2. $$

    Args:
        n: size of the matrices.
    """

    def nearest(self, X: Tensor) -> Tensor:
        """The polar factor, if it is a rotation.

        If it is a reflection, the singular vector of the smallest singular value is
        reversed.
        """
        return nearest_rotation(X)

    def defect(self, Q: Tensor) -> Tensor:
        r"""$\lVert Q^T Q - I \rVert_F$, and infinity for a reflection."""
        reflection = determinant(Q) < 0
        return torch.where(reflection, math.inf, unitarity_defect(Q))

    def check(self, Q: Tensor, *, name: str) -> None:
        """Raise unless every `Q` is a rotation, and say what is wrong with it."""
        self.check_tensor(Q, name=name)
        if Q.is_meta:
            return
        reflection = determinant(Q) < 0
        unitary = unitarity_defect(Q) <= self.tolerance(Q.dtype)
        if reflection.any() and unitary.all():
            raise ValueError(
                f"`{name}` must have determinant 1 to be a point of {self}; got "
                f"determinant -1 ({int(reflection.sum())} of {reflection.numel()} "
                f"matrices). Negate a column, or use `O({self.n})`, which has both "
                f"determinants."
            )
        super().check(Q, name=name)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Samples of the Haar measure."""
        return flip_to_positive_determinant(
            haar_frame(gaussian_of(self, batch, options))
        )


@dataclass(frozen=True)
class O(AbstractOrthogonal):  # noqa: E742 - the name that every textbook gives it
    r"""Orthogonal group: real $Q^T Q = I$ with determinant $+1$ or $-1$.

    $$ \mathfrak{o}(n) = \mathfrak{so}(n), \qquad \dim = n (n-1) / 2. $$

    It has two components, the rotations and the reflections. Every retraction, and
    every weight with coordinates around a base, stays in the component in which it
    started. A square real weight lives here.

    Args:
        n: size of the matrices.
    """

    is_connected = False

    def log(self, Q: Tensor, P: Tensor) -> Tensor:
        r"""$Q \log(Q^T P)$, if both points are in the same component."""
        try:
            return super().log(Q, P)
        except ValueError:
            self._check_component(Q, P)
            raise

    def nearest(self, X: Tensor) -> Tensor:
        """The polar factor, which keeps the sign of the determinant."""
        return polar(X)

    def defect(self, Q: Tensor) -> Tensor:
        r"""$\lVert Q^T Q - I \rVert_F$."""
        return unitarity_defect(Q)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Samples of the Haar measure: rotations and reflections are equally likely."""
        return haar_frame(gaussian_of(self, batch, options))

    def _check_component(self, Q: Tensor, P: Tensor) -> None:
        apart = determinant(Q.mT @ P) < 0
        if apart.any():
            raise ValueError(
                f"`P` must be in the component of `Q`; got determinants of opposite "
                f"signs ({int(apart.sum())} of {apart.numel()} pairs), which no "
                f"geodesic joins. Negate one column of `P`."
            )


def gaussian_of(group: AbstractGroup, batch: tuple[int, ...], options: Any) -> Tensor:
    """Gaussian matrices of the group's shape, real or complex like its points."""
    return gaussian(
        batch,
        group.shape,
        generator=options.pop("generator", None),
        dtype=group.dtype(options.pop("dtype", None)),
        device=options.pop("device", None),
        **options,
    )
