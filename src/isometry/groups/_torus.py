"""The torus: independent phases."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry._checks import nan_unless_finite
from isometry.groups._group import AbstractClassicalGroup
from isometry.groups._maps import AbstractRetraction
from isometry.groups._orthogonal import gaussian_of


@dataclass(frozen=True)
class Torus(AbstractClassicalGroup):
    r"""Diagonal unitary matrices, $\operatorname{diag}(e^{i \theta})$.

    This group is abelian and has dimension $n$. Its exponential is a homomorphism, so
    gradient descent through it is Riemannian gradient descent.

    Args:
        n: size of the matrices.
    """

    is_complex = True
    maps = (AbstractRetraction,)

    @property
    def dimension(self) -> int:
        """Number of phases."""
        return self.n

    @property
    def rank(self) -> int:
        """Number of phases."""
        return self.n

    def algebra(self, X: Tensor) -> Tensor:
        """The diagonal of `X`: its real parts are the angles."""
        return torch.diag_embed(1j * X.diagonal(dim1=-2, dim2=-1).real)

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """The angles on the diagonal."""
        return torch.diag_embed(A.diagonal(dim1=-2, dim2=-1).imag).to(A.dtype)

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The imaginary part of the diagonal."""
        return torch.diag_embed(1j * X.diagonal(dim1=-2, dim2=-1).imag)

    def algebra_log(self, Q: Tensor) -> Tensor:
        r"""The angles in $(-\pi, \pi]$."""
        angles = Q.diagonal(dim1=-2, dim2=-1).angle()
        return torch.diag_embed(1j * angles) + nan_unless_finite(Q)

    def torus(self, theta: Tensor) -> Tensor:
        r"""$\operatorname{diag}(i \theta)$."""
        return torch.diag_embed(1j * theta)

    def nearest(self, X: Tensor) -> Tensor:
        """The phases of the diagonal; a zero gets phase 1."""
        diagonal = X.diagonal(dim1=-2, dim2=-1)
        phases = torch.where(diagonal == 0, 1, diagonal.sgn())
        return torch.diag_embed(phases) + nan_unless_finite(X)

    def polish(self, Q: Tensor) -> Tensor:
        """Same as `nearest`."""
        return self.nearest(Q)

    def defect(self, Q: Tensor) -> Tensor:
        """The distance to `nearest`."""
        return torch.linalg.matrix_norm(Q - self.nearest(Q))

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Independent uniform phases."""
        return self.nearest(gaussian_of(self, batch, options))
