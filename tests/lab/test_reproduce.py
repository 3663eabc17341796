"""The plan of the paper's experiments, and how it is carried out."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from isometry.lab._cli import main
from isometry.lab.report._paper import PAPER
from isometry.lab.reproduce import _carry_out, _command, plan
from isometry.lab.reproduce._carry_out import (
    Launch,
    carry_out,
    launch,
    next_command,
    status_of,
)
from isometry.lab.train._command import add_arguments, read
from isometry.nn import by_name
from tests.lab.fake_runs import fake_run

FIGURES = ("figure1-left", "figure1-right", "mnist", "pmnist", "timit")


class Trainer:
    """In place of training: writes the run that a command asks for."""

    def __init__(self, *, status: str | None = "finished", fails: str = "") -> None:
        self.status, self.fails = status, fails
        self.commands: list[list[str]] = []

    def __call__(self, words: Sequence[str], seconds: float | None) -> None:
        del seconds
        self.commands.append(list(words))
        if self.fails and self.fails in words:
            return
        folder = Path(words[-1])
        if "--resume" in words:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        options = dict(pairwise(words))
        model = options.get("--model", "exprnn")
        fake_run(folder, model=model, status=self.status, steps=5)


@pytest.fixture
def reproduce(monkeypatch, tmp_path):
    """`isometry reproduce` into a folder, with a trainer."""

    def call(*words: str, trainer: Launch | None = None) -> int:
        monkeypatch.setattr(_command, "launch", trainer or Trainer())
        return main(["reproduce", *words, "--out", str(tmp_path)])

    return call


def test_all_is_every_figure_and_table():
    """In order; and no two runs share a folder."""
    runs = plan("all")
    assert runs == [run for what in FIGURES for run in plan(what)]
    assert len({run.name for run in runs}) == len(runs)
    # six networks at two lags; Table 1 has 14 rows and a dash; Table 2 has 15
    assert len(runs) == 2 * 6 + 13 + 14 + 15


@pytest.mark.parametrize("what", ["mnist", "pmnist", "timit"])
def test_a_plan_has_the_rows_of_its_table(what):
    """Each number of the paper has a run, and none has two."""
    rows = [r for r in PAPER[what].rows if r.result is not None]
    assert sorted((r.model, r.hidden_size) for r in plan(what)) == sorted(
        (r.model, r.hidden_size) for r in rows
    )


def test_a_short_budget_meets_every_network_once():
    """The smallest of each kind comes before the second of any."""
    first = plan("mnist")[:5]
    assert [(run.model, run.hidden_size) for run in first] == [
        *(("exprnn", 170), ("scornn", 170), ("lstm", 128), ("rgd", 116), ("urnn", 512))
    ]


@pytest.mark.parametrize("what", FIGURES)
def test_networks_of_a_plan_are_in_the_registry(what):
    """With a recipe for that task, under that name."""
    task = "copying" if what.startswith("figure") else what
    for run in plan(what):
        assert by_name(run.model, task, run.hidden_size).hidden_size == run.hidden_size


def parsed(words: Sequence[str]):
    """The config that `isometry train` makes of a command, and its folder."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert words[0] == "train"
    given = vars(parser.parse_args(words[1:]))
    return read({name: value for name, value in given.items() if name != "resume"})


@pytest.mark.parametrize(
    ("what", "task", "length", "options"),
    [
        ("figure1-left", "copying", {"iterations": 4000}, {"lag": 1000}),
        ("figure1-right", "copying", {"iterations": 4000}, {"lag": 2000}),
        ("mnist", "mnist", {"epochs": 70}, {"permute": False, "validation": 0}),
        ("pmnist", "mnist", {"epochs": 70}, {"permute": True, "validation": 0}),
        ("timit", "timit", {"epochs": 1200}, {}),
    ],
)
def test_train_understands_every_command(what, task, length, options, tmp_path):
    """And takes the paper's protocol: batch, seed, length, and no early stop."""
    more = ("--root", str(tmp_path)) if what == "timit" else ()
    for run in plan(what):
        config, out = parsed(run.command(tmp_path / run.name, *more))
        training = config.training
        assert (config.task, out) == (task, tmp_path / run.name)
        assert (training.model, training.hidden_size) == (run.model, run.hidden_size)
        assert (training.batch_size, training.seed, training.solved) == (128, 5544, 0)
        assert length.items() <= vars(training).items()
        assert options.items() <= config.task_options.items()


@pytest.mark.errors
def test_what_is_not_in_the_paper_is_named():
    with pytest.raises(ValueError, match=r"`what` must be one of .* got 'figure2'"):
        plan("figure2")
    with pytest.raises(ValueError, match=r"`models` must be among .* got transformer"):
        plan("mnist", ["exprnn", "transformer"])


def test_only_what_is_missing_is_run(reproduce, tmp_path, capsys):
    """Done ones are left alone, interrupted and killed ones go on, others begin."""
    names = {run.model: run.name for run in plan("figure1-left")}
    for model, status in (
        ("exprnn", "finished"),
        ("scornn", "diverged"),
        ("lstm", "interrupted"),
        ("urnn", None),
    ):
        fake_run(tmp_path / names[model], model=model, status=status, steps=5)
    trainer = Trainer()
    assert reproduce("figure1-left", trainer=trainer) == 0
    begun = [words for words in trainer.commands if "--resume" not in words]
    resumed = [words[-1] for words in trainer.commands if "--resume" in words]
    assert resumed == [str(tmp_path / names[model]) for model in ("lstm", "urnn")]
    assert [words[3] for words in begun] == ["rgd", "scurnn"]
    captured = capsys.readouterr()
    assert "6 of 6 runs are done" in captured.err
    # the result alone
    page = Path(captured.out.strip())
    assert page == tmp_path / "report" / "figure1-left" / "report.html"
    assert page.read_text().count("<tr>") == 1 + 6

    trainer = Trainer()
    assert reproduce("figure1-left", trainer=trainer) == 0
    assert trainer.commands == []


