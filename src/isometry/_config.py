"""The versions and libraries in use, for bug reports: `isometry config`."""

import argparse
import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path


def show_config() -> None:
    """Print five lines about the versions and libraries in use, for a bug report.

    The lines show the versions, torch's BLAS, where the C kernels come from, the
    threads, and the cache folder for kernels that were built on this machine. The line
    `kernels` says `wheel`, `cache` or `built just now`, followed by the path of the
    library; if there are no kernels, it says `none` and why.
    """
    import torch

    from isometry._backend import kernels_origin

    threads = f"{torch.get_num_threads()}, on {os.cpu_count()} cores of {processor()}"
    lines = {
        f"isometry {sys.modules['isometry'].__version__}": (
            f"torch {torch.__version__}, numpy {version('numpy')}, "
            f"Python {platform.python_version()}, {platform.platform()}"
        ),
        "BLAS": blas(torch.__config__.show()),
        "kernels": kernels_origin(),
        "threads": f"{threads}; OpenMP: {', '.join(_openmp()) or 'none'}",
        "cache": _cache(),
    }
    width = max(map(len, lines)) + 1
    for name, text in lines.items():
        sys.stdout.write(f"{name + ':':{width}} {text}\n")


def _openmp() -> list[str]:
    """File names of the OpenMP runtimes in this process; empty except on Linux.

    If there are several runtimes, each has its own threads.
    """
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.exists() else ""
    return sorted(set(re.findall(r"/(lib(?:g|i)?omp[^/\s]*\.so[^/\s]*)", text)))


def _cache() -> str:
    from isometry._backend.store import BuildError, cache_folder

    try:
        folder = cache_folder()
    except BuildError as error:
        return f"none: {error}"
    sizes = [path.stat().st_size for path in folder.glob("kernels-*.so")]
    return f"{folder}, {len(sizes)} libraries, {sum(sizes) / 1e6:.1f} MB"


def processor() -> str:
    """The model of the processor, as the operating system reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def blas(build: str) -> str:
    """The name of torch's BLAS library, with its version if known.

    Args:
        build: the result of `torch.__config__.show()`.

    Returns:
        A name such as "MKL 2024.2", or "open" for OpenBLAS.
    """
    if version := re.search(r"Math Kernel Library Version ([\d.]+)", build):
        return f"MKL {version[1]}"
    name = re.search(r"BLAS_INFO=(\w+)", build)
    return name[1] if name else "unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command `isometry config` has no options."""
    del parser


def main(options: argparse.Namespace) -> int:
    """Run `isometry config`."""
    del options
    show_config()
    return 0
