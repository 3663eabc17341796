"""The C library, which comes with a wheel or is built when it is first needed.

The sources are plain C, neither compiled against torch nor linked to it. They receive
pointers: to the memory of tensors, and to functions of the BLAS, of the OpenMP runtime
and of the C interface that torch has loaded. So one library works with every version of
torch, and it is built within seconds.
"""

import contextlib
import ctypes
import logging
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from isometry._backend.build import build, bundled, cached
from isometry._backend.store import BuildError

_log = logging.getLogger("isometry")

_WITHOUT = (
    "isometry runs without its C library, which is slower: %s "
    "ISOMETRY_NATIVE=0 silences this."
)

# the reasons for running without C that were logged in this process
reasons: list[str] = []


def c_library() -> ctypes.CDLL | None:
    """The C library, or None if there is none; `loaded` has the reason."""
    return loaded().library


class Loaded(NamedTuple):
    """The C library and where it comes from, or None and why there is no library."""

    library: ctypes.CDLL | None
    origin: str


@cache
def loaded() -> Loaded:
    """Load the C library on the first call; later calls return the same library."""
    setting = os.environ.get("ISOMETRY_NATIVE", "1")
    if setting == "0":
        return Loaded(None, "ISOMETRY_NATIVE is 0.")
    if sys.platform != "linux":
        reason = f"it is not built on {sys.platform}."
        _log.info(_WITHOUT, reason)
        return Loaded(None, reason)
    places = {"wheel": bundled, "cache": cached, "built just now": build}
    if setting == "build":
        # skip the wheel, so that a user can compare it with a build for this processor
        del places["wheel"]
    try:
        for origin, find in places.items():
            path = find()
            if path is not None:
                return Loaded(_load(path), f"{origin}, {path}")
    except (BuildError, OSError) as error:
        warn(str(error))
        return Loaded(None, str(error))
    raise AssertionError("`build` returns a library or raises")


def warn(reason: str) -> None:
    """Log the reason for running without C once, not again for each dtype."""
    if reason not in reasons:
        reasons.append(reason)
        _log.warning(_WITHOUT, reason)


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        # the file is what the compiler made, so building it again would not help
        raise BuildError(
            f"the library cannot be loaded: {error}. If programs must not run from "
            f"{path.parent}, set XDG_CACHE_HOME to a folder where they may."
        ) from error
    functions = openmp()
    if functions is not None:
        library.isometry_use_openmp((ctypes.c_void_p * len(functions))(*functions))
    return library


# the functions of the OpenMP runtime that openmp.c calls, in the order of that file
_OPENMP = (
    *("GOMP_parallel", "omp_get_max_threads"),
    *("omp_get_num_threads", "omp_get_thread_num"),
)


def openmp() -> list[int | None] | None:
    """Addresses of functions in the OpenMP runtime of torch; None without a runtime."""
    # The search is in the order of the linker: first the global names, which include a
    # runtime that was loaded before Python, and then the libraries that torch is linked
    # to.
    for library in (ctypes.CDLL(None), torch_library()):
        with contextlib.suppress(AttributeError):
            functions = [getattr(library, name) for name in _OPENMP]
            return [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
    return None


def torch_library() -> Any:
    """Torch's CPU library, whose BLAS we call in order to share its threads."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
