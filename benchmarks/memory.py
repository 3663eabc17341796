"""Peak memory that one forward + backward pass allocates, its result included."""

from collections.abc import Callable

import torch

from benchmarks import tall
from isometry.lab.bench import suites as passes
from isometry.lab.bench.timing import random_skew, unit_cotangent
from isometry.linalg import release_memory


def peak(call: Callable[[], object]) -> int:
    """The highest sum of bytes that torch's allocator had given out during a call."""
    call()
    # the memory that is kept between calls counts
    release_memory()
    with torch.profiler.profile(profile_memory=True) as profile:
        result = call()
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    held = highest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    del result
    return highest


def measure(*, say: Callable[[str], None]) -> dict[str, int]:
    """Bytes for ours and torch's exponential at n = 1024, and for 30000 x 50."""
    say("memory")
    A = random_skew(1024, norm=3.0, dtype=torch.float32)
    G = unit_cotangent(A)
    return {
        "ours": peak(passes.ours(A, G)),
        "ours with norm_bound": peak(passes.ours(A, G, norm_bound=3.1)),
        "torch": peak(passes.matrix_exp(A, G)),
        "tall": peak(tall.ours(30000, 50)),
    }
