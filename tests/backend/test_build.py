"""Building the kernels: once, under a lock, and not at all where that is impossible."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from isometry._backend import build as _build
from isometry._backend import library as _native
from isometry._backend import native
from isometry._backend.build import build
from isometry._backend.library import raw
from isometry._backend.native import CRecurrence, NativeBackend
from isometry._backend.recurrence import TimeSteps
from isometry._backend.store import BuildError, locked, open_folder

# The script writes its log to stdout, and prints whether there are kernels, and the
# defect of an exponential.
SCRIPT = """
import logging, sys
logging.basicConfig(
    level="INFO", stream=sys.stdout, format="LOG %(levelname)s %(message)s"
)
import torch
from isometry._backend.library import c_library
from isometry._backend.native import native_backend as kernels
from isometry.linalg import expm_skew, skew

torch.manual_seed(0)
Q = expm_skew(skew(torch.randn(128, 128) / 16))
print("native", kernels(torch.float32) is not None, kernels(torch.float64) is not None)
print("library", c_library() is not None)
print("defect", float((Q.mT @ Q - torch.eye(128)).norm()))
"""


def start(cache: Path, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    out = process.communicate(timeout=240)[0]
    assert process.returncode == 0
    # measured: 2e-6
    assert float(out.split("defect")[1]) < 1e-5
    return out


def test_processes_that_race(tmp_path):
    """If two processes start at once, one builds and the other waits."""
    both = [start(tmp_path) for _ in range(2)]
    for process in both:
        assert "native True True\nlibrary True" in finish(process)
    names = sorted(path.suffix for path in (tmp_path / "isometry").iterdir())
    assert names == [".lock", ".so"]
    # the next process builds nothing
    (library,) = (tmp_path / "isometry").glob("*.so")
    before = library.stat().st_mtime_ns
    finish(start(tmp_path))
    assert library.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CC": "no-such-compiler"}, "no `no-such-compiler`. Install a compiler"),
        ({"CC": "false"}, "failed: it gave no reason"),
        ({"CC": "true"}, "made no library"),
        ({"ISOMETRY_NATIVE": "0"}, None),
    ],
    ids=["no compiler", "it fails", "it makes nothing", "switched off"],
)
def test_without(tmp_path, environment, reason):
    """Without kernels torch computes, and one warning says why.

    There is no warning if C was switched off. The reason used to be logged as
    information, which nobody sees, and once for each dtype.
    """
    out = finish(start(tmp_path, **environment))
    assert "native False False\nlibrary False" in out
    lines = [line for line in out.splitlines() if line.startswith("LOG")]
    if reason is None:
        assert not lines
    else:
        assert len(lines) == 1
        assert lines[0].startswith("LOG WARNING isometry runs without its C library")
        assert reason in lines[0]
        assert "ISOMETRY_NATIVE=0 silences this." in lines[0]
    assert not list(tmp_path.rglob("*.so"))


def test_a_setting_that_means_nothing_is_told(tmp_path):
    """`ISOMETRY_NATIVE=off` used to leave C on without a word."""
    out = finish(start(tmp_path, ISOMETRY_NATIVE="off"))
    assert "native True True\nlibrary True" in out
    (line,) = [line for line in out.splitlines() if line.startswith("LOG WARNING")]
    assert "`ISOMETRY_NATIVE` must be 0, 1 or build; got 'off', which" in line


# The script of an ordinary user: no logging is configured, and a layer of each dtype
# trains.
PLAIN_SCRIPT = """
import torch, isometry
for dtype in (torch.float32, torch.float64):
    layer = isometry.orthogonal(torch.nn.Linear(64, 64, dtype=dtype))
    for _ in range(2):
        layer(torch.ones(1, 64, dtype=dtype)).sum().backward()
isometry.show_config()
"""


def test_a_failed_build_is_seen_once_without_any_configuration(tmp_path):
    """A failed build prints one line on standard error, with reason and remedy."""
    process = subprocess.run(
        [sys.executable, "-c", PLAIN_SCRIPT],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CC": "no-such-compiler"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert process.stderr == (
        "isometry runs without its C library, which is slower: no C compiler was "
        "found: there is no `no-such-compiler`. Install a compiler such as gcc, or "
        "name one in the variable CC. ISOMETRY_NATIVE=0 silences this.\n"
    )


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for builds in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("compiler", ["env cc -pipe", ""], ids=repr)
def test_a_compiler_of_several_words(compiler, monkeypatch):
    """CC may have several words, as "ccache gcc".

    An empty CC counts as not set.
    """
    monkeypatch.setenv("CC", compiler)
    origin, path = build()
    assert origin == "built just now"
    assert path.stat().st_size > 0
    assert build() == ("cache", path)


def script(path: Path, text: str) -> str:
    """Write an executable script that can serve as CC."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_with_another_encoding(empty_cache, monkeypatch):
    """The compiler's message is quoted as far as it can be decoded.

    A message in another encoding used to raise another error.
    """
    compiler = script(empty_cache / "cc", "printf 'nein: \\374' >&2\nexit 1")
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(BuildError, match="failed: nein"):
        build()


