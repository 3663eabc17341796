"""Peak memory of a call."""

from collections.abc import Callable

import torch

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
