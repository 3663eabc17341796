"""The compact symplectic group: unitary matrices over the quaternions."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry._orthonormal import identity, newton_schulz, unitarity_defect
from isometry._torch import is_fake
from isometry.groups._basis import gaussian
from isometry.groups._group import AbstractClassicalGroup, lower_triangle
from isometry.groups._group_log import with_derivative
from isometry.groups._maps import Cayley, Exp, Pade, Polar
from isometry.linalg import logm_unitary, polar, skew
from isometry.linalg._skew import skew_eigh

# Angles near pi or -pi get their signs from `Sp._sign`. `_largest_gap` chooses which
# distance still counts as near, between these two numbers. Smaller numbers would work
# too.
_NEAR_PI = (0.05, 0.1)


@dataclass(frozen=True)
class Sp(AbstractClassicalGroup):
    r"""Compact symplectic group: unitary $Q$, $2n \times 2n$, with $Q^T J Q = J$.

    $$ J = \begin{pmatrix} 0 & -I \\ I & 0 \end{pmatrix}, \qquad
       \mathfrak{sp}(n) = \left\{ \begin{pmatrix} P & -\bar S \\ S & \bar P
       \end{pmatrix} : P^H = -P,\ S^T = S \right\}, \qquad \dim = n (2n + 1). $$

    These matrices represent unitary $n \times n$ matrices of quaternions; Sp(1) =
    SU(2). Only the left half of the coordinates is read, and only the lower triangle of
    each of its two blocks.

    Args:
        n: half the size of the matrices.
    """

    is_complex = True
    maps = (Exp, Cayley, Pade, Polar)

    @property
    def size(self) -> int:
        """Twice `n`."""
        return 2 * self.n

    @property
    def dimension(self) -> int:
        """Number of independent real numbers: n^2 in P, and n (n + 1) in S."""
        return self.n * (2 * self.n + 1)

    def algebra(self, X: Tensor) -> Tensor:
        """Element of the algebra, from the lower triangles of two blocks of `X`.

        P is computed from the upper left block, and S from the lower left block.
        """
        n = self.n
        L = X[..., n:, :n].tril()
        S = L + L.tril(-1).mT
        return _quaternionic(skew(X[..., :n, :n]), S)

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """The lower triangles of P, with the diagonal divided by i, and of S."""
        n = self.n
        left = [lower_triangle(A[..., :n, :n]), A[..., n:, :n].tril()]
        return torch.nn.functional.pad(torch.cat(left, -2), (0, n))

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The quaternionic matrix closest to the skew-Hermitian part of `X`."""
        return self._quaternionic_part((X - X.mH) / 2)

    def algebra_log(self, Q: Tensor) -> Tensor:
        r"""The principal logarithm, except for the signs of angles near $\pi$.

        The result $A$ is in sp(n). For $\theta$ near $\pi$, $e^{i\theta}$ and
        $e^{-i\theta}$ are nearly equal, so rounding mixes their eigenvectors, and the
        principal logarithm may not be in the algebra. Take the quaternionic subspace
        spanned by the eigenvectors with angles near $\pm\pi$. On it, $Q = -e^L$ with a
        small $L$, and $A = L + i \pi s$. Here $s$ is the matrix sign of $iL$ or, where
        $iL$ is zero, of any other element of $i \mathfrak{sp}(n)$.
        """
        with torch.no_grad():
            A = self._quaternionic_log(Q)
        return self.algebra_projection(with_derivative(Q, A))

    def _quaternionic_log(self, Q: Tensor) -> Tensor:
        """The logarithm that `algebra_log` defines, without its derivative."""
        A = logm_unitary(Q)
        theta, V, finite = skew_eigh(A)
        border = (theta.abs() > _largest_gap(theta))[..., None, :]
        if not is_fake(A) and not border.any():
            return A
        outer, inner = torch.where(border, V, 0), torch.where(border, 0, V)
        inside = (inner * (1j * theta)[..., None, :]) @ inner.mH
        # projection onto the quaternionic subspace spanned by the eigenvectors with
        # angles near pi or -pi
        Pi = self._quaternionic_part(outer @ outer.mH)
        eye = identity(Q)
        exp_L = eye - Pi - Pi @ torch.where(finite, Q, eye) @ Pi
        L = self.algebra_projection(logm_unitary(newton_schulz(exp_L)))
        log = inside + L + 1j * math.pi * self._sign(L, outer)
        return torch.where(border.any(-1, keepdim=True), log, A)

    def _sign(self, L: Tensor, frame: Tensor) -> Tensor:
        """Hermitian s in i sp(n): sign(iL) on the span of `frame`, and 0 elsewhere.

        Where iL is zero up to rounding, the tiny matrix `generic` determines the signs.
        """
        generic = torch.finfo(L.dtype).eps * _generic(self.n).to(L)
        M = frame.mH @ (1j * L + generic) @ frame
        eigenvalues, W = torch.linalg.eigh((M + M.mH) / 2)
        V = frame @ W
        s = (V * eigenvalues.sgn()[..., None, :]) @ V.mH
        s = 1j * self.algebra_projection(-1j * s)
        # The projection moves the eigenvalues of s away from 1 and -1. Each pass of the
        # loop squares their error.
        for _ in range(5):
            s = s + (s - s @ s @ s) / 2
        return s

    def torus(self, theta: Tensor) -> Tensor:
        r"""$\operatorname{diag}(i \theta, -i \theta)$."""
        return torch.diag_embed(1j * torch.cat([theta, -theta], -1))

    def nearest(self, X: Tensor) -> Tensor:
        """The polar factor of the quaternionic part."""
        return self._quaternionic_part(polar(self._quaternionic_part(X)))

    def polish(self, Q: Tensor) -> Tensor:
        """One Newton-Schulz step on the quaternionic part."""
        return self._quaternionic_part(newton_schulz(self._quaternionic_part(Q)))

    def defect(self, Q: Tensor) -> Tensor:
        r"""$\lVert Q^H Q - I \rVert_F$ or, if larger, $\lVert Q^T J Q - J \rVert_F$."""
        eye = identity(Q[..., : self.n])
        J = _quaternionic(torch.zeros_like(eye), eye)
        form = torch.linalg.matrix_norm(Q.mT @ J @ Q - J)
        return torch.maximum(unitarity_defect(Q), form)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Samples from the Haar measure: the points nearest to Gaussian matrices."""
        return self.nearest(self.gaussian(*batch, **options))

    def _quaternionic_part(self, X: Tensor) -> Tensor:
        """The quaternionic matrix closest to `X`."""
        n = self.n
        P = (X[..., :n, :n] + X[..., n:, n:].conj()) / 2
        S = (X[..., n:, :n] - X[..., :n, n:].conj()) / 2
        return _quaternionic(P, S)


def _quaternionic(P: Tensor, S: Tensor) -> Tensor:
    top = torch.cat([P, -S.conj()], -1)
    bottom = torch.cat([S, P.conj()], -1)
    return torch.cat([top, bottom], -2).resolve_conj()


def _largest_gap(theta: Tensor) -> Tensor:
    r"""The middle of the largest gap between the $|\theta|$ in an interval below $\pi$.

    `_NEAR_PI` gives the ends of the interval, which count as values of $|\theta|$. The
    result is the border between the angles near $\pm\pi$ and the others. If the border
    were a fixed number, rounding could put $\theta$ on one side and $-\theta$ on the
    other, or separate two equal angles, whose eigenvectors are mixed. Then the
    eigenvectors on one side would not span a quaternionic subspace.
    """
    low, high = (math.pi - distance for distance in reversed(_NEAR_PI))
    ascending = theta.abs().clamp(low, high).sort(-1).values
    ends = torch.nn.functional.pad(ascending, (1, 0), value=low)
    ends = torch.nn.functional.pad(ends, (0, 1), value=high)
    gaps = ends.diff(dim=-1)
    index = gaps.argmax(-1, keepdim=True)
    return ends.gather(-1, index) + gaps.gather(-1, index) / 2


def _generic(n: int) -> Tensor:
    """A random Hermitian element of i sp(n), which is in general position."""
    X = gaussian(2 * n, 2 * n, dtype=torch.complex128, seed=1)
    return -1j * Sp(n).algebra_projection(X)
