"""The Stiefel manifold: tall matrices with orthonormal columns."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isometry._checks import check_angles, check_size
from isometry.groups._frames import AbstractFrame, AmbientFrame, TallFrame
from isometry.groups._manifold import EXP, AbstractUnrestricted, Base
from isometry.groups._maps import AbstractRetraction, RetractionLike
from isometry.groups._nearest import normal_part
from isometry.groups._orthogonal import O
from isometry.groups._stiefel_log import stiefel_log
from isometry.groups._unitary import U
from isometry.linalg._norms import spectral_norm


@dataclass(frozen=True)
class Stiefel(AbstractUnrestricted):
    r"""Matrices with orthonormal columns, $Q^H Q = I_k$, with the canonical metric.

    $$ \langle E, F \rangle_Q = \operatorname{Re} \operatorname{tr}
       E^H \bigl(I - \tfrac12 Q Q^H\bigr) F, \qquad
       \dim_{\mathbb{R}} = nk - k(k+1)/2, \quad \dim_{\mathbb{C}} = 2nk - k^2. $$

    The first dimension is for real matrices, and the second for complex matrices; both
    count real degrees of freedom.

    The manifold is the quotient of $O(n)$ or $U(n)$, with half of the group's metric,
    by the subgroup that leaves the first $k$ columns unchanged. Square matrices are
    refused: they form the groups $O(n)$ and $U(n)$, which have a different metric and
    different coordinates. With the maps of this package, no computation uses
    $n \times n$ matrices unless $n \le 2k$.

    Args:
        n: number of rows.
        k: number of columns, fewer than `n`.
        is_complex: whether the entries are complex.

    References:
        [EAS98] sections 2.2 and 2.4.
    """

    n: int
    k: int
    is_complex: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_size(self.n)
        if not isinstance(self.k, int) or not 0 <= self.k < self.n:
            group = "U" if self.is_complex else "O"
            raise ValueError(
                f"`k` must be at least 0 and below n = {self.n}; got {self.k}. Square "
                f"matrices are the group `{group}({self.n})`. Orthonormal rows are the "
                f"transposed points of Stiefel(k, n)."
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
        """The first k columns of the rotation with the angles `theta`.

        Angles that move only other columns have no effect.
        """
        check_angles(theta, self.rank)
        # A real rotation turns the planes of the axes (1, 2), (3, 4), and so on. So its
        # first k columns are the first k columns of a smaller rotation, padded with
        # zeros. The size of the smaller rotation is k, or k + 1 if k is odd. In the
        # complex case the matrix is diagonal, so size k is enough.
        k = self.k
        group = U(k) if self.is_complex else O(k + k % 2)
        columns = group.from_angles(theta[..., : group.rank])[..., :k]
        return torch.nn.functional.pad(columns, (0, 0, 0, self.n - group.size))

    def project(self, Q: Tensor, X: Tensor) -> Tensor:
        r"""$X - Q \operatorname{sym}(Q^H X)$, where sym denotes the Hermitian part."""
        return X - normal_part(Q, X)

    def inner(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """The canonical metric."""
        along = (Q.mH @ E).conj() * (Q.mH @ F)
        return (E.conj() * F).real.sum((-2, -1)) - along.real.sum((-2, -1)) / 2

    def gradient(self, Q: Tensor, G: Tensor) -> Tensor:
        r"""Gradient in the canonical metric: $G - Q G^H Q$."""
        return G - Q @ (G.mH @ Q)

    def retract(self, Q: Tensor, E: Tensor, retraction: RetractionLike = EXP) -> Tensor:
        r"""$\phi(A) Q$ with the skew $A$ that moves $Q$ along $E$.

        Here $\phi$ is the retraction at the identity, and `expm_tall` defines $A$. The
        maps polar and qr instead return the orthonormal factor of $Q + E$. They differ
        from exp by terms of second order in $E$. Polar approximates the geodesics of
        another metric, the metric of the ambient space.
        """
        return self.resolve(retraction).tall(E, Q)

    def step(self, Q: Tensor, E: Tensor, retraction: AbstractRetraction) -> Tensor:
        """Like `retract`, for optimizers: the result need not be differentiable.

        Because no gradient is needed, polar uses no singular value decomposition, and
        qr uses Householder's decomposition only for steps above a radian.
        """
        return retraction.step(Q, E)

    def frame(self) -> AbstractFrame:
        """`TallFrame`, which uses no n x n matrices; `AmbientFrame` if n <= 2k."""
        return TallFrame(self) if self.n > 2 * self.k else AmbientFrame(self)

    def log(self, Q: Tensor, P: Tensor) -> Tensor:
        """The logarithm, by an iteration on matrices with at most 2k rows.

        It is the velocity of the shortest geodesic from `Q` to `P` if the distance
        between the points is below about 0.9 pi.
        """
        self.check_tensors(Q=Q, P=P)
        return stiefel_log(Q, P)

    def curvature(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        r"""Sectional curvature of the plane through $E$ and $F$.

        It is $\frac14 \lVert [X, Y]_m \rVert^2 + \lVert [X, Y]_h \rVert^2$ if $E$ and
        $F$ are orthonormal. $X$ and $Y$ are the skew matrices that move $Q$ along $E$
        and $F$, with $\lVert A \rVert^2 = \frac12 \operatorname{tr} A^H A$. The
        subscripts denote parts of a skew matrix: the isotropy algebra $h$ is the block
        that leaves $Q$ fixed, and $m$ is its orthogonal complement.

        References:
            [ONe83] chapter 11, corollary 11 for normal homogeneous spaces.
        """
        Omega_E, Omega_F = Q.mH @ E, Q.mH @ F
        E_perp, F_perp = E - Q @ Omega_E, F - Q @ Omega_F
        S = E_perp.mH @ F_perp
        # the two blocks of [X, Y] that form its part in m: along Q, and orthogonal to Q
        along = Omega_E @ Omega_F - Omega_F @ Omega_E - S + S.mH
        across = E_perp @ Omega_F - F_perp @ Omega_E
        moving = _squared_norm(along) / 2 + _squared_norm(across)
        # half the squared norm of the n x n matrix E_perp F_perp^H - F_perp E_perp^H,
        # which is not formed
        grams = (E_perp.mH @ E_perp) * (F_perp.mH @ F_perp).mT - S * S.mT
        isotropy = grams.real.sum((-2, -1))
        return (moving / 4 + isotropy) / self._area(Q, E, F)

    def border_distance(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""$\pi$ minus the spectral norm of the skew matrix that moves `Q` along `E`.

        This distance can be differentiated only once, and only in reverse mode.
        """
        return math.pi - spectral_norm(_skew_in_span(Q, E))

    def point(self, X: Tensor, B: Base, retraction: RetractionLike = EXP) -> Tensor:
        """Point that the retraction reaches from `B` along the tangent part of `X`."""
        return self.resolve(retraction).tall(X, B)


def _squared_norm(X: Tensor) -> Tensor:
    return (X.conj() * X).real.sum((-2, -1))


def _skew_in_span(Q: Tensor, E: Tensor) -> Tensor:
    """The skew matrix that moves `Q` along `E`, in a basis of the span of `Q` and `E`.

    The basis is treated as a constant. When `Q` and `E` change, the singular vectors of
    the skew matrix leave the span of this basis, but that changes the singular values
    only to second order. So their first derivative is correct, and higher derivatives
    are not.
    """
    with torch.no_grad():
        frame = torch.linalg.qr(torch.cat([Q, E], -1)).Q
    along = Q.mH @ E
    # With Omega = (along - along^H) / 2, `half` is E - Q along + Q Omega / 2, and the
    # skew matrix A of `expm_tall` is half Q^H - Q half^H.
    half = E - Q @ ((along + along.mH) / 4 + along / 2)
    P = frame.mH @ half @ (Q.mH @ frame)
    return _Once.apply(P - P.mH)


class _Once(torch.autograd.Function):
    """The identity map, which raises an error in a second derivative."""

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