def is_running(process: int) -> bool:
    """Whether a process is still running.

    A zombie, which its parent did not reap, does not count as running.
    """
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def test_a_compiler_that_hangs(empty_cache, monkeypatch):
    """A compiler that hangs is killed with its children.

    It used to block all processes, even with a healthy compiler, since there was one
    lock for all compilers.
    """
    hanging = script(
        empty_cache / "cc", f"sleep 1000 &\necho $! > {empty_cache}/pid\nwait"
    )
    monkeypatch.setenv("CC", hanging)
    with pytest.raises(BuildError, match=r"has not finished in 1 s. Name another"):
        build(timeout=1.0)
    child = int((empty_cache / "pid").read_text())
    # on a busy machine it takes a while until a killed process is gone
    deadline = time.monotonic() + 20
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)
    assert [p.name for p in open_folder().iterdir() if not p.suffix] == []
    with locked(open_folder(), _build._key(_build.compiler()), seconds=1.0):
        monkeypatch.delenv("CC")
        assert build()[1].exists()


@pytest.mark.usefixtures("empty_cache")
def test_another_process_that_builds_too_long():
    folder = open_folder()
    with (
        locked(folder, "key", seconds=1.0),
        pytest.raises(BuildError, match="another process has been building for 0 s"),
        locked(folder, "key", seconds=0.1),
    ):
        pass
    # the lock is free again
    with locked(folder, "key", seconds=0.1):
        pass


@pytest.mark.usefixtures("empty_cache")
def test_a_library_that_cannot_be_loaded_is_not_built_again(monkeypatch):
    """A library that cannot be loaded is not built again at every start.

    Loading fails in a home that is mounted without the right to execute.
    """
    _, path = build()
    before = path.stat().st_mtime_ns

    def refuse(_: str) -> None:
        raise OSError("failed to map segment: Operation not permitted")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(BuildError, match=r"cannot be loaded: .* set XDG_CACHE_HOME"):
        _native._load(build()[1])
    assert path.stat().st_mtime_ns == before


@pytest.mark.usefixtures("empty_cache")
def test_only_our_own_names_are_exported():
    """All exported names begin with `isometry_`, and so clash with no other library."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(build()[1])]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = [line.split()[0] for line in lines.splitlines()]
    assert len(names) > 20
    assert [name for name in names if not name.startswith("isometry_")] == []


@pytest.mark.usefixtures("empty_cache")
def test_without_a_runtime_of_openmp():
    """A library that was not given an OpenMP runtime does all parts in one thread."""
    threads = []
    note = ctypes.CFUNCTYPE(None)(lambda: threads.append(threading.get_native_id()))
    H, h0 = torch.zeros(2, 4), torch.zeros(2, 4)
    starts, sizes, length = TimeSteps((2,)).arguments
    recurrence = CRecurrence(
        h0=h0.data_ptr(),
        starts=ctypes.addressof(starts),
        sizes=ctypes.addressof(sizes),
        length=length,
        n=4,
        threads=2,
    )
    raw(ctypes.CDLL(str(build()[1])), torch.float32).scan(
        ctypes.cast(note, ctypes.c_void_p), ctypes.byref(recurrence), H.data_ptr()
    )
    assert threads == [threading.get_native_id()] * 2


@pytest.mark.parametrize(("parallel", "fits"), [(0, True), (1, False), (2, True)])
def test_a_blas_with_threads_of_its_own(parallel, fits):
    """OpenBLAS with its own pthreads is refused.

    It gave right results, but printed "may hang" 345 times.
    """
    blas = SimpleNamespace(sgemm_=len, openblas_get_parallel=lambda: parallel)
    if fits:
        assert _native.matrix_product(blas, torch.float32) is len
    else:
        with pytest.raises(BuildError, match="has threads of its own"):
            _native.matrix_product(blas, torch.float32)


def test_a_blas_that_multiplies_in_another_way():
    """A BLAS whose product does not write its result is refused."""
    library = _native.c_library()
    assert library is not None
    nothing = ctypes.CFUNCTYPE(None)(lambda: None)
    with pytest.raises(BuildError, match="wrong result"):
        NativeBackend(library, nothing, torch.float32)
    with pytest.raises(AttributeError):
        _native.matrix_product(SimpleNamespace(), torch.float32)


def test_the_backend_checks_the_product_of_the_blas(monkeypatch):
    """A BLAS that `matrix_product` refuses is not used, and the reason is logged."""

    def refuse(*_: object) -> None:
        raise BuildError("has threads of its own")

    warnings = []
    monkeypatch.setattr(native, "matrix_product", refuse)
    monkeypatch.setattr(native, "warn", warnings.append)
    # `native_backend` remembers its result, so call the function below the cache
    assert native.native_backend.__wrapped__(torch.float32) is None
    assert warnings == ["has threads of its own"]


@pytest.mark.usefixtures("empty_cache")
def test_a_build_takes_seconds(monkeypatch):
    """A compiler that reads its standard input gets an empty one, and does not wait."""
    monkeypatch.setenv("CC", "cat -")
    begin = time.monotonic()
    with pytest.raises(BuildError):
        build(timeout=20.0)
    assert time.monotonic() - begin < 15
