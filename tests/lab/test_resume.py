"""A run that was stopped and resumed is the run that was never stopped."""

import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isometry.lab import Config, RunError, _files, resume, train
from isometry.lab._train.experiment import build
from isometry.lab._train.loop import Step
from tests.lab.fake_runs import Killed
from tests.lab.small_runs import assert_same_run, records, small, summary, tensors

# Optimizers of torch and of this library, on manifolds, complex weights, moving bases,
# and what happens after a step.
MODELS: list[dict[str, Any]] = [
    {"model": "exprnn"},
    {"model": "exprnn", "model_options": {"rebase_every": 2}},
    {"model": "exprnn", "optimizer": "Adam", "lr": 0.01},
    {"model": "exprnn", "decay": "cosine", "clip_norm": 0.1, "lr": 0.01},
    {"model": "rgd", "decay": "linear", "clip_norm": 0.1},
    {"model": "lstm", "optimizer": "SGD"},
    {"model": "lstm", "model_options": {"num_layers": 2, "dropout": 0.5}},
    *({"model": name} for name in ("scurnn", "rgd", "householder", "spectral")),
]


def test_killed_process_goes_on(tmp_path):
    """A run of the command line that gets SIGKILL can be resumed."""
    # enough steps, of 2 ms each, that the run still trains when it is killed
    long = small(iterations=600, evaluate_every=50, checkpoint_every=20)
    options = ["--lag=3", "--length=2", "--held-out=8", "--hidden-size=6"]
    options += ["--batch-size=4", "--iterations=600", "--log-every=1", "--threads=1"]
    options += [f"--seed={long.training.seed}"]
    options += ["--evaluate-every=50", "--checkpoint-every=20", f"--out={tmp_path}/two"]
    command = [sys.executable, "-m", "isometry", "train", "copying", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    metrics = tmp_path / "two" / "metrics.jsonl"
    while not metrics.exists() or metrics.stat().st_size < 3000:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "two" / "summary.json").exists()
    resume(tmp_path / "two")
    train(long, tmp_path / "one")
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_a_checkpoint_knows_the_size_of_records_that_were_cut_off(tmp_path):
    """Lines written after the checkpoint do not count, even before they are cut off.

    This happens if a run is killed after its checkpoint, resumed, and interrupted at
    once.
    """
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n" * 10)
    metrics = _files.Metrics(tmp_path, size=6)
    assert metrics.size() == 6
    metrics.write({})
    assert metrics.size() == 9
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"{}\n" * 3


