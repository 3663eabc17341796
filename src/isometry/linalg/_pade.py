"""Pade approximants of the exponential on skew matrices, with scaling and squaring."""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from isometry._checks import check_square
from isometry._dtypes import in_float32_or_wider
from isometry._nan import nan_unless_finite
from isometry._orthonormal import identity
from isometry._torch import autocast_off, constant_in_graphs
from isometry._typing import Square
from isometry.linalg._cayley import cayley_inverse
from isometry.linalg._logm import logm_unitary
from isometry.linalg._norms import one_norm
from isometry.linalg._pade_factors import pade_factors
from isometry.linalg._skew import skew_eigh, with_skew_gradient
from isometry.linalg._squaring import scaled_and_squared


def pade(A: Square, *, degree: int, squarings: int | Literal["auto"] = 0) -> Square:
    r"""Diagonal Pade approximant of the exponential: orthogonal for skew `A`.

    $$ r_m(A) = q_m(A)^{-1} q_m(-A), \qquad
       q_m(-A) = \sum_{j=0}^m \frac{(2m-j)!\,m!}{(2m)!\,(m-j)!}\,\frac{A^j}{j!}, \qquad
       Q = r_m(2^{-s} A)^{2^s}. $$

    For skew $A$ we have $q_m(-A) = q_m(A)^H$, so $Q$ is orthogonal or unitary for every
    degree $m$ and every $s$, up to rounding. Degree 1 without squarings is the Cayley
    map. With `squarings="auto"`, $Q$ and its derivative equal $\exp A$ and its
    derivative up to the unit roundoff $u$. For this, $s$ is the smallest number for
    which the norm of $2^{-s} A$ is at most $\theta$. Here $\theta$ is the root of
    $\theta^{2m} = u / ((2m+1)\, c_m)$ with $c_m = (m!)^2 / ((2m)!\, (2m+1)!)$, or 6 if
    the root is larger. The norm of $A$ is bounded by $\lVert A^j \rVert_1^{1/j}$ for
    powers that are needed anyway.

    Gradients are skew matrices. The error grows in proportion to $\lVert A \rVert$, as
    does the error of the exponential itself when $A$ is rounded. `"auto"` gives NaN if
    $\lVert A \rVert > 1/\varepsilon$, where no digit would be correct. Without
    squarings, the powers up to $A^m$ differ more and more in size above norm 10, and
    orthogonality suffers: for degree 3 in float32 the defect is 1e-6 at norm 10, 3e-5
    at 30 and 8e-4 at 100, and it is worse for higher degrees. At such norms $r_m$ is
    far from the exponential anyway. A matrix with an entry that is not finite gives
    NaN; the other matrices of the batch are not affected.

    Cost: about $2 \sqrt m$ products (7 for degree 13), one inverse and $s$ products.
    The backward pass takes about twice as many products and no factorization. `"auto"`
    reads $s$ from the device.

    Args:
        A: skew-symmetric or skew-Hermitian; this is not checked (see `check_skew`).
            float16 and bfloat16 are computed in float32.
        degree: $m$.
        squarings: $s$, or `"auto"`. Every squaring doubles the rounding error, and a
            low degree needs many squarings. So with `"auto"` use a degree of 5 or more
            in float32, of 9 or more in float64.

    Returns:
        $Q$, in the dtype of `A`.

    Raises:
        TypeError: if `A` has an integer dtype.
        ValueError: if `A` is not square, `degree` is not positive, or `squarings` is
            negative or a string other than "auto".

    References:
        [LM19] section 4.2; [AMH09a] for the algorithm; [Hig08] section 10.3 for the
        approximants.
    """
    check_square(A, name="A")
    _check_degree_and_squarings(degree, squarings)
    X = in_float32_or_wider(A)
    with autocast_off(X.device):
        poison = nan_unless_finite(X)
        X = with_skew_gradient(X)
        if squarings == "auto":
            Q = _exponential(X, degree)
        else:
            Q = _approximant(X * 0.5**squarings, degree)
            for _ in range(squarings):
                Q = Q @ Q
        return (Q + poison).to(A.dtype)


