"""What a process does with the memory that a step gives back."""

import ctypes
import sys

# options of mallopt(3), from glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Keep freed memory in the process, where glibc would return it to the system.

    The states of a long sequence are 100 MB, which each step would get page by page
    anew. For a process that does nothing but train; elsewhere than on glibc, nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        # never, as an unsigned number
        mallopt(_M_TRIM_THRESHOLD, -1)
