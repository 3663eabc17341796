"""The plan of the paper's experiments, and how it is executed."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from isometry.lab._cli import main
from isometry.lab._sweep import reproduce as command
from isometry.lab._train.command import add_arguments, read
from isometry.lab._train.experiment import _with_training_options, make_task
from isometry.lab.paper.networks import recipe_for
from isometry.lab.paper.protocol import PlannedRun, plan
from isometry.lab.paper.tables import PAPER
from isometry.lab.tasks import TASKS, MnistTask
from tests.lab.small_sweeps import SMALL
from tools.reproduction import records

ROOT = Path(__file__).parents[2]
FIGURES = ("figure1-left", "figure1-right", "mnist", "pmnist", "timit")


TINY = [
    PlannedRun("copying-3", model, 6, {"task": "copying"} | SMALL)
    for model in ("exprnn", "lstm")
]


@pytest.fixture
def reproduce(monkeypatch, tmp_path):
    """`isometry reproduce recorded` with two runs that take a second each."""

    def call(*more: str) -> int:
        monkeypatch.setattr(command, "plan", lambda *_: TINY)
        return main(["reproduce", "recorded", *more, "--out", str(tmp_path / "out")])

    return call


def test_all_is_every_figure_and_table():
    """`all` is every figure and table, in order, and no two runs share a folder."""
    runs = plan("all")
    assert runs == [run for what in FIGURES for run in plan(what)]
    assert len({run.name for run in runs}) == len(runs)
    # Six networks at two lags; Table 1, which has 14 rows, with a dash in the column of
    # MNIST; and Table 2, which has 15 rows.
    assert len(runs) == 2 * 6 + 13 + 14 + 15


@pytest.mark.parametrize("what", ["mnist", "pmnist", "timit"])
def test_a_plan_has_the_rows_of_its_table(what):
    """Each number in the paper's table has exactly one run."""
    rows = [r for r in PAPER[what].rows if r.result is not None]
    assert sorted((r.model, r.hidden_size) for r in plan(what)) == sorted(
        (r.model, r.hidden_size) for r in rows
    )


def test_a_short_budget_meets_every_network_once():
    """The smallest size of each network comes before the second size of any."""
    first = plan("mnist")[:5]
    assert [(run.model, run.hidden_size) for run in first] == [
        *(("exprnn", 170), ("scornn", 170), ("lstm", 128), ("rgd", 116), ("urnn", 512))
    ]


@pytest.mark.parametrize("what", FIGURES)
def test_networks_of_a_plan_are_in_the_registry(what):
    """Each network of a plan is in the registry, with a recipe for that task."""
    name = "copying" if what.startswith("figure") else what
    task = MnistTask(permute=True) if name == "pmnist" else TASKS.find(name)()
    for run in plan(what):
        assert (
            recipe_for(run.model, task, run.hidden_size).hidden_size == run.hidden_size
        )


