"""What a retraction adds to the identity: short steps keep all of their digits.

To multiply a point by $r(A)$ leaves rounding errors of the size of the point; to add
the point times $r(A) - I$ leaves those of the size of the step, and one last rounding.
"""

import torch
from torch import Tensor

from isometry.groups._retraction import pade_degree
from isometry.linalg._pade_factors import pade_factors
from isometry.linalg._room import room
from isometry.linalg._square import square

# up to these angles Taylor's polynomials of degree 4 and 6 are the exponential to eps:
# theta^5 / 5! and theta^7 / 7!
_FOUR = {torch.float32: 0.107, torch.float64: 1.93e-3}
_SIX = {torch.float32: 0.347, torch.float64: 0.0197}
# where a rational function would lose digits of the size of the point again
_RADIAN = 1.0


def increment(A: Tensor, retraction: str) -> Tensor | None:
    r"""$r(A) - I$ for skew `A` and exp, cayley or pade-m; None if a step is long.

    Whether it is, $\lVert A \rVert_F$ says: at most $n^{1/4}$ times the bound of the
    angles that is found below, if the angles are those of a random matrix.
    """
    longest = _SIX[A.dtype.to_real()] if retraction == "exp" else _RADIAN
    norm = float(torch.linalg.matrix_norm(A).max())
    # written so that NaN is long
    if not norm <= A.shape[-1] ** 0.25 * longest:
        return None
    if retraction == "exp":
        return exponential(A)
    return rational(A, A, pade_degree(retraction))


def exponential(A: Tensor) -> Tensor | None:
    r"""$e^A - I$ of a skew matrix; None if an angle may be large.

    $$ e^A - I = A + A^2 \bigl( \tfrac12 I + \tfrac16 A + \tfrac1{24} A^2 \bigr)
       \quad\text{or}\quad A + \tfrac12 A^2 + A^3 \bigl( \tfrac16 I + \tfrac1{24} A
       + \tfrac1{120} A^2 + \tfrac1{720} A^3 \bigr), $$

    as the bound of the angles allows. Cost: two products up to angle 0.1, three up to
    0.35 in single precision.
    """
    A2 = square(A, out=room("square", A.shape, A))
    bound = _largest_angle(A, A2)
    inner = room("inner", A.shape, A)
    if bound <= _FOUR[A.dtype.to_real()]:
        T = torch.mul(A2, 1 / 24, out=inner).add_(A, alpha=1 / 6)
        T.diagonal(dim1=-2, dim2=-1).add_(1 / 2)
        return torch.baddbmm(A, A2, T)
    if bound <= _SIX[A.dtype.to_real()]:
        A3 = torch.bmm(A2, A, out=room("cube", A.shape, A))
        T = torch.mul(A3, 1 / 720, out=inner).add_(A2, alpha=1 / 120)
        T.add_(A, alpha=1 / 24).diagonal(dim1=-2, dim2=-1).add_(1 / 6)
        return torch.baddbmm(A, A3, T).add_(A2, alpha=1 / 2)
    return None


def _largest_angle(A: Tensor, A2: Tensor) -> float:
    r"""A bound of the angles of all matrices, by Samuelson's inequality.

    Of $n$ numbers with mean $m$ and variance $s^2$, none that occurs $r$ times is above
    $m + s \sqrt{(n - r)/r}$. The numbers are $\theta^2$; their sum is
    $\lVert A \rVert_F^2$, and that of their squares $\lVert A^2 \rVert_F^2$. If $A$ is
    real, $r = 2$. For a random matrix it is about $(n/32)^{1/4}$ times too large.
    """
    n, r = A.shape[-1], 1 if A.is_complex() else 2
    mean = torch.linalg.matrix_norm(A).square() / n
    variance = torch.linalg.matrix_norm(A2).square() / n - mean.square()
    largest = mean + (variance.clamp(min=0) * max(n - r, 0) / r).sqrt()
    return float(largest.max()) ** 0.5


def rational(M: Tensor, R: Tensor, degree: int) -> Tensor:
    r"""$\rho(M) R$ with $\rho(x) = (r_m(x) - 1) / x$, factor by factor.

    A factor of $r_m$ is $I + 2 u M N$ with the inverse $N$ of $I - u M + w M^2$.
    """
    eye = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    M2 = M @ M if degree > 1 else torch.zeros_like(M)
    terms: list[Tensor] = []
    for u, w in pade_factors(degree):
        if terms:
            R = R + M @ terms[-1]
        # the other form of the solver raises an exception for NaN
        solution = torch.linalg.solve_ex(eye - u * M + w * M2, 2 * u * R)
        terms.append(solution.result)
    return sum(terms[1:], start=terms[0])
