"""The C library: built when it is first wanted, and kept in the user's cache.

The sources are plain C that knows pointers and the BLAS that torch has loaded, but not
torch: they build in a second.
"""

import ctypes
import logging
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from isometry._backend.build import build
from isometry._backend.store import BuildError

_log = logging.getLogger("isometry")

_WITHOUT = (
    "isometry runs without its C library, which is slower: %s "
    "ISOMETRY_NATIVE=0 silences this."
)


@cache
def c_library() -> ctypes.CDLL | None:
    """The library; None if there is none, with one warning that says what to do."""
    if os.environ.get("ISOMETRY_NATIVE", "1") == "0":
        return None
    if sys.platform != "linux":
        _log.info(_WITHOUT, f"it is not built on {sys.platform}.")
        return None
    try:
        return _load(build())
    except (BuildError, OSError) as error:
        warn(str(error))
        return None


@cache
def warn(reason: str) -> None:
    """Say once, not for each dtype, why everything is slower."""
    _log.warning(_WITHOUT, reason)


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        # the file is what the compiler made, so building it again would not help
        raise BuildError(
            f"the library cannot be loaded: {error}. If programs must not run from "
            f"{path.parent}, set XDG_CACHE_HOME to a folder where they may."
        ) from error


def torch_library() -> Any:
    """Functions of torch, and its BLAS: all products share one pool of threads."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
