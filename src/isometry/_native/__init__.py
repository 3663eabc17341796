"""Kernels in C, built when they are first wanted and kept in the user's cache.

They are an extra: without a compiler, or with `ISOMETRY_NATIVE=0`, torch's operations
do the same, slower. The sources are plain C that knows pointers and the BLAS that torch
has loaded, but not torch: they build in a second. `fits` says whether C can read some
tensors; `Kernels` checks every argument again.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from isometry._native._build import BuildError, build
from isometry._native._kernels import (
    SUFFIX,
    Kernels,
    PolynomialTable,
    StepTable,
    readable,
)

__all__ = [
    "Kernels",
    "PolynomialTable",
    "StepTable",
    "dispatch_modes",
    "fits",
    "kernels",
]

_log = logging.getLogger("isometry")

# the names of products in a BLAS
_GEMM = {torch.float32: "sgemm_", torch.float64: "dgemm_"}

# torch has no public way to count the dispatch modes that are active
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # noqa: SLF001


def fits(*tensors: Tensor) -> bool:
    """Whether kernels can read these: contiguous on the CPU, of one real dtype.

    False inside every mode that sees torch's operations, such as FakeTensorMode or a
    counter of FLOPs: it would not see C, and may answer with tensors without memory.
    """
    dtype = tensors[0].dtype
    if dtype not in SUFFIX or dispatch_modes():
        return False
    return all(readable(X, dtype) for X in tensors)


@cache
def kernels(dtype: torch.dtype) -> Kernels | None:
    """The kernels for a dtype; None, and one line in the log, if there are none."""
    if os.environ.get("ISOMETRY_NATIVE", "1") == "0":
        return None
    try:
        return _load(dtype)
    except (BuildError, OSError, ImportError, AttributeError) as error:
        _log.info("no native kernels; torch's operations serve instead: %s", error)
        return None


def _load(dtype: torch.dtype) -> Kernels:
    native = Kernels(_library(), getattr(_blas(), _GEMM[dtype]), dtype)
    # a BLAS of another kind shows here, not in a training
    if not native.multiplies():
        raise BuildError("the BLAS of this torch multiplies in another way")
    return native


@cache
def same_bytes() -> Callable[[int, int], int] | None:
    """The comparison of bytes in C, for `Snapshot`; None if there is no library."""
    if os.environ.get("ISOMETRY_NATIVE", "1") == "0":
        return None
    try:
        function = _library().isometry_same_bytes
    except (BuildError, OSError, ImportError, AttributeError) as error:
        _log.info("bytes are compared in Python: %s", error)
        return None
    # a call that holds the interpreter's lock is faster, and nobody waits long for it
    address = ctypes.cast(function, ctypes.c_void_p).value
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_long)
    return prototype(address or 0)


@cache
def _library() -> ctypes.CDLL:
    path = build()
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        # a crash of the machine may have left half a file: once more
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(build()))


def _blas() -> ctypes.CDLL:
    """The BLAS of torch, so that all products share one pool of threads."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
