"""Building the kernels: once, under a lock, and not at all where that is impossible."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isometry import _native
from isometry._native._build import BuildError, build

# what the kernels give, what the log says, and an exponential that needs none
SCRIPT = """
import logging, sys
logging.basicConfig(level="INFO", stream=sys.stdout, format="LOG %(message)s")
import torch
from isometry._native import kernels
from isometry.linalg import expm_skew, skew

torch.manual_seed(0)
Q = expm_skew(skew(torch.randn(128, 128) / 16))
print("native", kernels(torch.float32) is not None)
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
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    # measured: 2e-6
    assert float(out.split("defect")[1]) < 1e-5
    return out


def test_processes_that_race(tmp_path):
    """One builds, the other waits; one library is left, and nothing else."""
    both = [start(tmp_path) for _ in range(2)]
    for process in both:
        assert "native True" in finish(process)
    names = sorted(path.suffix for path in (tmp_path / "isometry").iterdir())
    assert names == ["", ".so"]
    # and the next process builds nothing
    (library,) = (tmp_path / "isometry").glob("*.so")
    before = library.stat().st_mtime_ns
    finish(start(tmp_path))
    assert library.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CC": "no-such-compiler"}, "no C compiler was found"),
        ({"CC": "false"}, "failed: it says nothing"),
        ({"CC": "true"}, "No such file"),
        ({"ISOMETRY_NATIVE": "0"}, None),
    ],
    ids=["no compiler", "it fails", "it makes nothing", "switched off"],
)
def test_without(tmp_path, environment, reason):
    """Torch's operations serve; the log says why, once, unless it was asked for."""
    out = finish(start(tmp_path, **environment))
    assert "native False" in out
    lines = [line for line in out.splitlines() if line.startswith("LOG")]
    if reason is None:
        assert not lines
    else:
        assert len(lines) == 1
        assert reason in lines[0]
    assert not list(tmp_path.rglob("*.so"))


def test_a_cache_that_cannot_be_written(tmp_path):
    """A file where the folder should be: no kernels, no crash."""
    (tmp_path / "isometry").write_text("not a folder")
    out = finish(start(tmp_path))
    assert "native False" in out
    assert "LOG no native kernels" in out


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For builds in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("compiler", ["env cc -pipe", ""], ids=repr)
@pytest.mark.usefixtures("empty_cache")
def test_a_compiler_of_several_words(compiler, monkeypatch):
    """As "ccache gcc", which was no compiler; an empty CC is none at all."""
    monkeypatch.setenv("CC", compiler)
    assert build().stat().st_size > 0


@pytest.mark.usefixtures("empty_cache")
def test_a_broken_library_is_built_again():
    """What a crash of the machine leaves; it was tried, in vain, for ever."""
    library = build()
    library.write_bytes(library.read_bytes()[:100])
    assert _native._library.__wrapped__().isometry_scan_f32


def test_a_compiler_with_another_encoding(empty_cache, monkeypatch):
    """Its complaint is told as far as it can be read; it used to be another error."""
    compiler = empty_cache / "compiler"
    compiler.write_text("#!/bin/sh\nprintf 'nein: \\374' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(BuildError, match="failed: nein"):
        build()


def test_without_a_home(monkeypatch):
    """A user of a container may have none; kernels are not worth an error."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(BuildError, match="set XDG_CACHE_HOME"):
        build()
