"""Peak memory of a call."""

from collections.abc import Callable

import torch

try:
    from isometry import release_memory
except ImportError:  # `benchmarks.versions` also runs older commits
    from isometry.linalg import release_memory


def peak(call: Callable[[], object]) -> int:
    """The most bytes that a call holds at once, beyond what torch held before it."""
    call()
    # Free the memory that the library keeps between calls. The next call allocates it
    # again, and the profiler counts it.
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
