"""The compact symplectic group: unitary matrices over the quaternions."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from isometry._checks import check_square
from isometry._orthonormal import (
    identity,
    newton_schulz,
    unitarity_defect,
    unitary_bound,
)
from isometry._torch import is_fake, outside_graphs, refuse_nested_forward_mode
from isometry.groups._ambient import fixed_gaussian
from isometry.groups._group import AbstractClassicalGroup
from isometry.groups._maps import Cayley, Exp, Pade, Polar
from isometry.linalg import logm_unitary, polar, skew
from isometry.linalg._logm import Logm, QuarterTurn, principal
from isometry.linalg._skew import lower_triangle


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
        """The lower triangles of P and S, with the diagonal of P divided by i."""
        n = self.n
        left = [lower_triangle(A[..., :n, :n]), A[..., n:, :n].tril()]
        return torch.nn.functional.pad(torch.cat(left, -2), (0, n))

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The quaternionic matrix closest to the skew-Hermitian part of `X`."""
        return self._quaternionic_part((X - X.mH) / 2)

    def algebra_log(self, Q: Tensor) -> Tensor:
        r"""The principal logarithm, except for the signs of angles near $\pi$.

        The result is in sp(n). For $\theta$ near $\pi$, $e^{i\theta}$ and
        $e^{-i\theta}$ are nearly equal, so rounding mixes their eigenvectors, and the
        principal logarithm may not be in the algebra. `_quarter_turn` chooses the signs
        of these angles such that the result is in the algebra.
        """
        check_square(Q, name="Q")
        refuse_nested_forward_mode("algebra_log")
        # the signs depend on the numbers, which fake tensors do not have
        A = logm_unitary(Q) if is_fake(Q) else _logarithm(Q, self._quarter_turn)
        return self.algebra_projection(A)

    def _quarter_turn(self, S: Tensor, W: Tensor) -> Tensor:
        r"""Skew unitary $J$ with $S = J |S|$, such that $W J W^H$ is in sp(n).

        $S$ is the skew part of a point, restricted to the span of the orthonormal
        columns of $W$, and $|S| = (S^H S)^{1/2}$. The matrix $W S W^H$ must be in
        sp(n). On vectors that $S$ maps to zero, up to rounding, the signs of the
        eigenvalues of $S$ would be random, so a generic element of the algebra decides
        the signs of the eigenvalues of $J$ there.
        """
        eps = torch.finfo(S.dtype).eps
        # W S W^H is in sp(n) only up to rounding errors. Project it, so that these
        # errors do not decide the sign of any eigenvalue below.
        A = self.algebra_projection(W @ S @ W.mH)
        J = _generic(self.n).to(S)
        # Add a multiple of J to A, and make the next J from the signs of the
        # eigenvalues of the sum. The first J is generic. Some of its eigenvalues are
        # small, so only a large multiple is above the rounding errors. But a large
        # multiple also changes signs where S is not zero. So do this twice: the second
        # J has no eigenvalues except i and -i, and a small multiple of it is enough.
        for size in (1000 * eps, 8 * eps):
            M = W.mH @ (-1j * (A + size * J)) @ W
            sines, V = torch.linalg.eigh((M + M.mH) / 2)
            V = W @ V
            J = self.algebra_projection((V * (1j * sines.sgn())[..., None, :]) @ V.mH)
        # The projection moves the eigenvalues of J away from i and -i. Each pass of the
        # loop squares their distance from i and -i, up to a factor.
        for _ in range(5):
            J = J + (J + J @ J @ J) / 2
        return W.mH @ J @ W

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

    def _quaternionic_part(self, X: Tensor) -> Tensor:
        """The quaternionic matrix closest to `X`.

        A matrix is quaternionic if it has the form [[P, -conj(S)], [S, conj(P)]].
        """
        n = self.n
        P = (X[..., :n, :n] + X[..., n:, n:].conj()) / 2
        S = (X[..., n:, :n] - X[..., :n, n:].conj()) / 2
        return _quaternionic(P, S)


def _quaternionic(P: Tensor, S: Tensor) -> Tensor:
    top = torch.cat([P, -S.conj()], -1)
    bottom = torch.cat([S, P.conj()], -1)
    return torch.cat([top, bottom], -2).resolve_conj()


# a compiler would trace the random element, which Dynamo in torch 2.7 cannot
@outside_graphs
def _logarithm(Q: Tensor, turn: QuarterTurn) -> Tensor:
    return cast("Tensor", _Log.apply(Q, turn))


class _Log(Logm):
    """The logarithm, with a function that chooses the signs of angles near pi."""

    @staticmethod
    def forward(Q: Tensor, turn: QuarterTurn) -> Tensor:
        return principal(Q, unitary_bound(Q.shape[-1], Q.dtype), turn)


def _generic(n: int) -> Tensor:
    """A random element of sp(n), which is in general position."""
    X = fixed_gaussian(2 * n, 2 * n, dtype=torch.complex128, seed=1)
    return Sp(n).algebra_projection(X)
