"""Peak memory that one forward and backward pass allocates, including its result."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks import tall
from benchmarks.peak import peak
from isometry.lab.bench.suites import both_passes
from isometry.lab.bench.timing import random_skew, unit_cotangent
from isometry.linalg import expm_skew


def measure(*, say: Callable[[str], None]) -> dict[str, int]:
    """Bytes for our exponential and torch's at n = 1024, and for ours at 30000 x 50."""
    say("memory")
    A = random_skew(1024, norm=3.0, dtype=torch.float32)
    G = unit_cotangent(A)
    bounded = partial(expm_skew, norm_bound=3.1)
    return {
        "ours": peak(both_passes(expm_skew, A, G)),
        "ours with norm_bound": peak(both_passes(bounded, A, G)),
        "torch": peak(both_passes(torch.linalg.matrix_exp, A, G)),
        "tall": peak(tall.ours(30000, 50)),
    }
