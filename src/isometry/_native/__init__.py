"""Kernels in C, built when they are first wanted and kept in the user's cache.

They are an extra: without a compiler, or with `ISOMETRY_NATIVE=0`, torch's operations
do the same, slower. The sources are plain C that knows pointers and the BLAS that torch
has loaded, but not torch: they build in a second. Whoever calls a kernel answers for
shapes; `fits` says whether the tensors are of a kind that C can read.
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

_log = logging.getLogger("isometry")

# dtypes in the names of C functions, and of products in a BLAS
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_GEMM = {torch.float32: "sgemm_", torch.float64: "dgemm_"}
_C_TYPE = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}

# what each kernel takes: p a pointer, l a long
_SIGNATURES = {
    "gemm": "ppppl",
    "square": "pppll",
    "multiply": "pplppl",
    "skew": "ppll",
    "skew_adjoint": "ppll",
    "powers": "pppppll",
    "evaluate": "pppppllll",
    "pull_back": "pppppplllll",
    "scan": "p" * 7 + "llll",
    "scan_adjoint": "p" * 14 + "lllll",
}
# wrapper subclasses (sharded, fake, logging tensors) have no memory of their own
_PLAIN = (Tensor, torch.nn.Parameter)

# torch has no public way to count the dispatch modes that are active
_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 - as above

_TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_long}


class Kernels:
    """The kernels for one dtype: `kernels.skew(X.data_ptr(), A.data_ptr(), b, n)`."""

    gemm: Callable[..., None]
    square: Callable[..., None]
    multiply: Callable[..., None]
    skew: Callable[..., None]
    skew_adjoint: Callable[..., None]
    powers: Callable[..., None]
    evaluate: Callable[..., None]
    pull_back: Callable[..., None]
    scan: Callable[..., None]
    scan_adjoint: Callable[..., None]

    def __init__(self, library: ctypes.CDLL, blas: ctypes.CDLL, dtype: torch.dtype):
        self.product = ctypes.cast(getattr(blas, _GEMM[dtype]), ctypes.c_void_p)
        for name, signature in _SIGNATURES.items():
            function = getattr(library, f"{name}_{_SUFFIX[dtype]}")
            function.argtypes = [_TYPES[letter] for letter in signature]
            function.restype = None
            setattr(self, name, function)


def fits(*tensors: Tensor) -> bool:
    """Whether kernels can read these: contiguous on the CPU, of one real dtype.

    False inside every mode that sees torch's operations, such as FakeTensorMode or a
    counter of FLOPs: it would not see C, and may answer with tensors without memory.
    """
    dtype = tensors[0].dtype
    if dtype not in _SUFFIX or _modes():
        return False
    return all(
        type(X) in _PLAIN
        and X.dtype == dtype
        and X.is_cpu
        and X.is_contiguous()
        # torch negates lazily: a tensor with the negative bit set still holds the old
        # signs in memory
        and not X.is_neg()
        for X in tensors
    )


@cache
def kernels(dtype: torch.dtype) -> Kernels | None:
    """The kernels for a dtype; None, and one line in the log, if there are none."""
    if os.environ.get("ISOMETRY_NATIVE", "1") == "0":
        return None
    try:
        found = Kernels(_library(), _blas(), dtype)
        _check(found, dtype)
    except (BuildError, OSError, ImportError, AttributeError) as error:
        _log.info("no native kernels; torch's operations serve instead: %s", error)
        return None
    return found


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
    """That of torch, so that all products share one pool of threads."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def _check(found: Kernels, dtype: torch.dtype) -> None:
    """Multiply once: a BLAS of another kind would show here, not in a training."""
    # no tensors: the first call may come while a program is exported, when new tensors
    # are fake and have no memory
    number = _C_TYPE[dtype]
    X, Y = (number * 6)(*range(6)), (number * 4)()
    pointer = ctypes.addressof(X)
    found.gemm(found.product, pointer, pointer, ctypes.addressof(Y), 2)
    if [*Y] != [5, 14, 14, 50]:
        raise BuildError("the BLAS of this torch multiplies in another way")
