"""The Cayley map and the Pade approximants of the exponential."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry._nan import nan_unless_finite
from isometry._operators import largest
from isometry._orthonormal import identity
from isometry.groups._maps.abstract import LONG_STEP, AbstractRetraction
from isometry.linalg import cayley, pade
from isometry.linalg._cayley import cayley_inverse
from isometry.linalg._pade import check_degree, pade_inverse
from isometry.linalg._pade_factors import pade_factors
from isometry.linalg._tall import tall_map


class AbstractRational(AbstractRetraction):
    r"""The diagonal Pade approximant $r_m$ of the exponential.

    $$ r_m(A) = \prod_j (I - u_j A + w_j A^2)^{-1} (I + u_j A + w_j A^2). $$

    `pade_factors` computes the numbers $u_j$ and $w_j$. Every factor is unitary if $A$
    is skew. The approximant agrees with the exponential to order $2m$, and is close to
    it up to norms of about $m$.
    """

    #: the degree m of r_m
    degree: int

    def tall(self, X: Tensor, B: Tensor | None = None) -> Tensor:
        r"""$Y = r_m(A) B$, factor by factor, without n x n matrices if $n > 2k$.

        If $n > 2k$, with $X_\perp$, $\Omega$ and $S$ as in `isometry.linalg.expm_tall`,

        $$ Y = B C + X_\perp D, \qquad \begin{pmatrix} C \\ D \end{pmatrix} =
           r_m \begin{pmatrix} \Omega & -S \\ I & 0 \end{pmatrix}
           \begin{pmatrix} I \\ 0 \end{pmatrix}. $$

        The error grows in proportion to $\lVert X \rVert$ or, if $X_\perp$ is nearly
        singular, to $\lVert X \rVert^2$. A matrix `X` that is not finite, or so large
        that no digit would be correct, gives NaN, for that matrix only. The last step,
        as in `expm_tall`, makes the columns orthonormal up to rounding: up to norm 100
        we measured $\lVert Y^H Y - I \rVert_F \le 2 k \varepsilon$ for all degrees, and
        $7 k \varepsilon$ for singular $X_\perp$ in single precision.

        Cost: seven products of $n k^2$; one of $(2k)^3$ if $m > 1$; and for each of the
        $\lceil m/2 \rceil$ factors, one inverse and one product of $(2k)^3$. If
        $n \le 2k$, these matrices are $n \times n$, and a factor takes up to two
        products. The host reads nothing from the device.
        """
        return tall_map(X, B, of_skew=self._columns, of_block=self._columns)

    def _columns(self, M: Tensor, count: int) -> Tensor:
        """The first columns of r_m(M), factor by factor.

        A single quotient of two polynomials would lose digits, because its terms range
        in size up to M^m. In float32, at norm 100 and from degree 5 on, hardly a digit
        would be left if X_perp is singular; see `tall` for X_perp.
        """
        eye = identity(M)
        M2 = M @ M if self.degree > 1 else torch.zeros_like(M)
        R = eye[..., :count]
        for u, w in pade_factors(self.degree):
            # not `solve`: torch 2.13 gets its nested derivatives wrong
            inverse = torch.linalg.inv_ex(eye + w * M2 - u * M).inverse
            R = R + inverse @ (M @ (2 * u * R))
        # if M2 overflows, `inverse` is 0, and R would be finite but wrong
        return R + nan_unless_finite(M2)

    def increment(self, A: Tensor) -> Tensor | None:
        r"""$r_m(A) - I$, or None if the norm of $A$ is large.

        For a random matrix, the result is None if the largest angle is above about
        $2 n^{-1/4}$.
        """
        norm = largest(torch.linalg.matrix_norm(A), unknown=math.inf)
        # `Exp.increment` explains the factor n^(1/4). NaN counts as long.
        if not norm <= A.shape[-1] ** 0.25 * LONG_STEP:
            return None
        return self.quotient(A, A, norm)

    def quotient(self, M: Tensor, R: Tensor, norm: float) -> Tensor:
        r"""$\rho(M) R$ with $\rho(x) = (r_m(x) - 1) / x$, factor by factor.

        A factor of $r_m$ is $I + 2 u M N$ with $N = (I - u M + w M^2)^{-1}$.
        """
        del norm
        eye = identity(M)
        M2 = M @ M if self.degree > 1 else torch.zeros_like(M)
        terms: list[Tensor] = []
        for u, w in pade_factors(self.degree):
            if terms:
                R = R + M @ terms[-1]
            # `torch.linalg.solve` would raise for NaN
            solution = torch.linalg.solve_ex(eye - u * M + w * M2, 2 * u * R)
            terms.append(solution.result)
        return sum(terms[1:], start=terms[0])


@dataclass(frozen=True)
class Cayley(AbstractRational):
    r"""The Cayley map, $(I + A/2)(I - A/2)^{-1}$, at the cost of one inverse.

    It is the Pade approximant of degree 1. It is one-to-one, and its values never have
    the eigenvalue $-1$.
    """

    name = "cayley"
    order = 3.0
    degree = 1

    def at_identity(self, A: Tensor) -> Tensor:
        """The Cayley transform."""
        return cayley(A)

    def inverse(self, Q: Tensor) -> Tensor:
        """The inverse transform, for matrices without the eigenvalue -1."""
        return cayley_inverse(Q)


@dataclass(frozen=True)
class Pade(AbstractRational):
    r"""The diagonal Pade approximant of the exponential, of any degree $m$.

    It differs from the exponential by $O(A^{2m+1})$, is orthogonal or unitary for every
    skew $A$, and from degree 2 on reaches every rotation and every unitary matrix.

    Args:
        degree: $m$; 1 is the Cayley map.
    """

    degree: int

    def __post_init__(self) -> None:
        check_degree(self.degree)
        # a frozen dataclass does not allow assignments
        object.__setattr__(self, "name", f"pade-{self.degree}")
        object.__setattr__(self, "order", 2.0 * self.degree + 1)

    def at_identity(self, A: Tensor) -> Tensor:
        """The Pade approximant at `A` itself, without scaling and squaring."""
        return pade(A, degree=self.degree)

    def inverse(self, Q: Tensor) -> Tensor:
        """The smallest `A` that this map takes to `Q`.

        The backward pass raises an error, because the gradient is not implemented.
        """
        return _NoGradient.apply(Q, self.degree)


class _NoGradient(torch.autograd.Function):
    """The inverse of the Pade approximant, whose backward pass raises an error."""

    @staticmethod
    def forward(Q: Tensor, degree: int) -> Tensor:
        return pade_inverse(Q, degree=degree)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        del output
        ctx.degree = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError(
            f"`retraction` must be 'exp' or 'cayley' to differentiate coordinates; got "
            f"'pade-{ctx.degree}'. Its inverse has no gradient here."
        )
