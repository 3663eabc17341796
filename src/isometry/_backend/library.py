"""The C library, which comes with a wheel or is built when it is first needed.

The sources are plain C. They are neither compiled against torch nor linked to it.
Instead, Python passes addresses to C: the addresses of the memory of tensors, and of
the functions that C calls in torch's BLAS, OpenMP runtime and C interface. So one
library works with every version of torch, and it is built within seconds.
"""

import contextlib
import ctypes
import logging
import os
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from isometry._backend.build import build, bundled
from isometry._backend.store import BuildError
from isometry._dtypes import PRECISIONS

_log = logging.getLogger("isometry")

_WITHOUT = (
    "isometry runs without its C library, which is slower: %s "
    "ISOMETRY_NATIVE=0 silences this."
)

# the arguments of each C function: p is a pointer, l a long, d a double
_SIGNATURES = {
    "probe": "ppppl",
    "square": "pppll",
    "multiply": "pplppl",
    "skew": "ppll",
    "skew_adjoint": "ppll",
    "powers": "pppdl",
    "evaluate": "pppppllll",
    "pull_back": "ppppppllll",
    "scan": "ppp",
    "scan_adjoint": "p" * 10 + "l",
}
_TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_long, "d": ctypes.c_double}

# the reasons for running without C that `warn` has logged so far
reasons: list[str] = []


def c_library() -> ctypes.CDLL | None:
    """The C library, or None if there is none; `loaded().origin` says why."""
    return loaded().library


class Loaded(NamedTuple):
    """The C library and its origin, or None and the reason why there is no library."""

    library: ctypes.CDLL | None
    origin: str


@cache
def loaded() -> Loaded:
    """Load the C library in the first call, and return that result in every call."""
    setting = os.environ.get("ISOMETRY_NATIVE", "1")
    if setting == "0":
        return Loaded(None, "ISOMETRY_NATIVE is 0.")
    if setting not in ("1", "build"):
        _log.warning(
            "`ISOMETRY_NATIVE` must be 0, 1 or build; got %r, which counts as 1.",
            setting,
        )
    if sys.platform != "linux":
        reason = f"it is not built on {sys.platform}."
        _log.info(_WITHOUT, reason)
        return Loaded(None, reason)
    try:
        # with "build", the user wants a library that is built for this processor
        wheel = None if setting == "build" else bundled()
        origin, path = build() if wheel is None else ("wheel", wheel)
        return Loaded(_load(path), f"{origin}, {path}")
    except (BuildError, OSError) as error:
        warn(str(error))
        return Loaded(None, str(error))


def warn(reason: str) -> None:
    """Log a reason for running without C, unless it has already been logged."""
    if reason not in reasons:
        reasons.append(reason)
        _log.warning(_WITHOUT, reason)


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        # the hash of the file is correct, so building it again would not help
        raise BuildError(
            f"the library cannot be loaded: {error}. If {path.parent} does not allow "
            f"programs to run, set XDG_CACHE_HOME to a folder that does."
        ) from error
    functions = openmp()
    if functions is not None:
        library.isometry_use_openmp((ctypes.c_void_p * len(functions))(*functions))
    return library


# the functions of the OpenMP runtime that openmp.c calls, in the order of that file
_OPENMP = (
    "GOMP_parallel",
    "omp_get_max_threads",
    "omp_get_num_threads",
    "omp_get_thread_num",
)


def openmp() -> list[int | None] | None:
    """Addresses of the functions `_OPENMP` in torch's runtime; None without OpenMP."""
    # Torch itself calls the runtime that the dynamic linker finds first. To get the
    # same runtime, we search in the linker's order: first among the global names, which
    # include libraries from LD_PRELOAD, then in the libraries that torch is linked to.
    for library in (ctypes.CDLL(None), torch_library()):
        with contextlib.suppress(AttributeError):
            functions = [getattr(library, name) for name in _OPENMP]
            return [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
    return None


def torch_library() -> Any:
    """Torch's CPU library, where we look up the functions of torch that C calls."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def raw(library: ctypes.CDLL, dtype: torch.dtype) -> SimpleNamespace:
    """The C functions for one dtype, as attributes named without prefix and suffix.

    The functions do not check their arguments.
    """
    functions = SimpleNamespace()
    for name, signature in _SIGNATURES.items():
        function = getattr(library, f"isometry_{name}_{PRECISIONS[dtype].suffix}")
        function.argtypes = [_TYPES[letter] for letter in signature]
        function.restype = None
        setattr(functions, name, function)
    return functions


def matrix_product(blas: Any, dtype: torch.dtype) -> Any:
    """The function of a BLAS that multiplies matrices.

    OpenMP's threads will call it, so the BLAS must not start threads of its own.

    Raises:
        AttributeError: if the BLAS does not export its matrix product.
        BuildError: if the BLAS has its own threads.
    """
    # OpenBLAS returns 0 if it has no threads, 1 for its own threads, and 2 for OpenMP
    parallel = getattr(blas, "openblas_get_parallel", None)
    if parallel is not None and parallel() not in (0, 2):
        raise BuildError(
            "the OpenBLAS of this torch has threads of its own, and may hang if OpenMP "
            "threads call it. Install a torch whose BLAS uses OpenMP."
        )
    return getattr(blas, PRECISIONS[dtype].gemm)
