"""Long steps: what rounding has left of them is put right, or they are none."""

import math

import torch
from torch import Tensor

from isometry.groups._nearest import newton_schulz, unitarity_defect
from isometry.optim._polar import closer

# of a matrix this far off, the nearest point may be another than the one meant
_LOST = 0.1


def settle(P: Tensor, length: Tensor) -> Tensor:
    r"""`P` after steps of some length in radians, made orthonormal again.

    The angles of a step are known to $\varepsilon$ times its length. If that is longer
    than $\varepsilon^{-1/2}$, or `P` far from orthonormal (the denominator of a Pade
    approximant has a condition number that grows as a power of the length), there is
    nothing to go by: NaN, which is no step.

    Cost: three products, two more if the length has cost half of the digits.
    """
    eps = torch.finfo(P.dtype).eps
    defect = unitarity_defect(P)
    # written so that NaN is lost
    kept = (defect < _LOST) & (length < eps**-0.5)
    P = torch.where(kept[:, None, None], P, math.nan)
    e = float(torch.where(kept, defect, 0.0).max())
    P, e = newton_schulz(P), closer(e)
    while e > eps / 4:
        P, e = newton_schulz(P), closer(e)
    return P
