"""Steps on the Stiefel manifold as rotations of rank 2k, without n x n matrices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isometry._backend.memory import recycled
from isometry.groups._frames import AbstractFrame, Scale, settle
from isometry.groups._maps import AbstractRetraction

if TYPE_CHECKING:
    from isometry.groups._stiefel import Stiefel

# radians, about. The manifold itself makes longer steps
_LONG = 1.0


class TallFrame(AbstractFrame):
    r"""Tangent vectors $E = Q\,\Omega + E_\perp$ as pairs of $\Omega$ and $E_\perp$.

    Here $\Omega^H = -\Omega$ and $Q^H E_\perp = 0$, and both are stacked in an array of
    $k + n$ rows. The skew matrix $A = E_\perp Q^H - Q E_\perp^H + Q \Omega Q^H$ moves
    $Q$ along $E$. With $Z = (Q, E_\perp)$ and $\varphi(x) = (e^x - 1)/x$,

    $$ P = e^A Q = Q + Z\, \varphi(J Z^H Z)\, J Z^H Q, \qquad
       J = \begin{pmatrix} \Omega & -I \\ I & 0 \end{pmatrix}. $$

    This is a rotation of $Q$ for any $Z$. So it does no harm that $Q^H E_\perp$ is zero
    only up to the rounding error of a gradient, which may be much larger than the step.
    Cayley and Pade use $r_m$ in place of the exponential. The manifold itself makes the
    steps of polar and qr, and steps of more than about a radian. Vectors are carried by

    $$ Q\,\Omega_F + F_\perp \mapsto P\,\Omega_F + (I - P P^H) F_\perp, $$

    that is, one part is translated and the other is projected.

    Entries of vectors at different points cannot be compared, so a vector has one
    square, as in `AmbientFrame`.

    Cost of a step that carries a momentum: seven products of $n k^2$, and some of
    $k^3$. It reads the norm from the device.
    """

    polish_every = 16

    def __init__(self, manifold: "Stiefel") -> None:
        self.manifold = manifold
        self.n, self.k = manifold.shape

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        r"""Gradient in the canonical metric: $\Omega = U - U^H$ with $U = Q^H G$."""
        U = torch.bmm(Q.mH, G)
        E = recycled((len(Q), self.n + self.k, self.k), Q)
        torch.sub(U, U.mH, out=E[:, : self.k])
        torch.baddbmm(G, Q, U, alpha=-1, out=E[:, self.k :])
        return self.reals(E)

    def square(self, V: Tensor) -> Tensor:
        r"""$\lVert E \rVert_F^2$ divided by the number of entries of $E$."""
        total = torch.linalg.vector_norm(V.flatten(1), dim=1).square_()
        mean = total.div_(V[0, self.k :].numel())
        return mean.view(-1, *[1] * (V.ndim - 1))

    def advance(
        self,
        Q: Tensor,
        V: Tensor,
        scale: Scale,
        carried: Sequence[Tensor],
        retraction: AbstractRetraction,
    ) -> tuple[Tensor, list[Tensor]]:
        """Move by a rotation, or by the manifold's retraction if the step is long."""
        # a rate may be a tensor, with another precision than the weight
        s = scale.view(-1, 1, 1).to(V) if isinstance(scale, Tensor) else scale
        Omega, E_perp = self._split(V)
        moved = None
        if not retraction.is_factor:
            moved = _rotate(Q, Omega, E_perp, s, retraction)
        if moved is None:
            E = torch.baddbmm(E_perp, Q, Omega).mul_(s)
            moved = self._by_manifold(Q, E, retraction), None
        P, along_V = moved
        for F in carried:
            F_perp = self._split(F)[1]
            # a momentum is often the direction itself
            along = along_V if F is V else None
            F_perp.baddbmm_(P, P.mH @ F_perp if along is None else along, alpha=-1)
        return P, list(carried)

    def _by_manifold(
        self, Q: Tensor, E: Tensor, retraction: AbstractRetraction
    ) -> Tensor:
        P = self.manifold.step(Q, E, retraction)
        return P if retraction.is_factor else settle(P, torch.linalg.matrix_norm(E))

    def _split(self, V: Tensor) -> tuple[Tensor, Tensor]:
        X = self.matrix(V)
        return X[:, : self.k], X[:, self.k :]


def _rotate(
    Q: Tensor, Omega: Tensor, E_perp: Tensor, s: Scale, retraction: AbstractRetraction
) -> tuple[Tensor, Tensor] | None:
    """The point `P` reached along `s` times a vector, and `P^H E_perp`.

    The result is None if the step is long or not finite.
    """
    k = Q.shape[-1]
    B, S = torch.bmm(Q.mH, E_perp), torch.bmm(E_perp.mH, E_perp)
    X = _coefficients(s * Omega, s * B, s * s * S, retraction)
    if X is None:
        return None
    C, D = X[:, :k], s * X[:, k:]
    P = torch.baddbmm(Q, Q, C, out=recycled(Q.shape, Q)).baddbmm_(E_perp, D)
    return P, B + X.mH @ torch.cat([B, s * S], -2)


def _coefficients(
    Omega: Tensor, B: Tensor, S: Tensor, retraction: AbstractRetraction
) -> Tensor | None:
    r"""$\varphi(M) R$ with $M = J Z^H Z$, $R = J Z^H Q$; None if the norm is large."""
    # these Frobenius norms bound the norms of Omega and E_perp
    bounds = torch.linalg.matrix_norm(Omega) + torch.linalg.matrix_norm(S).sqrt()
    norm = float(bounds.max())
    # written so that NaN counts as large
    if not norm < _LONG:
        return None
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device).expand_as(S)
    R = torch.cat([Omega - B.mH, eye], -2)
    M = torch.cat([R, torch.cat([Omega @ B - S, B], -2)], -1)
    return retraction.quotient(M, R, norm)
