"""The Stiefel manifold: tall matrices with orthonormal columns."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isometry.groups._frames import AbstractFrame, AmbientFrame, TallFrame
from isometry.groups._manifold import EXP, AbstractManifold, Retraction, check_size
from isometry.groups._maps import AbstractMap, AbstractRetraction
from isometry.groups._maps.factors import q_factor
from isometry.groups._nearest import spectral_norm
from isometry.groups._stiefel_log import stiefel_log
from isometry.linalg import polar
from isometry.linalg._orthonormal import newton_schulz, unitarity_defect


@dataclass(frozen=True)
class Stiefel(AbstractManifold):
    r"""Matrices with orthonormal columns, $Q^H Q = I_k$, with the canonical metric.

    $$ \langle E, F \rangle_Q = \operatorname{Re} \operatorname{tr}
       E^H \bigl(I - \tfrac12 Q Q^H\bigr) F, \qquad
       \dim_{\mathbb{R}} = nk - k(k+1)/2, \quad \dim_{\mathbb{C}} = 2nk - k^2. $$

    This is the quotient of $O(n)$ or $U(n)$, with half of the group's metric, by the
    subgroup that fixes the first $k$ columns. Square matrices are refused: they form
    the groups $O(n)$ and $U(n)$, which have another metric and other coordinates. No
    computation uses $n \times n$ matrices unless $n \le 2k$.

    Args:
        n: number of rows.
        k: number of columns, fewer than `n`.
        is_complex: whether the entries are complex.

    References:
        [EAS98] sections 2.2 and 2.4.
    """

    n: int
    k: int
    is_complex: bool = False
    is_free = True
    maps = (AbstractMap,)

    def __post_init__(self) -> None:
        check_size(self.n)
        if not isinstance(self.k, int) or not 0 <= self.k <= self.n:
            raise ValueError(
                f"`k` must be between 0 and n = {self.n}; got {self.k}. "
                f"Orthonormal rows are the transposed points of Stiefel(k, n)."
            )
        if self.k == self.n:
            group = "U" if self.is_complex else "O"
            raise ValueError(
                f"`k` must be below n = {self.n}; got {self.k}. Square matrices are "
                f"the group `{group}({self.n})`."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one point."""
        return (self.n, self.k)

    @property
    def dimension(self) -> int:
        """Number of real entries, minus the number of conditions on the columns."""
        n, k = self.n, self.k
        return 2 * n * k - k * k if self.is_complex else n * k - k * (k + 1) // 2

    @property
    def rank(self) -> int:
        """Number of angles that `from_angles` takes."""
        return self.n if self.is_complex else self.n // 2

    def from_angles(self, theta: Tensor) -> Tensor:
        """The first columns of the rotation with these angles."""
        # computed without n x n matrices
        n, k = self.shape
        if self.is_complex:
            phases = torch.polar(torch.ones_like(theta), theta)[..., :k]
            return torch.nn.functional.pad(torch.diag_embed(phases), (0, 0, 0, n - k))
        # planes of two rows each; if n is odd, the last row stays where it is
        planes = min((k + 1) // 2, n // 2)
        theta = theta[..., :planes]
        Q = torch.eye(n, k, dtype=theta.dtype, device=theta.device).repeat(
            *theta.shape[:-1], 1, 1
        )
        even = 2 * torch.arange(planes, device=theta.device)
        Q[..., even, even] = theta.cos()
        Q[..., even + 1, even] = theta.sin()
        # the planes with two columns; if k is odd, the last plane has only one column
        both = even[even + 1 < k]
        Q[..., both, both + 1] = -theta[..., : len(both)].sin()
        Q[..., both + 1, both + 1] = theta[..., : len(both)].cos()
        return Q

    def project(self, Q: Tensor, X: Tensor) -> Tensor:
        r"""$X - Q \operatorname{sym}(Q^H X)$."""
        S = Q.mH @ X
        return X - Q @ ((S + S.mH) / 2)

    def inner(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """The canonical metric."""
        along = (Q.mH @ E).conj() * (Q.mH @ F)
        return (E.conj() * F).real.sum((-2, -1)) - along.real.sum((-2, -1)) / 2

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        r"""$G - Q G^H Q$."""
        return G - Q @ (G.mH @ Q)

    def retract(self, Q: Tensor, E: Tensor, retraction: Retraction = EXP) -> Tensor:
        r"""$\phi(A) Q$ with the skew $A$ that moves $Q$ along $E$.

        The maps polar and qr instead take the factors of $Q + E$. They differ from exp
        in the second order in $E$; polar approximates the geodesics of another metric,
        the metric of the ambient space.
        """
        return self.resolve(retraction).tall(E, Q)

    def step(self, Q: Tensor, E: Tensor, retraction: AbstractRetraction) -> Tensor:
        """The point that `retract` reaches, without a gradient.

        So polar needs no decomposition, and qr needs one only for steps above a radian.
        """
        if retraction.is_factor:
            return retraction.factor(Q, E)
        return retraction.tall(E, Q)

    def frame(self) -> AbstractFrame:
        """A frame that computes without n x n matrices unless n <= 2k."""
        return TallFrame(self) if self.n > 2 * self.k else AmbientFrame(self)

    def log(self, Q: Tensor, P: Tensor) -> Tensor:
        """The logarithm, by iteration in 2k x 2k matrices.

        The geodesic along it is the shortest if the distance between the points is
        below about 0.9 pi.
        """
        self.check_tensors(Q=Q, P=P)
        return stiefel_log(Q, P)

    def curvature(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        r"""$\frac14 \lVert [X, Y]_m \rVert^2 + \lVert [X, Y]_h \rVert^2$.

        This is the formula for orthonormal tangent vectors. $X$ and $Y$ are the skew
        matrices that move $Q$ along $E$ and $F$. The isotropy algebra $h$ is the block
        that leaves $Q$ fixed, and $m$ is its complement.

        References:
            [ONe83] chapter 11, corollary 11 for normal homogeneous spaces.
        """
        # X and Y of the formula are L M L^H and L N L^H, with L = (Q, E_perp, F_perp).
        # An orthonormal basis of the columns of L is not a smooth function of E and F
        # where these columns are dependent. The Gram matrix of L is, and it suffices.
        E_perp, F_perp = E - Q @ (Q.mH @ E), F - Q @ (Q.mH @ F)
        L = torch.cat([Q, E_perp, F_perp], -1)
        gram = L.mH @ L
        M, N = _generator(Q, E, slot=1), _generator(Q, F, slot=2)
        bracket = M @ gram @ N - N @ gram @ M
        # the block of `bracket` without the columns of Q leaves Q fixed
        k = self.k
        isotropy = _half_square(bracket[..., k:, k:], gram[..., k:, k:])
        whole = _half_square(bracket, gram)
        ee, ff, ef = (self.inner(Q, *pair) for pair in ((E, E), (F, F), (E, F)))
        return ((whole - isotropy) / 4 + isotropy) / (ee * ff - ef * ef)

    def border_distance(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""$\pi$ minus the norm of the skew matrix that moves `Q` along `E`.

        This distance can be differentiated once.
        """
        return math.pi - spectral_norm(_compressed(Q, E))

    def point(
        self, X: Tensor, B: Tensor | None, retraction: Retraction = EXP
    ) -> Tensor:
        """The retraction along `X`, whose part normal to the manifold has no effect."""
        return self.resolve(retraction).tall(X, B)

    def nearest(self, X: Tensor) -> Tensor:
        """The polar factor."""
        return polar(X)

    def polish(self, Q: Tensor) -> Tensor:
        """One Newton-Schulz step, which removes the rounding error."""
        return newton_schulz(Q)

    def defect(self, Q: Tensor) -> Tensor:
        r"""$\lVert Q^H Q - I \rVert_F$."""
        return unitarity_defect(Q)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Uniform points: Q factors of Gaussian matrices."""
        return q_factor(self.gaussian(*batch, **options))


def _generator(Q: Tensor, E: Tensor, *, slot: int) -> Tensor:
    r"""$M$ with $E_\perp Q^H - Q E_\perp^H + Q \Omega Q^H = L M L^H$, $3k \times 3k$.

    $L$ has three blocks of columns: $Q$ is block 0, and $E_\perp$ is block `slot`.
    """
    k = Q.shape[-1]
    Omega = Q.mH @ E
    M = torch.nn.functional.pad((Omega - Omega.mH) / 2, (0, 2 * k, 0, 2 * k))
    here = torch.zeros(3, 3, dtype=Q.dtype, device=Q.device)
    here[slot, 0], here[0, slot] = 1.0, -1.0
    return M + torch.kron(here, torch.eye(k, dtype=Q.dtype, device=Q.device))


def _half_square(K: Tensor, gram: Tensor) -> Tensor:
    r"""$\frac12 \lVert L K L^H \rVert_F^2$ from the Gram matrix of $L$."""
    return ((gram @ K @ gram).conj() * K).real.sum((-2, -1)) / 2


def _compressed(Q: Tensor, E: Tensor) -> Tensor:
    """The skew matrix that moves `Q` along `E`, in a basis of the span of `Q` and `E`.

    The basis counts as a constant: the singular vectors stay in the span only to first
    order, so only the first derivative of the singular values is right.
    """
    with torch.no_grad():
        frame = torch.linalg.qr(torch.cat([Q, E], -1)).Q
    along = Q.mH @ E
    # the skew matrix is P - P^H with P = half Q^H, as in `expm_tall`
    half = E - Q @ ((along + along.mH) / 4 + along / 2)
    P = frame.mH @ half @ (Q.mH @ frame)
    return _Once.apply(P - P.mH)


class _Once(torch.autograd.Function):
    """The identity map, whose second derivative raises an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(X: Tensor) -> Tensor:
        return X.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Save nothing."""

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, G: Tensor) -> Tensor:
        return G
