"""Sweeps on a real Ray, started on this machine."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from isometry.lab._cli import main
from isometry.lab._report.runs import read_run
from isometry.lab._sweep.plan import expand
from isometry.lab._sweep.ray import resources
from isometry.lab._sweep.worker import log_of
from tests.lab.small_runs import assert_same_run, train
from tests.lab.small_sweeps import SMALL, process_of, words


@pytest.fixture
def no_report(monkeypatch):
    """Skip the report, whose figures take seconds; another test looks at them."""
    monkeypatch.setattr(
        "isometry.lab._report.command.write_report", lambda _, out: out / "page"
    )


def test_ray_makes_the_runs_of_isometry_train(tmp_path, capsys, monkeypatch, no_report):
    """Ray makes the runs of `isometry train`, to the bit.

    A run whose worker was killed goes on in another one.
    """
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    options = {"iterations": 150, "seed": [1, 2]}
    runs = expand("copying", SMALL | options)
    folders = [tmp_path / name for name in runs]
    killed: list[int] = []

    def kill() -> None:
        killed.append(process_of(folders[0]))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    line = ["sweep", "copying", *words(**options), "--engine", "ray", "--jobs", "2"]
    assert main([*line, "--out", str(tmp_path)]) == 0
    thread.join()
    assert "| finished |" in capsys.readouterr().out
    log = log_of(folders[0]).read_text()
    assert f"process {killed[0]}\n" in log
    assert log.count(" process ") == 2
    assert ", from step " in log
    for name, config in runs.items():
        train(config, tmp_path / "whole" / name)
        assert_same_run(tmp_path / "whole" / name, tmp_path / name)
    assert "ray" in sys.modules
    import ray

    assert not ray.is_initialized()


@pytest.mark.soak
def test_ctrl_c_stops_the_tasks_with_checkpoints(tmp_path):
    """Ctrl-C from a terminal stops the sweep and all of Ray, with checkpoints."""
    options = {"iterations": 100000, "seed": [1, 2, 3], "solved": 0}
    command = [sys.executable, "-m", "isometry", "sweep", "copying", *words(**options)]
    command += ["--engine", "ray", "--jobs", "2", "--out", str(tmp_path)]
    folders = [tmp_path / name for name in expand("copying", SMALL | options)]
    with subprocess.Popen(command, start_new_session=True) as process:
        for folder in folders[:2]:
            process_of(folder)
        os.killpg(process.pid, signal.SIGINT)
    assert process.returncode == 130
    assert [read_run(folder).status for folder in folders[:2]] == ["interrupted"] * 2
    assert not folders[2].exists()


def test_a_task_asks_for_what_its_run_uses():
    """A task asks Ray for as many cores as it has threads, and for a card if needed."""
    (four,) = expand("copying", {"threads": 4}).values()
    (card,) = expand("copying", {"threads": 1, "device": "cuda"}).values()
    assert resources(four) == {"num_cpus": 4, "num_gpus": 0}
    assert resources(card) == {"num_cpus": 1, "num_gpus": 1}


@pytest.mark.errors
def test_ray_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    """If Ray is missing, the error says what installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    line = ["sweep", "copying", *words(), "--engine", "ray", "--out", str(tmp_path)]
    assert main(line) == 2
    assert "pip install ray`" in capsys.readouterr().err


@pytest.mark.errors
@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1"])
def test_an_address_of_no_cluster_is_told(address, tmp_path, capsys):
    """A wrong address is an error at once.

    Ray itself would try for minutes to reach a port where nobody listens.
    """
    line = ["sweep", "copying", *words(), "--engine", "ray", "--address", address]
    assert main([*line, "--out", str(tmp_path)]) == 2
    output = capsys.readouterr().err
    assert (
        f"`--address` must be the address of a Ray cluster; got '{address}'" in output
    )
