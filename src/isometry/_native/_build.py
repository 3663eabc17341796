"""The C sources as a shared library in the user's cache."""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

_SOURCES = Path(__file__).parent
_FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    # loops over floats may be vectorized; NaN and infinity stay what they are
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)


class BuildError(RuntimeError):
    """There is no library, and this is why."""


def build() -> Path:
    """The library for these sources, this compiler and this processor.

    Several processes may ask at once (the ranks of one job): one builds, the others
    wait. What a killed build leaves behind is never taken for a library.

    Raises:
        BuildError: if there is no compiler, or it refuses.
    """
    # here, because Windows has none: `kernels` takes that for no library
    import fcntl

    compiler = _compiler()
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"kernels-{_key(compiler)}.so"
    if library.exists():
        return library
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(compiler, library)
    return library


def _compiler() -> list[str]:
    """The words of CC, as in "ccache gcc", the first with its folder."""
    name, *options = os.environ.get("CC", "").split() or ["cc"]
    found = shutil.which(name)
    if found is None:
        raise BuildError("no C compiler was found (`cc`, or the one named by CC)")
    return [found, *options]


def _compile(compiler: list[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / library.name
        command = [*compiler, *_FLAGS, *map(str, _c_files()), "-o", str(built), "-lm"]
        # it may speak in another encoding
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if run.returncode:
            first = run.stderr.strip().splitlines() or ["it says nothing"]
            raise BuildError(f"{compiler[0]} failed: {first[0]}")
        built.replace(library)


def _c_files() -> list[Path]:
    return sorted(_SOURCES.glob("*.c"))


def _key(compiler: list[str]) -> str:
    """A hash of all that decides what the compiler makes."""
    parts = [path.read_bytes() for path in sorted(_SOURCES.glob("*.[ch]"))]
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


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "isometry"
    try:
        return Path.home() / ".cache" / "isometry"
    except RuntimeError as error:
        # a user of a container who has neither HOME nor a name
        raise BuildError("there is no home: set XDG_CACHE_HOME to a folder") from error
