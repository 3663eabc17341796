r"""Bounds on the angles of skew matrices.

The eigenvalues of a skew $A$ are $i\theta_j$, and the real numbers $\theta_j$ are the
angles of $A$. The largest $|\theta_j|$ is the spectral norm of $A$.

The plan of an exponential depends on the bounds in `angle_bounds`. To derive them, let
$x_j = \theta_j^2$. The power sums $s_p = \sum_j x_j^p$ for $p = 2, 3, 4$ are, up to
sign, the inner products of $A^2$ and $A^4$, which the exponential needs anyway. If $A$
is real, its angles come in pairs $\pm\theta_j$. Then there is one $x_j$ for each pair,
and the sums are half the inner products. Subtract the powers of the largest $x_j$,
called $x$, from the sums. The remaining sums still obey Cauchy--Schwarz,

$$ (s_2 - x^2)(s_4 - x^4) \ge (s_3 - x^3)^2. $$

With $r = s_3 / s_2$ and $v = s_4 / s_2 - r^2$, this inequality is equivalent to
$x^2 (x - r)^2 \le v \, (s_2 - x^2)$. The right-hand side is at most
$v \, (s_2 - \ell^2)$, since $x \ge s_4 / s_3 =: \ell$. Take the square root, and solve
the quadratic inequality for $x$:

$$ x \;\le\; \tfrac12 \Bigl( r + \sqrt{r^2 + 4 \sqrt{v \, (s_2 - \ell^2)}} \Bigr). $$

Equality holds if all $x_j$ are equal. The same method with $x_j = \theta_j^4$, from
$A^4$ and $A^8$, gives a sharper bound and costs one more product.
"""

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isometry._backend import PowerSums
from isometry._nan import nan_unless

# Bounds on angles are widened by this factor, because the power sums are rounded.
# Without the factor, upper bounds were too low by a relative error of up to 1.02e-3, in
# tests with 600 seeds and sizes up to 512 (worst: complex64, n = 6, all angles but one
# equal).
MARGIN = 1 + 2e-3


def angle_bounds(sums: PowerSums, *, power: int) -> tuple[Any, Any]:
    """Lower and upper bound on the largest angle of a matrix, from its power sums.

    Args:
        sums: the sums of x^2, x^3 and x^4, where x is |theta|^power for each angle
            theta of a matrix, or for one angle of each pair if the matrix is real.
            They are numbers for one matrix, and arrays or tensors for several. The
            sign of the second sum does not matter.
        power: 2 or 4.

    Returns:
        Two numbers, arrays or tensors, like `sums`. The upper bound is infinite or NaN
        where the first sum is.
    """
    s2, s3, s4 = sums
    largest = s2**0.5
    # `_extremes` needs a finite s4 > 0 and s3 != 0. Otherwise the lower bound is 0, and
    # the upper bound comes from s2 alone. s3 and s4 may overflow or underflow, and s3
    # may be zero if the matrix is not skew, for example if it is a cyclic permutation.
    if isinstance(s2, float):
        sound = 0 < s4 < math.inf and s3 != 0
        lower, upper = _extremes(s2, abs(s3), s4) if sound else (0.0, largest)
        upper = min(upper, largest)
    else:
        library: Any = torch if isinstance(s2, Tensor) else np
        sound = (s4 > 0) & (s4 < math.inf) & (s3 != 0)
        # numpy warns of a division by zero, torch does not
        with nullcontext() if library is torch else np.errstate(all="ignore"):
            lower, upper = _extremes(s2, abs(s3), s4)
        lower = library.where(sound, lower, 0)
        upper = library.where(sound, library.fmin(upper, largest), largest)
    return lower ** (1 / power) / MARGIN, upper ** (1 / power) * MARGIN


def _extremes(s2: Any, s3: Any, s4: Any) -> tuple[Any, Any]:
    """Lower and upper bound on the largest of some numbers x >= 0, not all zero.

    The arguments are the sums of x^2, x^3 and x^4.
    """
    r = s3 / s2
    lower = s4 / s3
    v = abs(s4 / s2 - r * r)
    w = (v * abs(s2 - lower * lower)) ** 0.5
    return lower, (r + (r * r + 4 * w) ** 0.5) / 2


def within_reach(A: Tensor, reach: float) -> Tensor:
    """The skew matrices A, or NaN for a matrix with an angle that may exceed `reach`.

    The angles are bounded on the device of A, so the host does not wait. Cost: two
    products. Where the value is NaN, the gradient is NaN too.
    """
    X = A.detach()
    X2 = X @ X
    X4 = X2 @ X2
    # the angles of a real matrix come in pairs, and each pair is counted once
    weight = 1.0 if A.is_complex() else 0.5
    pairs = ((X2, X2), (X2, X4), (X4, X4))
    s2, s3, s4 = (weight * (Y.conj() * Z).real.sum((-2, -1)) for Y, Z in pairs)
    upper = angle_bounds((s2, s3, s4), power=2)[1]
    # written so that a bound of NaN counts as above `reach`
    factor = 1 + nan_unless(upper <= reach, like=upper)
    return A * factor[..., None, None]


def samuelson_bound(A: Tensor, A2: Tensor) -> float:
    r"""A bound on the angles of all matrices in a batch, by Samuelson's inequality.

    Take $n$ numbers with mean $m$ and variance $s^2$. A number that occurs $r$ times
    among them is at most $m + s \sqrt{(n - r)/r}$. Here the numbers are $\theta^2$,
    with the sum $\lVert A \rVert_F^2$ and the sum of squares $\lVert A^2 \rVert_F^2$.
    If $A$ is real, its angles come in pairs, so $r = 2$; otherwise $r = 1$. For a large
    real random matrix the bound is too large by a factor of about $(n/32)^{1/4}$.
    """
    n = A.shape[-1]
    r = 1 if A.is_complex() else 2
    mean = torch.linalg.matrix_norm(A).square() / n
    variance = torch.linalg.matrix_norm(A2).square() / n - mean.square()
    squares = mean + (variance.clamp(min=0) * max(n - r, 0) / r).sqrt()
    return float(squares.max()) ** 0.5
