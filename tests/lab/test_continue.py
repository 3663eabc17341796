"""Extending a finished run, keeping its best weights, and loading its model."""

import json
import math
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from isometry.lab import RunError, evaluate, load_model, resume, train
from isometry.lab._cli import main
from isometry.lab._train import loop
from isometry.lab._train.config import CHANGEABLE, Config
from isometry.lab._train.experiment import make_task
from isometry.lab.tasks import CopyingTask
from tests.lab.small_runs import assert_same_run, best, records, small, summary, tensors
from tests.lab.test_report import edit

TASK = CopyingTask(lag=3, length=2, held_out=8)


def test_a_finished_run_goes_on_to_the_bits_of_a_longer_one(tmp_path):
    train(small(iterations=12), tmp_path / "run")
    outcome = resume(tmp_path / "run", iterations=24)
    assert outcome.summary["status"] == "finished"
    train(small(iterations=24), tmp_path / "long")
    assert_same_run(tmp_path / "run", tmp_path / "long")


def test_the_line_goes_on_and_says_what_it_did(tmp_path, capsys):
    """The recorded command makes the longer run; `continued` tells how it was made."""
    folder = tmp_path / "run"
    line = ["train", "copying", "--lag=3", "--length=2", "--held-out=8", "--threads=1"]
    line += ["--hidden-size=6", "--batch-size=4", "--iterations=4", "--log-every=1"]
    assert main([*line, "--out", f"{folder}"]) == 0
    more = ["train", "--resume", f"{folder}", "--iterations", "6"]
    assert main([*more, "--checkpoint-every=2", "--tensorboard"]) == 0
    config = json.loads((folder / "config.json").read_text())
    assert (config["iterations"], config["checkpoint_every"]) == (6, 2)
    options = {"iterations": 6, "checkpoint_every": 2, "tensorboard": True}
    assert config["continued"] == [{"step": 4, "options": options}]
    words = shlex.split(config["command"])
    assert words.count("--iterations") == 1
    assert words[-5:-3] == ["--iterations", "6"]
    assert words[-3:] == ["--checkpoint-every", "2", "--tensorboard"]
    assert main([*words[1:], "--out", f"{tmp_path / 'long'}"]) == 0
    assert tensors(folder) == tensors(tmp_path / "long")
    # the second time there is nothing left to do
    capsys.readouterr()
    assert main(more) == 0
    assert "finished after 6 steps" in capsys.readouterr().err
    assert json.loads((folder / "config.json").read_text()) == config


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--threads", "2", "--lr", "0.1"], ["--lr", "0.1"]),
        (["--lr", "0.1", "--threads", "2"], ["--lr", "0.1"]),
        (["--no-tensorboard", "--lr", "0.1"], ["--lr", "0.1"]),
        (["--root", "/x --threads 2"], ["--root", "/x --threads 2"]),
        (["--root", "/my --threads 4 set"], ["--root", "/my --threads 4 set"]),
        (["--threads", "2", "--root", "it's"], ["--root", "it's"]),
    ],
    ids=str,
)
def test_new_options_replace_the_old_ones_in_the_command(before, after):
    """New options replace the old ones, but not in a value that looks like an option.

    The folder "/my --threads 4 set" used to become "/my set", and "/x --threads 2" to
    lose its closing quote.
    """
    words = ["isometry", "train", "mnist"]
    config = Config("mnist", {}, small().training, shlex.join(words + before))
    command = config.changed({"threads": 8, "tensorboard": True}).command
    assert shlex.split(command) == [*words, *after, "--threads", "8", "--tensorboard"]


def test_an_option_of_an_interrupted_run_changes(tmp_path):
    """A resumed run may be shorter than planned, but not shorter than it already is."""
    train(small(iterations=6), tmp_path / "run")
    edit(tmp_path / "run" / "summary.json", status="interrupted")
    edit(tmp_path / "run" / "config.json", iterations=12)
    with pytest.raises(RunError, match=r"at least 6, the number of .* got 5"):
        resume(tmp_path / "run", iterations=5)
    assert resume(tmp_path / "run", iterations=8).summary["steps"] == 8


def test_killed_between_the_new_options_and_the_next_step(tmp_path):
    """A run whose config asks for more steps than its summary has goes on.

    This happens if the run is killed just after its new options are written.
    """
    train(small(iterations=4), tmp_path / "run")
    edit(tmp_path / "run" / "config.json", iterations=8)
    assert resume(tmp_path / "run").summary["steps"] == 8


