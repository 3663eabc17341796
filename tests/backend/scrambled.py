"""A BLAS for the tests, which adds the terms of each tile in another order."""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from isometry._backend.build import compiler
from isometry._backend.library import c_library
from isometry._backend.native import NativeBackend, native_backend

SOURCE = Path(__file__).with_name("scrambled.c")


@cache
def library() -> ctypes.CDLL:
    """Compile the product with the compiler of the kernels, and load it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scrambled.so"
        options = ["-O3", "-march=native", "-shared", "-fPIC", "-o", str(path)]
        subprocess.run([*compiler(), *options, str(SOURCE)], check=True)
        return ctypes.CDLL(str(path))


def install() -> None:
    """Let the kernels of this process multiply with this BLAS instead of torch's.

    This raises a RuntimeError if there are no kernels.
    """
    for dtype, name in ((torch.float32, "sgemm_"), (torch.float64, "dgemm_")):
        native, ours = native_backend(dtype), c_library()
        if native is None or ours is None:
            raise RuntimeError("`--blas=scrambled` needs the kernels in C.")
        native.gemm = NativeBackend(ours, getattr(library(), name), dtype).gemm
