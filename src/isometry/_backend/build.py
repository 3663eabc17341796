"""Find the shared library that was built from the C sources, or build it.

This file and its imports must not import torch: `tools/hatch_build.py` runs them to
make a wheel, in an environment without torch.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from isometry._backend.constants import compiler_options
from isometry._backend.store import (
    BuildError,
    file_name,
    find,
    keep,
    locked,
    open_folder,
    tidy,
)

_SOURCES = Path(__file__).parent / "c"
# prebuilt libraries; only platform-specific wheels contain this folder
_BUNDLED = Path(__file__).parent / "bundled"
_FLAGS = (
    *compiler_options(),
    "-std=gnu11",
    "-O3",
    "-fopenmp",
    "-shared",
    "-fPIC",
    # these options let the compiler vectorize loops, and fuse products with sums; NaN
    # and infinity still have their meaning
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    # The OpenMP functions that GCC calls are defined in openmp.c, so the OpenMP runtime
    # is not needed. With this option, the linker leaves it out.
    "-Wl,--as-needed",
)


class Variant(NamedTuple):
    """A build for all processors that have certain instructions.

    Args:
        name: a part of the library's file name.
        options: options for the compiler.
        needs: the instruction sets that a processor must have, as /proc/cpuinfo names
            them.
    """

    name: str
    options: tuple[str, ...]
    needs: set[str]

    def key(self) -> str:
        """The part of the file name that identifies the variant and the sources."""
        return f"{self.name}-{fingerprint()}"


# The instruction sets of x86-64-v3 and x86-64-v4, as the x86-64 psABI defines them, and
# the AES instructions that bytes.c uses.
_LEVEL_3 = {
    "cx16",
    "lahf_lm",
    "popcnt",
    "pni",
    "sse4_1",
    "sse4_2",
    "ssse3",
    "avx",
    "avx2",
    "bmi1",
    "bmi2",
    "f16c",
    "fma",
    "abm",
    "movbe",
    "xsave",
    "aes",
}
_LEVEL_4 = _LEVEL_3 | {
    "avx512f",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512vl",
    "vaes",
}

# the variants in a wheel for each architecture, the fastest first
VARIANTS = {
    "x86_64": (
        Variant("avx512", ("-march=x86-64-v4", "-maes", "-mvaes"), _LEVEL_4),
        Variant("avx2", ("-march=x86-64-v3", "-maes"), _LEVEL_3),
        Variant("baseline", ("-march=x86-64",), set()),
    )
}

# seconds that a compiler may take; on an idle machine it takes two
_TIMEOUT = 120.0


def bundled() -> Path | None:
    """The fastest library of the wheel that this processor can run, or None.

    Raises:
        BuildError: if the file has changed since the wheel was made.
    """
    instructions = _instructions()
    variants = VARIANTS.get(platform.machine(), ()) if _BUNDLED.is_dir() else ()
    for variant in (v for v in variants if v.needs <= instructions):
        key = variant.key()
        for library in _BUNDLED.glob(f"kernels-{key}-*.so"):
            if library.name != file_name(key, library.read_bytes()):
                raise BuildError(f"{library} is damaged. Install isometry again.")
            return library
    return None


def build(*, timeout: float = _TIMEOUT) -> tuple[str, Path]:
    """Build the library for this compiler and processor, unless the cache has it.

    If several processes call this at once, such as the ranks of one job, one of them
    builds and the others wait. The remains of a killed build are never used.

    Args:
        timeout: seconds after which the compiler is stopped.

    Returns:
        The origin of the library, "cache" or "built just now", and its path.

    Raises:
        BuildError: if there is no compiler, if the compiler fails or hangs, if the
            cache cannot be written or trusted, or if another process takes too long to
            build.
    """
    folder = open_folder()
    program = compiler()
    key = _key(program)
    library = find(folder, key)
    if library is None:
        # another process may need its whole timeout to build
        with locked(folder, key, seconds=2 * timeout):
            library = find(folder, key)
            if library is None:
                library = _compile(program, folder, key, timeout)
                tidy(folder)
                return "built just now", library
    return "cache", library


def compiler() -> list[str]:
    """The words of the command that calls the compiler; the first is a path.

    The command is the environment variable CC, such as "ccache gcc", or "cc" if CC is
    not set or empty.

    Raises:
        BuildError: if there is no such program.
    """
    name, *options = os.environ.get("CC", "").split() or ["cc"]
    path = shutil.which(name)
    if path is None:
        raise BuildError(
            f"no C compiler was found: there is no `{name}`. Install a compiler such "
            f"as gcc, or name one in the variable CC."
        )
    return [path, *options]


def _compile(program: list[str], folder: Path, key: str, timeout: float) -> Path:
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
        library = Path(scratch) / "kernels.so"
        compile_sources(program, ["-march=native"], library, timeout=timeout)
        return keep(library, folder, key)


def compile_sources(
    program: list[str], options: list[str], library: Path, *, timeout: float = _TIMEOUT
) -> None:
    """Compile the sources in this package to a library.

    Args:
        program: the command that calls the compiler, as returned by `compiler`.
        options: more options for the compiler, such as the target processor.
        library: the file to be written.
        timeout: seconds after which the compiler is stopped.

    Raises:
        BuildError: if the compiler fails, hangs or makes no library.
    """
    sources = map(str, sorted(_SOURCES.glob("*.c")))
    command = [*program, *_FLAGS, *options, *sources, "-o", str(library), "-lm"]
    code, complaint = _run(command, timeout)
    if code:
        first = complaint.strip().splitlines() or ["it gave no reason"]
        raise BuildError(f"{program[0]} failed: {first[0]}.")
    if not library.exists():
        raise BuildError(f"{program[0]} reported success but made no library.")


def _run(command: list[str], timeout: float) -> tuple[int, str]:
    """Run a compiler for at most `timeout` seconds. Return its exit code and stderr."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # the compiler's messages may be in another encoding than Python's
        text=True,
        errors="replace",
        # a new process group, so that the compiler can be killed together with all
        # processes that it has started
        start_new_session=True,
    ) as process:
        try:
            complaint = process.communicate(timeout=timeout)[1]
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BuildError(
                    f"{command[0]} has not finished in {timeout:.0f} s. Name another "
                    f"compiler in the variable CC."
                ) from None
            raise
    return process.returncode, complaint


def fingerprint() -> str:
    """A hash of the C sources and of the compiler options that all builds share."""
    parts = [path.read_bytes() for path in sorted(_SOURCES.glob("*.[ch]"))]
    parts += [" ".join(_FLAGS).encode()]
    return _hash(parts)


def _key(program: list[str]) -> str:
    """A hash of the sources, options, compiler command, libc version and processor."""
    # containers that share a home folder may have different versions of libc
    words = (fingerprint(), *program, *platform.libc_ver())
    return _hash([" ".join(words).encode(), b"\n".join(_processor())])


def _hash(parts: list[bytes]) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _instructions() -> set[str]:
    """Words of /proc/cpuinfo, which include the instruction sets of this processor."""
    words = (word for line in _processor() for word in line.split())
    return {word.decode(errors="replace") for word in words}


def _processor() -> list[bytes]:
    """The lines of /proc/cpuinfo that identify the processor, each once.

    The lines are part of `_key`, because machines with different processors may share a
    cache folder. Without /proc/cpuinfo, there is one line with the processor's name.
    """
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return [platform.processor().encode()]
    prefixes = (b"model name", b"flags", b"Features")
    return sorted({line for line in lines if line.startswith(prefixes)})
