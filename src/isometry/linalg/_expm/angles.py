r"""Bounds of the largest angle of a skew matrix, from sharp to cheap.

`angle_bounds` is the sharp one, from traces of powers.

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
import torch
from torch import Tensor

from isometry._backend import PowerSums

# room for the rounding of A^2, A^4 and the sums: at most 4e-4 (complex64, n = 2048, all
# angles equal but one)
MARGIN = 1 + 5e-4

# dimension of the space in which `krylov_norm` looks for the largest angle
_KRYLOV = 12


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


def samuelson_bound(A: Tensor, A2: Tensor) -> float:
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


def krylov_norm(A: Tensor) -> Tensor:
    r"""$\lVert V^H A V \rVert_2$, with $V$ a basis of a Krylov space of skew $A$.

    At most the norm of $A$, and close to it, for the price of matrix-vector products.
    The vector to begin with is always the same.
    """
    n = A.shape[-1]
    rng = torch.Generator().manual_seed(0)
    v = torch.randn(n, 1, dtype=A.dtype, generator=rng, device="cpu").to(A.device)
    v = (v / torch.linalg.vector_norm(v)).expand(*A.shape[:-1], 1)
    V = v
    for _ in range(min(_KRYLOV, n) - 1):
        v = A @ v
        v = v - V @ (V.mH @ v)
        size = torch.linalg.vector_norm(v, dim=-2, keepdim=True)
        v = v / torch.where(size == 0, 1, size)
        V = torch.cat([V, v], -1)
    return torch.linalg.matrix_norm(V.mH @ (A @ V), 2)


def one_norm(A: Tensor) -> Tensor:
    """The largest sum over a column of any matrix, which bounds all its eigenvalues.

    Returns:
        Shape `(*batch, 1, 1)`, without a gradient.
    """
    if A.shape[-1] == 0:
        return A.real.new_zeros(*A.shape[:-2], 1, 1)
    return A.detach().abs().sum(dim=-2, keepdim=True).amax(dim=-1, keepdim=True)