@pytest.mark.errors
def test_none_is_not_more_steps(tmp_path):
    """A finished run used to begin again with `iterations=None`."""
    train(small(iterations=4), tmp_path / "run")
    with pytest.raises(RunError, match=r"finished after 4 steps.*got `iterations`"):
        resume(tmp_path / "run", iterations=None)


def test_a_run_of_unknown_status_goes_on(tmp_path):
    """A status that another program wrote does not end a run.

    `resume` used to return that summary, and the command raised a KeyError.
    """
    train(small(iterations=4), tmp_path / "run")
    edit(tmp_path / "run" / "summary.json", status="running")
    assert resume(tmp_path / "run").summary["status"] == "finished"


def test_epochs_of_finite_data(tmp_path, monkeypatch):
    """A run on finite data can be extended by epochs: here from one to three."""
    monkeypatch.setattr(CopyingTask, "epoch", lambda _task, _size: 3)
    train(small(iterations=None, epochs=1), tmp_path / "run")
    assert resume(tmp_path / "run", epochs=3).summary["steps"] == 9
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"`epochs` must be left out if data is"):
        resume(tmp_path / "run", epochs=4)


def test_a_solved_run_goes_on_if_it_is_told_not_to_stop(tmp_path):
    config = small(solved=100.0)
    assert train(config, tmp_path / "run").summary["status"] == "solved"
    with pytest.raises(RunError, match=r"task after 4 steps.*`solved` to 0"):
        resume(tmp_path / "run", iterations=14)
    assert resume(tmp_path / "run").summary["status"] == "solved"
    outcome = resume(tmp_path / "run", iterations=14, solved=0)
    assert (outcome.summary["status"], outcome.summary["steps"]) == ("finished", 14)


@pytest.mark.errors
@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_a_run_whose_rates_decay_keeps_its_length(status, tmp_path):
    """A run whose rates decay cannot be extended.

    In a longer run the steps already made would have had larger rates.
    """
    train(small(iterations=6, decay="cosine"), tmp_path / "run")
    edit(tmp_path / "run" / "summary.json", status=status)
    with pytest.raises(RunError, match=r"must keep its 6 steps.*decay; got 8"):
        resume(tmp_path / "run", iterations=8)
    assert resume(tmp_path / "run", iterations=6).summary["steps"] == 6


@pytest.mark.errors
def test_what_a_run_is_does_not_change(tmp_path):
    train(small(iterations=2), tmp_path / "run")
    with pytest.raises(ValueError, match=r"a resumed run.*got `lr` \(it defines"):
        resume(tmp_path / "run", lr=0.5)
    with pytest.raises(
        RunError, match=r"has finished after 2 steps.*got `threads`\. Give `iter"
    ):
        resume(tmp_path / "run", threads=2)
    training = small().training
    assert set(CHANGEABLE) <= set(training.__dataclass_fields__)


def test_best_weights_are_those_of_the_best_validation(tmp_path):
    """The best weights give the metrics that the summary has for their step."""
    # checkpoints are written at the end, and at each evaluation that is the best so far
    train(small(iterations=40, lr=0.01, checkpoint_every=100), tmp_path / "run")
    evaluation = summary(tmp_path / "run")["best"]
    assert list(best(tmp_path / "run")) == [f"best-{evaluation['step']}.safetensors"]
    for split in ("validation", "test"):
        model = load_model(tmp_path / "run", best=True)
        assert evaluate(TASK, model, split, 4) == evaluation[split]


def test_nan_is_neither_the_best_nor_solved(tmp_path, monkeypatch):
    """A later evaluation is better than NaN; a first NaN used to stay the best one."""
    evaluated = []

    def measure(*args: Any) -> dict[str, float]:
        means = evaluate(*args)
        evaluated.append(means)
        # the first evaluation of both splits
        return dict.fromkeys(means, math.nan) if len(evaluated) <= 2 else means

    monkeypatch.setattr(loop, "evaluate", measure)
    outcome = train(small(), tmp_path / "run")
    assert outcome.summary["status"] == "finished"
    assert outcome.summary["best"]["step"] > 4
    assert outcome.summary["best_by_test"]["step"] > 4


def test_load_gives_the_last_weights(tmp_path):
    train(small(), tmp_path / "run")
    before = torch.random.get_rng_state()
    model = load_model(str(tmp_path / "run"))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not model.training
    last = summary(tmp_path / "run")["final"]["test"]
    assert_close(evaluate(TASK, model, "test", 4), last, rtol=0, atol=0)