def parsed(words: Sequence[str]):
    """The config that `isometry train` reads from a command, and its folder."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert words[0] == "train"
    first = parser.parse_args(words[1:])
    options = vars(vars(first).pop("parse_task")(first))
    return read({name: value for name, value in options.items() if name != "resume"})


@pytest.mark.parametrize(
    ("what", "task", "length", "options"),
    [
        ("figure1-left", "copying", {"iterations": 4000}, {"lag": 1000}),
        ("figure1-right", "copying", {"iterations": 4000}, {"lag": 2000}),
        ("mnist", "mnist", {"epochs": 70}, {"permute": False, "validation": 5000}),
        ("pmnist", "mnist", {"epochs": 70}, {"permute": True, "validation": 5000}),
        ("timit", "timit", {"epochs": 1200}, {}),
    ],
)
def test_train_understands_every_command(what, task, length, options, tmp_path):
    """`isometry train` reads every command, with the paper's protocol.

    This means its batch size, seed and length, and no early stop.
    """
    for run in plan(what):
        config = command.config_of(run, tmp_path)
        training = config.training
        assert config == parsed(shlex.split(config.command)[1:])[0]
        assert config.task == task
        assert (training.model, training.hidden_size) == (run.model, run.hidden_size)
        assert (training.batch_size, training.seed, training.threads) == (128, 5544, 1)
        assert training.solved == 0 or task != "copying"
        assert length.items() <= vars(training).items()
        assert options.items() <= config.task_options.items()


def test_recorded_runs_have_names_and_commands_of_their_own(tmp_path):
    """Each recorded command, read again, makes the same run."""
    runs = plan("recorded")
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        config = command.config_of(run, tmp_path)
        again, _ = parsed(shlex.split(config.command)[1:])
        assert again == config


def test_recorded_runs_of_exprnn_state_base_map_and_rates():
    """Recorded runs of ExpRNN state base, map and rates.

    A later default must not change what a record means.
    """
    for run in plan("recorded", ["exprnn"]):
        training = command.config_of(run).training
        assert {"retraction", "rebase_every", "init"} <= set(training.model_options)
        assert None not in (training.lr, training.lr_ratio)


@pytest.mark.parametrize("what", ["recorded", "beyond"])
def test_plans_state_their_rates(what, tmp_path):
    """A plan states every rate, and its records have the same rates.

    If a recipe changes, a plan must go on training as its records say.
    """
    known = records.read(ROOT / records.FOLDER)
    for run in plan(what):
        config = command.config_of(run, tmp_path)
        training, task = config.training, make_task(config, trust=True)
        usual = recipe_for(training.model, task, training.hidden_size)
        stated = _with_training_options(usual, training).schedule.optimizers
        assert training.lr is not None, run.name
        assert training.lr_ratio is not None or len(stated) == 1, run.name
        if run.name in known:
            recorded = known[run.name]["config"]["recipe"]["optimizers"]
            for row, old in zip(stated, recorded, strict=True):
                for option in ("lr", "retraction"):
                    value, before = row.options.get(option), old["options"].get(option)
                    assert value == pytest.approx(before), (run.name, option)


def test_the_search_beyond_the_paper_is_short_and_explicit():
    """The search beyond the paper is at most ten short runs, then one long one.

    Their commands state map, base, initialization, optimizer and rates.
    """
    *search, last = plan("beyond")
    assert 2 <= len(search) <= 10
    assert len({str(run.options) for run in search}) == len(search)
    for run in (*search, last):
        config = command.config_of(run)
        training = config.training
        assert config.task_options["permute"]
        assert (training.model, training.hidden_size) == ("exprnn", 170)
        assert {"retraction", "rebase_every", "init"} <= set(training.model_options)
        explicit = ("optimizer", "lr", "lr_ratio", "decay", "clip_norm")
        assert None not in [getattr(training, name) for name in explicit]
        assert training.epochs == (70 if run is last else 5)


def test_the_long_run_is_trained_as_one_of_the_search():
    *search, last = (command.config_of(run).training for run in plan("beyond"))
    assert replace(last, epochs=5) in search


@pytest.mark.errors
def test_what_is_not_in_the_paper_is_named():
    with pytest.raises(ValueError, match=r"`what` must be one of .* got 'figure2'"):
        plan("figure2")
    with pytest.raises(ValueError, match=r"`models` must be among .* got transformer"):
        plan("mnist", ["exprnn", "transformer"])


def test_models_are_chosen():
    assert {run.model for run in plan("figure1-left", ["lstm", "exprnn"])} == {
        *("exprnn", "lstm")
    }


def test_what_is_missing_is_trained_and_reported(reproduce, tmp_path, capsys):
    """A second call finds nothing to train, and writes the same report."""
    assert reproduce() == 0
    captured = capsys.readouterr()
    assert "2 of 2 runs are done" in captured.err
    out = tmp_path / "out"
    assert (out / "report" / "report.html").exists()
    assert captured.out == (out / "report" / "results.md").read_text()
    checkpoints = {
        path: path.read_bytes() for path in out.glob("*/checkpoint.safetensors")
    }
    assert len(checkpoints) == 2
    assert reproduce() == 0
    assert capsys.readouterr().out == captured.out
    assert {path: path.read_bytes() for path in checkpoints} == checkpoints


def test_a_record_says_what_its_names_stand_for(reproduce, tmp_path):
    """A record has every option of the network and its optimizers, and its format."""
    assert reproduce() == 0
    text = (tmp_path / "out" / "copying-3-exprnn-6" / "config.json").read_text()
    config = json.loads(text)
    assert config["format"] == 3
    recipe = config["recipe"]
    assert recipe["network"] == "ExpRNN"
    expected = {"retraction": "exp", "init": "henaff", "rebase_every": None}
    assert expected.items() <= recipe["options"].items()
    rest, weight = recipe["optimizers"]
    assert (rest["name"], rest["options"]) == ("RMSprop", {"lr": 2e-4})
    assert weight["parameters"] == ["weight_hh"]


def test_a_budget_stops_runs_that_can_go_on(reproduce, tmp_path, capsys):
    """A budget stops runs, and the same command later completes them."""
    assert reproduce("--budget", "1e-9") == 1
    assert "interrupted. The same command resumes it" in capsys.readouterr().err
    assert reproduce() == 0


def test_a_dry_run_prints_what_would_be_run(reproduce, tmp_path, capsys):
    assert reproduce("--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert not (tmp_path / "out").exists()
    first = shlex.split(lines[0])
    assert first[0] == "isometry"
    config, out = parsed(first[1:])
    assert (config.task, out) == ("copying", tmp_path / "out" / "copying-3-exprnn-6")


def test_runs_are_chosen_by_name_and_in_order(reproduce, capsys):
    """Runs can be chosen by name, in order, so that two machines can share a queue."""

    def chosen(*options: str) -> list[str]:
        assert reproduce("--dry-run", *options) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.rpartition("/")[2] for line in lines]

    first, second = (run.name for run in TINY)
    assert chosen("--runs", second, first) == [second, first]
    assert chosen("--runs", second) == [second]
    assert chosen("--skip", first) == [second]
    assert chosen("--runs", second, first, "--skip", second) == [first]


@pytest.mark.errors
@pytest.mark.parametrize("option", ["--runs", "--skip"])
def test_a_run_that_is_not_in_the_plan_is_named(option, reproduce, capsys):
    assert reproduce(option, "copying-3-exprnn-7") == 2
    output = capsys.readouterr().err
    assert (
        f"`{option}` must name runs of the plan; got copying-3-exprnn-7. Did" in output
    )
    assert "Did you mean copying-3-exprnn-6?" in output


def test_whoever_stops_reading_gets_no_error():
    """A reader that stops early causes no error.

    `isometry reproduce ... --dry-run | head` used to end with "Broken pipe".
    """
    line = [sys.executable, "-m", "isometry", "reproduce", "recorded", "--dry-run"]
    # one line at a time, so that the second line meets a closed pipe
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("isometry train")
    process.stdout.close()
    output = process.stderr.read()
    process.stderr.close()
    assert process.wait() in (0, 141)
    assert (
        output
        == "isometry reproduce: leaving out the runs on TIMIT; pass its folder with "
        "`--timit`.\n"
    )


@pytest.mark.errors
def test_speech_needs_its_corpus(tmp_path, capsys):
    """Without its corpus a run on speech is an error; `all` skips it and says so."""
    assert main(["reproduce", "timit"]) == 2
    assert "`--timit` must name the folder" in capsys.readouterr().err
    for what in ("all", "recorded"):
        assert main(["reproduce", what, "--dry-run"]) == 0
        captured = capsys.readouterr()
        assert "leaving out the runs on TIMIT" in captured.err
        assert "train timit" not in captured.out


@pytest.mark.errors
@pytest.mark.parametrize("hours", ["0", "-1", "nan"])
def test_a_budget_is_positive(reproduce, hours, capsys):
    assert reproduce("--budget", hours) == 2
    assert "`--budget` must be a positive number" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(reproduce, monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isometry.lab._sweep.command.sweep", interrupted)
    assert reproduce() == 130
    assert "The same command resumes every run" in capsys.readouterr().err
