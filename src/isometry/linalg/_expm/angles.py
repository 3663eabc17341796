r"""A sharp bound of the largest angle of a skew matrix, from traces of its powers.

The angles $\theta_j$ of a skew matrix come in pairs if it is real. With
$x_j = \theta_j^2$ (one for each pair), the power sums $s_p = \sum_j x_j^p$ are half the
inner products of $A^2$ and $A^4$, which the exponential needs anyway. Take the largest
$x$ out of the sums: what is left still obeys Cauchy--Schwarz,

$$ (s_2 - x^2)(s_4 - x^4) \ge (s_3 - x^3)^2. $$

With $r = s_3 / s_2$ and $v = s_4 / s_2 - r^2$ this says
$x^2 (x - r)^2 \le v \, (s_2 - x^2)$; since $x \ge s_4 / s_3 =: \ell$,

$$ x \;\le\; \tfrac12 \Bigl( r + \sqrt{r^2 + 4 \sqrt{v \, (s_2 - \ell^2)}} \Bigr). $$

Equality holds if all angles are equal. The same with $A^4$ and $A^8$ bounds
$\theta^4$ more sharply, for one more product.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# room for the rounding of A^2, A^4 and the sums: at most 4e-4 (complex64, n = 2048, all
# angles equal but one)
_MARGIN = 1 + 5e-4

# A sum over a matrix is made of sums over a few of its rows, with at most so many terms
# (or over one row), added in double precision. Sums of n^2 terms gave bounds that
# were up to 0.4 % low for n = 127 and 4 % low for n = 2048.
_MOST_TERMS = 128


def quick_bound(A2: Tensor) -> float:
    r"""A bound of the angles of all matrices, from their squares; NaN if one is.

    $(\sum_j \theta_j^4)^{1/4}$, about $(n/16)^{1/4}$ times too large if the angles are
    those of a random matrix: good enough to see that they are tiny.
    """
    pairs = 1.0 if A2.is_complex() else 0.5
    norm = float(torch.linalg.matrix_norm(A2).max())
    return (pairs * norm * norm) ** 0.25 * _MARGIN


def angle_bounds(pair: Tensor, *, power: int) -> tuple[NDArray, NDArray]:
    """Lower and upper bound of the angles of each A, from A^power and its square.

    Args:
        pair: the two, (2, batch, n, n).
        power: 2 or 4.

    Returns:
        Two arrays of length batch; NaN or infinite where `pair` is.
    """
    s2, s3, _, s4 = _gram(pair).numpy().T
    with np.errstate(all="ignore"):
        lower, upper = _extremes(s2, abs(s3), s4)
    # where the higher sums over- or underflow, the lowest still serves
    sound = (s4 > 0) & (s4 < np.inf)
    lower = np.where(sound, lower, 0)
    upper = np.where(sound, np.fmin(upper, s2**0.5), s2**0.5)
    return lower ** (1 / power) / _MARGIN, upper ** (1 / power) * _MARGIN


def angle_bound(sums: tuple[float, float, float], *, power: int) -> tuple[float, float]:
    """The same for a batch of one, of its `power_sums`; infinite for NaN."""
    s2, s3, s4 = sums
    # s3 is zero for some matrices that are not skew, such as a cyclic permutation
    sound = 0 < s4 < math.inf and s3 != 0
    lower, upper = _extremes(s2, abs(s3), s4) if sound else (0.0, s2**0.5)
    upper = min(upper, s2**0.5) ** (1 / power) * _MARGIN
    return lower ** (1 / power) / _MARGIN, math.inf if math.isnan(upper) else upper


def _extremes(s2: Any, s3: Any, s4: Any) -> tuple[Any, Any]:
    """Bounds of the largest x from the sums of x^2, x^3, x^4: numbers or arrays."""
    r = s3 / s2
    lower = s4 / s3
    v = abs(s4 / s2 - r * r)
    w = (v * abs(s2 - lower * lower)) ** 0.5
    return lower, (r + (r * r + 4 * w) ** 0.5) / 2


def power_sums(pair: Tensor) -> tuple[float, float, float]:
    """<X, X>, <X, Y> and <Y, Y> for a batch of one, halved if real."""
    s2, s3, _, s4 = _gram(pair)[0].tolist()
    return s2, s3, s4


@lru_cache
def _pieces(n: int, terms: int) -> int:
    """How many sums make one over n rows of so many terms: a divisor of n."""
    divisors = (p for p in range(1, n) if n % p == 0)
    return next((p for p in divisors if n // p * terms <= _MOST_TERMS), n)


def _gram(pair: Tensor) -> Tensor:
    """<X, X>, <X, Y>, <Y, X> and <Y, Y> of each X and Y, halved if real: (batch, 4)."""
    b, n = pair.shape[1:3]
    terms = 2 * n if pair.is_complex() else n
    pieces = _pieces(n, terms)
    rows = torch.view_as_real(pair) if pair.is_complex() else pair
    rows = rows.reshape(2, b * pieces, -1).transpose(0, 1)
    # with `out=`, which autocast spares
    gram = torch.bmm(rows, rows.mT, out=rows.new_empty((len(rows), 2, 2)))
    gram = gram.to("cpu", torch.float64).view(b, pieces, 4).sum(1)
    return gram if pair.is_complex() else gram / 2