def test_load_does_not_depend_on_later_defaults(tmp_path):
    """`load_model` uses the recorded options of the network, not today's defaults."""
    train(small(), tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    options = json.loads(path.read_text())["recipe"]["options"]
    edit(path, recipe={"options": options | {"train_h0": True}})
    with pytest.raises(RunError, match="loading state_dict for SequenceModel"):
        load_model(tmp_path / "run")


def test_a_run_of_an_earlier_version_goes_on_and_is_loaded(tmp_path):
    """A run of an earlier version can be resumed and loaded.

    The oldest folders of format 2 lack `about`, `decay` and `clip_norm`.
    """
    train(small(iterations=6), tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    old = json.loads(path.read_text()) | {"format": 2}
    for name in ("about", "decay", "clip_norm"):
        del old[name]
    path.write_text(json.dumps(old))
    load_model(tmp_path / "run")
    assert resume(tmp_path / "run", iterations=8).summary["steps"] == 8


def test_a_summary_may_lack_entries_that_are_not_read(tmp_path):
    """Entries that neither `resume` nor `load_model` reads may be missing.

    Such a run was called damaged.
    """
    train(small(iterations=4), tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    read = ("status", "steps", "seconds", "metric", "best", "best_by_test")
    entries = {name: json.loads(path.read_text())[name] for name in read}
    path.write_text(json.dumps(entries))
    assert resume(tmp_path / "run").summary == entries
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(RunError, match="must have a checkpoint; it has none yet"):
        load_model(tmp_path / "run")


@pytest.mark.errors
def test_best_weights_that_are_not_there_are_told(tmp_path):
    """The error says why there are no best weights.

    Their file is damaged or missing, its name leads out of the folder, or the run has
    no checkpoint at all.
    """
    train(small(iterations=4), tmp_path / "run")
    [name] = best(tmp_path / "run")
    path = tmp_path / "run" / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RunError, match=rf"{name} must be the file that the checkpoint"):
        load_model(tmp_path / "run", best=True)
    path.unlink()
    with pytest.raises(RunError, match="got no file"):
        load_model(tmp_path / "run", best=True)
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    outside = f"../{'x' * (len(name) - 3)}"
    checkpoint.write_bytes(
        checkpoint.read_bytes().replace(name.encode(), outside.encode())
    )
    with pytest.raises(RunError, match=r"run/best must be the file.*got no file"):
        load_model(tmp_path / "run", best=True)
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(RunError, match="must have a checkpoint; it has none yet"):
        load_model(tmp_path / "run")


@pytest.mark.errors
def test_without_validation_there_are_no_best_weights(tmp_path, monkeypatch):
    evaluation = CopyingTask.evaluation
    monkeypatch.setattr(
        CopyingTask,
        "evaluation",
        lambda task, split, size: (
            evaluation(task, split, size) if split == "test" else ()
        ),
    )
    train(small(iterations=4), tmp_path / "run")
    with pytest.raises(RunError, match="must hold the weights of the best validation"):
        load_model(tmp_path / "run", best=True)


def test_a_stopped_process_goes_on(tmp_path):
    """A process stopped by SIGSTOP goes on with the same numbers.

    Its processor time does not include the second for which it was stopped.
    """
    folder = tmp_path / "run"
    options = ["--lag=3", "--length=2", "--held-out=8", "--hidden-size=6"]
    options += ["--batch-size=4", "--iterations=400", "--log-every=1", "--threads=1"]
    command = [sys.executable, "-m", "isometry", "train", "copying", *options]
    process = subprocess.Popen(
        [*command, f"--out={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or metrics.stat().st_size < 3000:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    contents = json.loads((folder / "summary.json").read_text())
    assert contents["steps"] == 400
    assert [r["step"] for r in records(folder) if r["split"] == "train"][-1] == 400
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    clock = [line["cpu_seconds"] for line in lines]
    assert clock == sorted(clock)
    assert 0 < contents["cpu_seconds"] < contents["seconds"]
    # no step used as much processor time as the process was stopped for
    assert max(b - a for a, b in pairwise(clock)) < 0.9


def test_make_task_asks_for_trust():
    config = Config("tests.lab.own:OrderTask", {}, small().training)
    with pytest.raises(ValueError, match="must be registered"):
        make_task(config, trust=False)