@torch.no_grad()
def pade_inverse(Q: Square, *, degree: int) -> Square:
    r"""Skew matrix of smallest norm whose Pade approximant of degree $m$ is `Q`.

    On the imaginary axis $r_m(ix) = e^{i\varphi(x)}$, and $\varphi$ is odd with

    $$ \varphi(x) = 2 \operatorname{arg} q_m(-ix), \qquad
       \varphi'(x) = 1 - \frac{b_m^2 x^{2m}}{|q_m(ix)|^2} \in (0, 1], \qquad
       \varphi(\infty) = m \pi, $$

    where $b_m$ is the last coefficient of $q_m$. With
    $\log Q = V \operatorname{diag}(i\theta) V^H$ and $x = \varphi^{-1}(\theta)$,

    $$ A = \log Q + V \operatorname{diag}(i (x - \theta)) V^H, \qquad
       r_m(A) = Q. $$

    From degree 2 on, $\varphi$ reaches $\pi$ at a finite $x$, where $\varphi'$ is at
    least 2/3. This $x$ is $\sqrt{12}$ for degree 2, $\sqrt{10}$ for degree 3, and
    within 0.001 of $\pi$ for higher degrees. So every unitary $Q$ is reached, and every
    orthogonal $Q$ with determinant 1. Degree 1 is `cayley_inverse`, which refuses the
    eigenvalue $-1$.

    This is meant for initialization: it has no gradient, and like `logm_unitary` it
    reads from the device. A matrix with an entry that is not finite gives NaN. Cost:
    `logm_unitary`, one complex `eigh` in double precision and a product.

    Args:
        Q: orthogonal with determinant 1, or unitary. float16 and bfloat16 are computed
            in float32.
        degree: $m$.

    Returns:
        $A$ with `pade(A, degree=degree)` equal to `Q`, and $A^H = -A$ to the last bit.

    Raises:
        TypeError: if `Q` has an integer dtype.
        ValueError: if `degree` is not positive or `Q` is not square; for degree 1, if
            `Q` has the eigenvalue $-1$; for higher degrees, if `Q` is not unitary, or
            is real with determinant $-1$.

    References:
        [Hig08] section 10.3 for the approximants.
    """
    check_square(Q, name="Q")
    check_degree(degree)
    if degree == 1:
        return cayley_inverse(Q)
    L = logm_unitary(Q)
    L = L.to(torch.promote_types(L.dtype, torch.float64))
    theta, V, _ = skew_eigh(L)
    # A is log Q plus a correction, so that the rounding errors of the eigenvectors are
    # multiplied by the small difference x - theta, not by x.
    excess = _inverse_phase(theta, degree) - theta
    D = (V * (1j * excess)[..., None, :]) @ V.mH
    A = L + (D if L.is_complex() else D.real)
    return ((A - A.mH) / 2).to(Q.dtype)


def _inverse_phase(theta: Tensor, degree: int) -> Tensor:
    """The x with r_m(ix) = exp(i theta), for angles up to pi and degrees above 1."""
    x = theta
    # Let phi(x) be the phase of r_m(ix). For x > 0, phi is concave and phi(x) < x, so
    # Newton's method starts left of the solution and approaches it from there. At
    # degree 2 and angle pi, the worst case, nothing changes after the fourth iteration.
    for _ in range(5):
        phase, slope = pade_phase(x, degree)
        x = x - (phase - theta) / slope
    return x


