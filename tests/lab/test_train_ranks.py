"""Two processes train as one."""

import os
import subprocess
import sys

import pytest

from isometry.lab.train._command import read
from tests.lab.small_runs import records, start, summary

OPTIONS = {
    "task": "copying",
    "lag": 3,
    "length": 2,
    "held_out": 8,
    "hidden_size": 6,
    # parts of two and three sequences, which weigh differently
    "batch_size": 5,
    "iterations": 10,
    "log_every": 1,
    "evaluate_every": 5,
    "checkpoint_every": 5,
    "lr": 0.01,
    "threads": 1,
}


# complex parameters need no more than real ones, but a second start of torch
@pytest.mark.parametrize(
    "model", ["exprnn", pytest.param("urnn", marks=pytest.mark.soak)]
)
def test_two_processes_are_as_one(model, tmp_path):
    """torchrun, gloo: the same loss and metrics at every step, with the same batch."""
    given = OPTIONS | {"model": model}
    words = [f"--{name.replace('_', '-')}={v}" for name, v in given.items()][1:]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "-m", "isometry", "train", "copying", *words]
    done = subprocess.run(
        [*command, f"--out={tmp_path}/two"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # one of them writes and speaks
    assert done.stdout == f"{tmp_path}/two\n"
    start(read(dict(given))[0], tmp_path / "one")
    alone, together = records(tmp_path / "one"), records(tmp_path / "two")
    assert len(alone) == len(together) == 14
    for one, two in zip(alone, together, strict=True):
        assert two.pop("split") == one.pop("split")
        # sums in another order; twice the worst over three seeds and both networks,
        # 2.4e-7 of a loss and 1.4e-7 of an orthogonality error
        assert two == pytest.approx(one, rel=5e-7, abs=3e-7)
    assert summary(tmp_path / "two")["status"] == "finished"