def test_models_are_chosen(reproduce, tmp_path):
    trainer = Trainer()
    reproduce("figure1-left", "--models", "lstm", "exprnn", trainer=trainer)
    assert [words[3] for words in trainer.commands] == ["exprnn", "lstm"]


def test_a_failure_does_not_stop_the_others(reproduce, tmp_path, capsys):
    """It is named at the end, by exit code too; the rest is reported."""
    trainer = Trainer(fails="exprnn")
    words = ("figure1-left", "--models", "exprnn", "lstm")
    assert reproduce(*words, trainer=trainer) == 1
    captured = capsys.readouterr()
    assert f"{tmp_path / 'copying-1000-exprnn-190'} failed" in captured.err
    assert "1 of 2 runs are done" in captured.err
    assert Path(captured.out.strip()).exists()


def test_nothing_to_report_is_no_error_of_the_report(reproduce, capsys):
    words = ("figure1-left", "--models", "exprnn")
    assert reproduce(*words, trainer=Trainer(fails="exprnn")) == 1
    assert capsys.readouterr().out == ""


def test_a_dry_run_prints_what_would_be_run(reproduce, tmp_path, capsys):
    trainer = Trainer()
    assert reproduce("figure1-left", "--dry-run", trainer=trainer) == 0
    lines = capsys.readouterr().out.splitlines()
    assert trainer.commands == []
    assert len(lines) == 6
    words = shlex.split(lines[0])
    assert words[0] == "isometry"
    assert parsed(words[1:])[0].task == "copying"


@pytest.mark.errors
def test_speech_needs_its_corpus(reproduce, capsys):
    """Alone that is an error; among all it is left out, and said."""
    assert reproduce("timit") == 2
    assert "`--timit` must name the folder" in capsys.readouterr().err
    assert reproduce("all", "--dry-run") == 0
    captured = capsys.readouterr()
    assert "leaving out timit" in captured.err
    assert "train timit" not in captured.out


@pytest.mark.errors
@pytest.mark.parametrize("hours", ["0", "-1", "nan"])
def test_a_budget_is_positive(reproduce, hours, capsys):
    assert reproduce("mnist", "--budget", hours) == 2
    assert "`--budget` must be a positive number" in capsys.readouterr().err


def test_ctrl_c_leaves_all_as_it_is(reproduce, monkeypatch, capsys):
    def interrupted(words: Sequence[str], seconds: float | None) -> None:
        raise KeyboardInterrupt

    assert reproduce("figure1-left", trainer=interrupted) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_the_budget_is_shared_by_all_runs(tmp_path):
    """Each may take what is left; when nothing is, no other begins, and none failed."""
    clock, given = [0.0], []

    def launch(words: Sequence[str], seconds: float | None) -> None:
        given.append(seconds)
        clock[0] += 1500
        status = "finished" if clock[0] < 3600 else "interrupted"
        fake_run(Path(words[0]), status=status, steps=1)

    commands = [(tmp_path / name, [str(tmp_path / name)]) for name in "abcd"]
    failed = carry_out(commands, hours=1, launch=launch, now=lambda: clock[0])
    assert given == [3600, 2100, 600]
    assert failed == []


def test_a_run_is_resumed_where_it_is(tmp_path):
    run = plan("figure1-left")[0]
    folder = tmp_path / run.name
    assert status_of(folder) == "missing"
    assert next_command(run, folder) == run.command(folder)
    fake_run(folder, status=None, steps=1)
    assert next_command(run, folder) == ["train", "--resume", str(folder)]


# a process in place of `python -m isometry`: it says when it is interrupted
CHILD = """
import signal, sys, time
def stop(*_):
    open(sys.argv[-1], "w").write("interrupted")
    sys.exit(130)
signal.signal(signal.SIGINT, stop{})
open(sys.argv[-1] + ".ready", "w").close()
time.sleep(60)
"""


@pytest.fixture
def child(monkeypatch, tmp_path):
    """`launch` runs this program instead."""

    def make(text: str) -> None:
        path = tmp_path / "child.py"
        path.write_text(text)
        start = _carry_out.subprocess.Popen

        def popen(line: list[str], **options):
            assert line[1:3] == ["-m", "isometry"]
            return start([sys.executable, str(path), *line[3:]], **options)

        monkeypatch.setattr(_carry_out.subprocess, "Popen", popen)

    return make


def test_a_run_whose_time_is_over_is_interrupted(child, tmp_path):
    """As by Ctrl-C, so that it writes what it has."""
    child(CHILD.format(""))
    # long enough for a process to start, also on a busy machine
    launch([str(tmp_path / "told")], 3.0)
    assert (tmp_path / "told").read_text() == "interrupted"


def test_a_run_that_does_not_listen_is_killed(child, tmp_path, monkeypatch):
    """Its last checkpoint serves: resuming needs nothing else."""
    monkeypatch.setattr(_carry_out, "GRACE", 0.1)
    child(CHILD.format(" if False else signal.SIG_IGN"))
    launch([str(tmp_path / "told")], 3.0)
    assert (tmp_path / "told.ready").exists()
    assert not (tmp_path / "told").exists()


def test_what_a_run_prints_is_news(child, tmp_path, capfd):
    """Standard output carries the report alone, so that commands compose."""
    child("print('a line')")
    launch(["anything"], None)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "a line\n")
