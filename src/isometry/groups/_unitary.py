"""The unitary group U(n), the special unitary group SU(n), and the torus."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry._nan import nan_unless_finite
from isometry._orthonormal import newton_schulz, unit_vectors, unitarity_defect
from isometry.groups._derived import with_derivative
from isometry.groups._group import AbstractClassicalGroup, AbstractUnrestrictedGroup
from isometry.groups._maps import QR, AbstractRetraction, Exp, Polar
from isometry.groups._maps.factors import q_factor
from isometry.groups._nearest import determinant, turn_last_column
from isometry.linalg import logm_unitary, polar, skew
from isometry.linalg._skew import lower_triangle, skew_eigh


@dataclass(frozen=True)
class U(AbstractUnrestrictedGroup):
    r"""Unitary group: complex matrices with $Q^H Q = I$.

    $$ \mathfrak{u}(n) = \{ A \in \mathbb{C}^{n \times n} : A^H = -A \}, \qquad
       \dim = n^2. $$

    Args:
        n: size of the matrices.
    """

    is_complex = True

    @property
    def dimension(self) -> int:
        """Number of independent real numbers in a skew-Hermitian matrix."""
        return self.n**2


@dataclass(frozen=True)
class SU(AbstractClassicalGroup):
    r"""Special unitary group: complex $Q^H Q = I$ with determinant 1.

    $$ \mathfrak{su}(n) = \{ A : A^H = -A, \operatorname{tr} A = 0 \}, \qquad
       \dim = n^2 - 1. $$

    For such an $A$, the Cayley map and the Pade approximants need not have determinant
    1, so they are not retractions here.

    Args:
        n: size of the matrices.
    """

    is_complex = True
    maps = (Exp, Polar, QR)

    @property
    def dimension(self) -> int:
        """The dimension of U(n), minus one for the phase of the determinant."""
        return max(self.n**2 - 1, 0)

    def algebra(self, X: Tensor) -> Tensor:
        """Skew-Hermitian matrix `skew(X)`, made traceless."""
        return _traceless(skew(X))

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """The lower triangle of `A`, with the diagonal divided by i."""
        return lower_triangle(A)

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The skew-Hermitian part, made traceless."""
        return _traceless((X - X.mH) / 2)

    def algebra_log(self, Q: Tensor) -> Tensor:
        r"""The shortest traceless logarithm.

        The principal angles add up to $2 \pi k$. If $k > 0$, the $k$ largest angles are
        reduced by $2\pi$; if $k < 0$, the $-k$ smallest angles are raised by $2\pi$.
        """
        with torch.no_grad():
            A = self._shift_angles(logm_unitary(Q))
        return _traceless(with_derivative(Q, A))

    def _shift_angles(self, A: Tensor) -> Tensor:
        theta, V, _ = skew_eigh(A)
        turns = (theta.sum(-1, keepdim=True) / (2 * math.pi)).round()
        index = torch.arange(self.n, device=theta.device)
        # theta is in ascending order: lower the last `turns` angles by 2 pi, or raise
        # the first `-turns`, so that the angles sum to zero
        down = index >= self.n - turns
        up = index < -turns
        theta = theta - 2 * math.pi * (down.to(theta) - up.to(theta))
        log = (V * (1j * theta)[..., None, :]) @ V.mH
        return torch.where(turns[..., None] == 0, A, (log - log.mH) / 2)

    def torus(self, theta: Tensor) -> Tensor:
        r"""$\operatorname{diag}(i \theta)$, with the mean angle subtracted."""
        return _traceless(super().torus(theta))

    def algebra_retraction(self, A: Tensor, retraction: AbstractRetraction) -> Tensor:
        """The retraction at the identity, scaled to determinant 1 for polar and qr."""
        Q = retraction.at_identity(A)
        return Q if retraction.is_exponential else _unit_determinant(Q)

    def nearest(self, X: Tensor) -> Tensor:
        """The polar factor, divided by an n-th root of its determinant.

        The n-th root nearest to 1 is used. This is not exactly the point closest to
        `X`: the two differ to second order in the distance from `X` to the group.
        """
        return _unit_determinant(polar(X))

    def polish(self, Q: Tensor) -> Tensor:
        """One Newton-Schulz step, and then a scaling to determinant 1."""
        return _unit_determinant(newton_schulz(Q))

    def defect(self, Q: Tensor) -> Tensor:
        r"""The larger of $\lVert Q^H Q - I \rVert_F$ and $|\det Q - 1|$."""
        wrong_phase = (determinant(Q) - 1).abs()
        return torch.maximum(unitarity_defect(Q), wrong_phase)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Samples from the Haar measure."""
        # multiply the last column by a phase, so that the determinant is 1
        Q = turn_last_column(q_factor(self.gaussian(*batch, **options)))
        return self.polish(Q)


@dataclass(frozen=True)
class Torus(AbstractClassicalGroup):
    r"""Diagonal unitary matrices, $\operatorname{diag}(e^{i \theta})$.

    This group is abelian and has dimension $n$. Its exponential is a homomorphism, so
    gradient descent on the angles is Riemannian gradient descent.

    Args:
        n: size of the matrices.
    """

    is_complex = True
    maps = (AbstractRetraction,)

    @property
    def dimension(self) -> int:
        """Number of phases."""
        return self.n

    def algebra(self, X: Tensor) -> Tensor:
        """Diagonal matrix of i times the angles.

        The angles are the real parts of the diagonal of `X`.
        """
        return torch.diag_embed(1j * X.diagonal(dim1=-2, dim2=-1).real)

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """A diagonal matrix of the angles, in the dtype of `A`."""
        return torch.diag_embed(A.diagonal(dim1=-2, dim2=-1).imag).to(A.dtype)

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The diagonal of `X` without its real part, as a diagonal matrix."""
        return torch.diag_embed(1j * X.diagonal(dim1=-2, dim2=-1).imag)

    def algebra_log(self, Q: Tensor) -> Tensor:
        r"""Diagonal matrix of $i$ times the angles, which are from $-\pi$ to $\pi$."""
        angles = Q.diagonal(dim1=-2, dim2=-1).angle()
        return torch.diag_embed(1j * angles) + nan_unless_finite(Q)

    def nearest(self, X: Tensor) -> Tensor:
        """Diagonal matrix of the phases of the diagonal of `X`; a zero gets phase 1."""
        self.check_tensor(X, name="X")
        diagonal = X.diagonal(dim1=-2, dim2=-1)
        # not `diagonal.sgn()`, which may be infinite or NaN for a subnormal number
        pairs = torch.view_as_real(diagonal.resolve_conj())
        phases = torch.view_as_complex(unit_vectors(pairs))
        phases = torch.where(diagonal == 0, 1, phases)
        return torch.diag_embed(phases) + nan_unless_finite(X)

    def defect(self, Q: Tensor) -> Tensor:
        """The distance to `nearest`."""
        return torch.linalg.matrix_norm(Q - self.nearest(Q))


def _traceless(A: Tensor) -> Tensor:
    mean = A.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    return A - torch.diag_embed(mean.expand(A.shape[:-1]))


def _unit_determinant(Q: Tensor) -> Tensor:
    angle = determinant(Q).angle()[..., None, None]
    return Q * torch.exp(-1j * angle / max(Q.shape[-1], 1))