def pade_phase(x: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """The phase of r_m(ix), up to a multiple of 2 pi, and its derivative in x."""
    phase, slope = torch.zeros_like(x), torch.zeros_like(x)
    # a factor of r_m(ix) is (p + iq) / (p - iq)
    for u, w in pade_factors(degree):
        p, q = 1 - w * x * x, u * x
        phase = phase + 2 * torch.atan2(q, p)
        slope = slope + 2 * u * (1 + w * x * x) / (p * p + q * q)
    return phase, slope


def pade_radius(degree: int, dtype: torch.dtype) -> float:
    r"""A norm, at most 6, below which $r_m$ and exp agree to the unit roundoff.

    The norm is $\min(\theta, 6)$. With $u$ the unit roundoff of `dtype`, the first
    equation defines $\theta$, and the inequality holds for all real $x$:

    $$ \theta^{2m} = \frac{u}{(2m+1)\,c_m}, \quad
       c_m = \frac{(m!)^2}{(2m)!\,(2m+1)!}, \qquad
       |r_m(ix) - e^{ix}| \le c_m |x|^{2m+1}. $$

    The inequality follows from Pade's remainder, with $r_m = p / q$: on the imaginary
    axis, $q(z) e^z - p(z) = \pm \frac{z^{2m+1}}{(2m)!} \int_0^1 t^m (1-t)^m e^{tz} dt$
    and $|q| \ge 1$. Because of the factor $2m + 1$ in $\theta^{2m}$, derivatives, and
    so gradients, are as accurate as values. The norm is never above 6: at larger norms
    the terms of $q$ begin to cancel, and this loses more digits than another squaring.

    Args:
        degree: $m$.
        dtype: real or complex.

    Returns:
        $\min(\theta, 6)$.

    References:
        [Hig08] section 10.3 for the remainder.
    """
    log_c = (
        2 * math.lgamma(degree + 1)
        - math.lgamma(2 * degree + 1)
        - math.lgamma(2 * degree + 2)
    )
    log_u = math.log(torch.finfo(dtype).eps / 2)
    return min(math.exp((log_u - log_c - math.log(2 * degree + 1)) / (2 * degree)), 6.0)


def check_degree(degree: int) -> None:
    """Raise unless `degree` is positive."""
    if degree < 1:
        raise ValueError(
            f"`degree` must be at least 1; got {degree}. Degree 1 is the Cayley map."
        )


def _check_degree_and_squarings(degree: int, squarings: int | str) -> None:
    check_degree(degree)
    if isinstance(squarings, str):
        if squarings != "auto":
            raise ValueError(
                f'`squarings` must be an int or "auto"; got "{squarings}". '
                f'Use "auto" for the exponential to machine precision.'
            )
    elif squarings < 0:
        raise ValueError(
            f"`squarings` must not be negative; got {squarings}. "
            f"Use 0 for the approximant itself."
        )


def _coefficients(degree: int) -> list[float]:
    """Coefficients of q_m(-A) for m = `degree`, as quotients of exact integers."""
    m = degree
    return [
        math.comb(m, j) * math.factorial(2 * m - j) / math.factorial(2 * m)
        for j in range(m + 1)
    ]


def _approximant(A: Tensor, degree: int, squares: Sequence[Tensor] = ()) -> Tensor:
    """r_m(A); `squares` may hold the first few of A^2, A^4, ..., if they are known.

    With U the odd and V the even part of q_m(-A), r_m(A) = (V - U)^-1 (V + U). This is
    computed as I + 2 (V - U)^-1 U, so that no digits are lost if A is small.
    """
    b = _coefficients(degree)
    eye = identity(A)
    even, odd = b[0::2], b[1::2]
    step = _step(len(even) - 1, len(odd) - 1)
    powers = [eye, *squares][: step + 1]
    for j in range(len(powers), step + 1):
        powers.append(A @ A if j == 1 else powers[j // 2] @ powers[j - j // 2])
    U = A * odd[0] if len(odd) == 1 else A @ _polynomial(odd, powers)
    V = _polynomial(even, powers)
    # not `solve`, because torch 2.13 gets its nested derivatives wrong (jacrev of
    # jacfwd). The inverse loses few digits: V - U is normal, and its condition number
    # is below 4 if the norm of A is at most 6.
    return eye + 2 * torch.linalg.inv_ex(V - U).inverse @ U


# not traced, because Dynamo in torch 2.7 does not support `min` with a key
@constant_in_graphs
def _step(*degrees: int) -> int:
    """The exponent j for which Horner's rule in (A^2)^j needs the fewest products."""

    def products(step: int) -> int:
        return step + sum(max(0, -(-d // step) - 1) for d in degrees)

    # if several exponents need equally few products, `min` returns the largest
    top = max(degrees)
    return min(range(top, 0, -1), key=products) if top > 0 else 0


def _polynomial(b: list[float], powers: list[Tensor]) -> Tensor:
    """The sum of b_j A^(2j) over j, by the method of Paterson and Stockmeyer."""
    step = max(len(powers) - 1, 1)

    def block(start: int, stop: int) -> Tensor:
        terms = list(map(operator.mul, b[start:stop], powers))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    degree = len(b) - 1
    # the highest block may have one more term than the others, which saves a product
    top = max(0, -(-degree // step) - 1) * step
    total = block(top, degree + 1)
    for start in range(top - step, -1, -step):
        total = block(start, start + step) + total @ powers[step]
    return total


def _exponential(A: Tensor, degree: int) -> Tensor:
    """r_m(A / 2^s)^(2^s), which equals the exponential up to the unit roundoff."""
    powers = {1: A}
    if degree >= 2:
        powers[2] = A @ A
    if degree >= 4:
        powers[4] = powers[2] @ powers[2]
    norms = [one_norm(P) ** (1 / exponent) for exponent, P in powers.items()]
    return scaled_and_squared(
        lambda A, *squares: _approximant(A, degree, squares),
        powers,
        norm=functools.reduce(torch.minimum, norms),
        theta=pade_radius(degree, A.dtype),
    )
