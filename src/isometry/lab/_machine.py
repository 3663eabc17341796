"""The machine that numbers come from: another processor sums in another order."""

import os
import platform
import re
from pathlib import Path
from typing import Any


def processor() -> str:
    """The model of the processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What times and last digits depend on.

    Returns:
        The processor, its cores, the threads and the version of torch, and the library
        that multiplies matrices.
    """
    import torch

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "blas": blas(torch.__config__.show()),
    }


def blas(build: str) -> str:
    """The name of the library that multiplies matrices, with its version if known.

    Args:
        build: what `torch.__config__.show()` returns.

    Returns:
        Such as "MKL 2024.2" or "open".
    """
    if version := re.search(r"Math Kernel Library Version ([\d.]+)", build):
        return f"MKL {version[1]}"
    name = re.search(r"BLAS_INFO=(\w+)", build)
    return name[1] if name else "unknown"
