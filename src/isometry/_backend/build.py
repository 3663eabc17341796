"""The C sources as a shared library in the user's cache."""

import contextlib
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import torch

from isometry._backend.constants import compiler_options
from isometry._backend.store import BuildError, find, keep, locked, open_folder, tidy

_SOURCES = Path(__file__).parent / "c"
_FLAGS = (
    *compiler_options(),
    *("-std=gnu11", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    # loops over floats may be vectorized; NaN and infinity stay what they are
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)

# seconds that a compiler may take; on an idle machine it takes two
_TIMEOUT = 120.0


def build(*, timeout: float = _TIMEOUT) -> Path:
    """The library for these sources, this compiler and this processor.

    Several processes may ask at once (the ranks of one job): one builds, the others
    wait. What a killed build leaves behind is never taken for a library.

    Args:
        timeout: seconds after which the compiler is given up.

    Raises:
        BuildError: if there is no compiler, it fails or hangs, or the cache cannot be
            trusted.
    """
    compiler = _compiler()
    folder = open_folder()
    key = _key(compiler)
    library = find(folder, key)
    if library is not None:
        return library
    # one builder after the other may use up its time
    with locked(folder, key, seconds=2 * timeout):
        library = find(folder, key)
        if library is None:
            library = _compile(compiler, folder, key, timeout)
            tidy(folder)
    return library


def _compiler() -> list[str]:
    """The words of CC, as in "ccache gcc", the first with its folder."""
    name, *options = os.environ.get("CC", "").split() or ["cc"]
    path = shutil.which(name)
    if path is None:
        raise BuildError(
            f"no C compiler was found: there is no `{name}`. Install one, such as gcc, "
            f"or name it in CC."
        )
    return [path, *options]


def _compile(compiler: list[str], folder: Path, key: str, timeout: float) -> Path:
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
        built = Path(scratch) / "kernels.so"
        command = [*compiler, *_FLAGS, *map(str, _c_files()), "-o", str(built), "-lm"]
        code, complaint = _run(command, timeout)
        if code:
            first = complaint.strip().splitlines() or ["it says nothing"]
            raise BuildError(f"{compiler[0]} failed: {first[0]}.")
        if not built.exists():
            raise BuildError(f"{compiler[0]} made nothing, without an error.")
        return keep(built, folder, key)


def _run(command: list[str], timeout: float) -> tuple[int, str]:
    """Return code and complaint of a compiler that is not waited for for ever."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # it may speak in another encoding
        text=True,
        errors="replace",
        # a group of its own, which can be ended with all that the compiler has started
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
                    f"compiler in CC."
                ) from None
            raise
    return process.returncode, complaint


def _c_files() -> list[Path]:
    return sorted(_SOURCES.glob("*.c"))


def _key(compiler: list[str]) -> str:
    """A hash of all that decides what the compiler makes."""
    paths = _SOURCES.glob("*.[ch]")
    parts = [path.read_bytes() for path in sorted(paths)]
    # containers that share a home differ in their C libraries
    words = (*compiler, *_FLAGS, torch.__version__, *platform.libc_ver())
    parts += [" ".join(words).encode(), _processor()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> bytes:
    """The instructions there are: a cache in a shared home serves several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    wanted = (b"model name", b"flags", b"Features")
    return b"\n".join(sorted({line for line in lines if line.startswith(wanted)}))