@contextmanager
def killed_at(moment: int) -> Iterator[list[int]]:
    """Raise in the n-th call that touches the disk, and count the calls."""
    calls = [0]
    places = [
        (os, "fsync"),
        (_files.Path, "replace"),
        (_files.Metrics, "write"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in places:
            patch.setattr(owner, name, _dying(getattr(owner, name), calls, moment))
        yield calls


def _dying(do: Callable[..., Any], calls: list[int], moment: int) -> Any:
    def call(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == moment:
            raise Killed
        return do(*args)

    return call


def test_killed_at_any_moment(tmp_path):
    """A run killed before any write to the disk, first file to last, can be resumed."""
    config = small(iterations=4, evaluate_every=2, checkpoint_every=2)
    with killed_at(-1) as calls:
        train(config, tmp_path / "whole")
    # two first files, eight lines, two checkpoints and the summary
    assert calls[0] > 20
    for moment in range(1, calls[0] + 1):
        folder = tmp_path / str(moment)
        with killed_at(moment), pytest.raises(Killed):
            train(config, folder)
        # the folder is complete, or it does not exist
        if folder.exists():
            resume(folder)
        else:
            train(config, folder)
        assert_same_run(tmp_path / "whole", folder)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_every_kind_of_state_is_restored(options, tmp_path, monkeypatch):
    """All state of networks and optimizers is restored, to the last bit."""
    config = small(**options)
    train(config, tmp_path / "whole")
    calls = 0

    def stop(step: Step) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise Killed
        update(step)

    update = Step.update
    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", stop)
        with pytest.raises(Killed):
            train(config, tmp_path / "cut")
    resume(tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit the size of files: the kernel then fails in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("size", "checkpoint_every"), [(2500, 3), (2500, 100)])
def test_full_disk_stops_a_run_that_goes_on_later(size, checkpoint_every, tmp_path):
    """If a checkpoint or a metrics line has no room, the run can be resumed later."""
    config = small(checkpoint_every=checkpoint_every)
    with room_for(size), pytest.raises(RunError, match=r"File too large.*--resume"):
        train(config, tmp_path / "cut")
    assert not list((tmp_path / "cut").glob("*.partial"))
    resume(tmp_path / "cut")
    train(config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_partial_file_goes_when_the_run_is_resumed(tmp_path):
    """A file that a killed process had not finished writing does not stay for ever."""
    train(small(iterations=4), tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors.0123abcd.partial").write_bytes(b"half")
    resume(tmp_path / "run", iterations=8)
    assert not list((tmp_path / "run").glob("*.partial"))


def test_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    """If the second checkpoint has no room, the first one stays whole."""
    config = small(log_every=12, evaluate_every=12)
    update, path = Step.update, tmp_path / "cut" / "checkpoint.safetensors"
    first: list[bytes] = []

    with room_for(resource.RLIM_INFINITY), monkeypatch.context() as patch:

        def fill(step: Step) -> None:
            if path.exists() and not first:
                first.append(path.read_bytes())
                hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
            update(step)

        patch.setattr(Step, "update", fill)
        with pytest.raises(RunError, match=r"stopped at step 6: .*File too large"):
            train(config, tmp_path / "cut")
    assert path.read_bytes() == first[0]
    resume(tmp_path / "cut")
    train(config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_waits_for_the_step(number, tmp_path, monkeypatch):
    """After Ctrl-C or SIGTERM, a run takes one more step, and leaves a checkpoint."""
    update, before = Step.update, signal.getsignal(number)

    def signalled(step: Step) -> None:
        if len(records(tmp_path / "cut")) == 3:
            os.kill(os.getpid(), number)
        update(step)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", signalled)
        outcome = train(small(), tmp_path / "cut")
    assert outcome.summary["status"] == "interrupted"
    # The signal came during step 4. The flag is read before step 5 updates the weights,
    # and the run ends after this update.
    assert outcome.summary["steps"] == 5
    assert signal.getsignal(number) is before
    resume(tmp_path / "cut")
    train(small(), tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_is_left_alone(tmp_path):
    train(small(), tmp_path / "run")
    before = tensors(tmp_path / "run"), records(tmp_path / "run")
    assert resume(tmp_path / "run").summary["status"] == "finished"
    assert (tensors(tmp_path / "run"), records(tmp_path / "run")) == before


@pytest.mark.errors
def test_a_run_is_never_overwritten(tmp_path):
    train(small(), tmp_path / "run")
    before = summary(tmp_path / "run")
    # the error used to say "Choose another `--out`", which Python does not have
    with pytest.raises(RunError, match=r"overwritten\. Choose another folder, or"):
        train(small(seed=1), tmp_path / "run")
    assert summary(tmp_path / "run") == before


@pytest.mark.errors
def test_two_processes_cannot_write_one_run(tmp_path, monkeypatch):
    """A second process is refused while the first one trains, but not afterwards."""
    update, refused = Step.update, []

    def meanwhile(step: Step) -> None:
        try:
            resume(tmp_path / "run")
        except RunError as error:
            refused.append(str(error))
        update(step)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", meanwhile)
        train(small(iterations=2), tmp_path / "run")
    assert ["another process" in text for text in refused] == [True, True]
    assert resume(tmp_path / "run").summary["status"] == "finished"


@pytest.mark.errors
def test_metrics_that_were_changed_are_refused(tmp_path, monkeypatch):
    """A run is refused if its metrics have fewer lines than its checkpoint says."""
    calls: list[int] = []

    def stop(_step: Step) -> None:
        calls.append(1)
        if len(calls) > 5:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", stop)
        with pytest.raises(Killed):
            train(small(), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match=r"must have the \d+ bytes"):
        resume(tmp_path / "run")


@pytest.mark.errors
@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_without_a_run_is_refused(exists, tmp_path):
    folder = Path(tmp_path / "none")
    if exists:
        folder.mkdir()
    with pytest.raises(RunError, match=r"must be the folder of a run.*config\.json"):
        resume(folder)


@pytest.mark.errors
def test_the_command_that_resumes_a_run_can_be_given_to_a_shell(tmp_path):
    """A folder with a space in its name is quoted; it used to be two words."""
    folder = tmp_path / "two words"
    train(small(iterations=1), folder)
    with pytest.raises(RunError, match="runs are never overwritten") as caught:
        train(small(iterations=1), folder)
    command = str(caught.value).partition("resume the run: ")[2]
    assert shlex.split(command) == ["isometry", "train", "--resume", str(folder)]


def test_a_resumed_network_returns_only_what_its_task_needs():
    """A resumed network computes only the last output if its task needs no other.

    Old records of the options have `last_only=False`, which makes `chunk` invalid.
    """
    options = {"length": 5, "held_out": 8}
    training = replace(small().training, model_options={"chunk": 2})
    first = build(Config("adding", options, training), torch.device("cpu"))
    assert "last_only" not in first.config.recipe["options"]
    old = first.config.recipe["options"] | {"last_only": False}
    for record in (first.config.recipe, first.config.recipe | {"options": old}):
        config = replace(first.config, recipe=record)
        network: Any = build(config, torch.device("cpu")).model.network
        assert network.last_only
        assert network.chunk == 2
