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
from typing import Any

import numpy as np

from isometry._backend import PowerSums

# room for the rounding of A^2, A^4 and the sums: at most 4e-4 (complex64, n = 2048, all
# angles equal but one)
MARGIN = 1 + 5e-4


def angle_bounds(sums: PowerSums, *, power: int) -> tuple[Any, Any]:
    """Lower and upper bound of the largest angle of each A.

    Args:
        sums: the power sums of A^power and its square: numbers for one matrix, arrays
            for several.
        power: 2 or 4.

    Returns:
        Two numbers or arrays, as `sums` are; the upper bound is infinite or NaN where
        nothing is known.
    """
    s2, s3, s4 = sums
    largest = s2**0.5
    # Where the higher sums over- or underflow, the lowest still serves. The middle one
    # is zero for some matrices that are not skew, such as a cyclic permutation.
    if isinstance(s2, float):
        sound = 0 < s4 < math.inf and s3 != 0
        lower, upper = _extremes(s2, abs(s3), s4) if sound else (0.0, largest)
        upper = min(upper, largest)
    else:
        sound = (s4 > 0) & (s4 < math.inf) & (s3 != 0)
        with np.errstate(all="ignore"):
            lower, upper = _extremes(s2, abs(s3), s4)
        lower = np.where(sound, lower, 0)
        upper = np.where(sound, np.fmin(upper, largest), largest)
    return lower ** (1 / power) / MARGIN, upper ** (1 / power) * MARGIN


def _extremes(s2: Any, s3: Any, s4: Any) -> tuple[Any, Any]:
    """Bounds of the largest x from the sums of x^2, x^3, x^4: numbers or arrays."""
    r = s3 / s2
    lower = s4 / s3
    v = abs(s4 / s2 - r * r)
    w = (v * abs(s2 - lower * lower)) ** 0.5
    return lower, (r + (r * r + 4 * w) ** 0.5) / 2
