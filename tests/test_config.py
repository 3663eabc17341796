"""What `isometry config` prints."""

import subprocess
import sys

import pytest
import torch

import isometry
from isometry import _config
from isometry._backend import native
from isometry.lab._cli import main


def test_five_lines(capsys):
    """The five lines are versions, BLAS, kernels, threads and cache."""
    isometry.show_config()
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(":")[0] for line in lines]
    version = f"isometry {isometry.__version__}"
    assert names == [version, "BLAS", "kernels", "threads", "cache"]
    assert f"torch {torch.__version__}," in lines[0]
    assert ".so" in lines[2]
    assert f"{torch.get_num_threads()}, on " in lines[3]
    assert "omp" in lines[3].partition("OpenMP: ")[2]
    main(["config"])
    assert capsys.readouterr().out.splitlines()[0] == lines[0]


@pytest.mark.parametrize("reason", ["the library is missing.", "the BLAS is strange."])
def test_none_and_why(reason, monkeypatch, capsys):
    """Without a library, or a BLAS that it can call, the warning is printed again."""
    monkeypatch.setattr(native, "reasons", [reason])
    monkeypatch.setattr(native, "native_backend", lambda _: None)
    isometry.show_config()
    assert f"none: {reason}\n" in capsys.readouterr().out


def test_switched_off(monkeypatch):
    """`isometry config` prints that kernels were switched off, without a warning."""
    monkeypatch.setenv("ISOMETRY_NATIVE", "0")
    command = [sys.executable, "-m", "isometry", "config"]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "none: ISOMETRY_NATIVE is 0.\n" in process.stdout
    assert process.stderr == ""


def test_without_a_home(monkeypatch):
    def no_home() -> None:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", no_home)
    assert _config._cache().startswith("none: this user has no home folder")
