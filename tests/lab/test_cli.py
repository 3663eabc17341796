"""The command line: its options, its files and its messages."""

import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from isometry.lab import RunError, _cli, load_model
from isometry.lab._options import describe
from isometry.lab._train.command import read
from isometry.lab._train.config import Config, Training
from isometry.lab.tasks import TASKS
from tests.helpers import shifted_seed
from tests.lab.small_runs import records, small, tensors, train

SMALL = [
    *("--lag", "3", "--length", "2", "--held-out", "8", "--hidden-size", "6"),
    *("--batch-size", "4", "--iterations", "4", "--threads", "1"),
    *("--seed", f"{shifted_seed(Training.seed)}"),
]


def config_of(words: str) -> Config:
    """The config that a command line describes, without training."""
    calls: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "isometry.lab._train.command.main", lambda o: calls.append(vars(o)) or 0
        )
        assert _cli.main(shlex.split(words)) == 0
    options = {k: v for k, v in calls[0].items() if k != "resume"}
    return read(options)[0]


@pytest.mark.parametrize("words", ["", *_cli.COMMANDS, "train mnist", "sweep mnist"])
def test_help_imports_nothing_heavy(words):
    """`--help` is fast, since it imports neither torch, numpy, matplotlib nor Ray."""
    code = f"""
import sys
from isometry.lab._cli import main
try:
    main({[*words.split(), "--help"]!r})
except SystemExit:
    sys.exit(bool({{"torch", "numpy", "matplotlib", "ray"}} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "usage: isometry" in done.stdout


def test_every_option_has_a_help():
    """Each option's help is the entry of its field in a docstring."""
    for config in (*TASKS.ours.values(), Training):
        assert {field.name for field in fields(config)} <= describe(config).keys()


def test_the_line_of_the_paper():
    config = config_of(
        "train copying --model exprnn --hidden-size 190 --lag 1000 --iterations 4000 "
        "--batch-size 128 --seed 5544"
    )
    assert config.task == "copying"
    assert config.task_options["lag"] == 1000
    expected = Training(hidden_size=190, iterations=4000, batch_size=128, seed=5544)
    assert config.training == expected


def test_the_command_of_a_run_makes_the_same_run():
    """The recorded command gives the same config, also with options of the network."""
    config = config_of(
        "train copying --lag 7 --lr 0.001 --model-options rebase_every=3 "
        "--model-options retraction=cayley --tensorboard --answer after-marker "
        # this text "3" used to be spelled as the number 3
        """--model-options 'name="3"'"""
    )
    again = config_of(config.command.removeprefix("isometry "))
    assert again == config
    options = {"rebase_every": 3, "retraction": "cayley", "name": "3"}
    assert again.training.model_options == options


def test_options_from_a_file(tmp_path):
    """Options on the command line win over options in the file."""
    file = tmp_path / "run.toml"
    file.write_text(
        'task = "copying"\nlag = 7\nlr = 0.5\n[model_options]\nrebase_every = 3\n'
    )
    config = config_of(f"train --config {file}")
    assert (config.task_options["lag"], config.training.lr) == (7, 0.5)
    assert config.training.model_options == {"rebase_every": 3}
    config = config_of(f"train copying --config {file} --lag 9")
    assert (config.task_options["lag"], config.training.lr) == (9, 0.5)


def test_train_prints_the_folder_alone(tmp_path, capsys):
    """`isometry train` prints the folder alone, and makes the run of `lab.train`."""
    line = ["train", "copying", *SMALL, "--log-every", "1", "--out"]
    assert _cli.main([*line, str(tmp_path / "run")]) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'run'}\n"
    assert "finished after 4 steps" in output.err
    assert "at the best test, as the paper" in output.err
    config = small(iterations=4, evaluate_every=100, checkpoint_every=100)
    train(config, tmp_path / "other")
    assert records(tmp_path / "run") == records(tmp_path / "other")
    assert tensors(tmp_path / "run") == tensors(tmp_path / "other")
    assert _cli.main(["train", "--resume", str(tmp_path / "run")]) == 0


def test_runs_go_to_the_data_directory(tmp_path, monkeypatch, capsys):
    """By default each run goes to a new folder in the data directory."""
    monkeypatch.setattr(
        "platformdirs.user_data_path", lambda name: tmp_path / "data" / name
    )
    folders = []
    for _ in range(2):
        assert _cli.main(["train", "copying", *SMALL]) == 0
        folders.append(Path(capsys.readouterr().out.strip()))
    runs = tmp_path / "data" / "isometry" / "runs"
    assert folders == [runs / f"copying-exprnn-6-00{i}" for i in (1, 2)]


def test_a_diverged_run_is_a_failure(tmp_path, capsys):
    words = [*SMALL, "--lr", "1e15", "--out", str(tmp_path / "run")]
    assert _cli.main(["train", "copying", *words]) == 1
    err = capsys.readouterr().err
    truth = "the loss diverged at step 2. That was before its first checkpoint"
    assert f"{truth}; try a smaller `--lr`" in err
    # `--resume` used to say step 1, and `load_model` that the run must be resumed
    assert _cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert f"{truth}. It would diverge again. Begin another run with a sma" in err
    with pytest.raises(RunError, match=rf"a checkpoint; {truth}. Begin another run"):
        load_model(tmp_path / "run")


@pytest.mark.errors
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "{made}"], "exists, and runs are never overwritten"),
        (["--lag", "0"], "`--lag` must be at least 1; got 0"),
        (["--hidden-size", "0"], "`--hidden-size` must be at least 1; got 0"),
        # the error used to say "`name` must be", but there is no such option
        (["--model", "exprn"], "`--model` must be one of exprnn"),
        (["--model", "exprn"], "got 'exprn'. Did you mean exprnn?"),
        # it used to be "got init, rebase_ever", but only the recipe sets `init`
        (
            ["--model-options", "rebase_ever=3"],
            "got rebase_ever. Did you mean rebase_every? It has",
        ),
        (
            ["--model", "lstm", "--model-options", "num_layer=2"],
            "options of lstm; got num_layer. Did you mean num_layers?",
        ),
        (["--optimizer", "adm"], "got 'adm'. Did you mean Adam?"),
        # the error used to ask "Did you mean LBFGS?", which is refused as well
        (["--optimizer", "LBFGSS"], "such as Adam; got 'LBFGSS'.\n"),
        # the list used to have internal options, and `num_layers` three times
        (
            ["--model", "urnn", "--model-options", "foo=3"],
            "got foo. It has num_layers, dropout, chunk",
        ),
        # it used to be a traceback of torch: "value cannot be converted to type float"
        (["--lr", "1e38"], "`--lr` must be a number from 0 to 1e+15; got 1e+38"),
        (["--config", "{file}"], "got lagg. Did you mean lag? `isometry train copying"),
        (["--config", "{file}.toml"], "`--config` must be a TOML file; got "),
        (["--config", "{bad}"], "bad.toml: Invalid value (at end of document)"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_a_line(words, message, tmp_path, capsys):
    """A mistake ends with exit code 2 and one line, without a traceback."""
    (tmp_path / "run.toml").write_text("lagg = 3\n")
    (tmp_path / "bad.toml").write_text("lag = [")
    places = {"made": tmp_path, "file": tmp_path / "run.toml"}
    places["bad"] = tmp_path / "bad.toml"
    words = [word.format(**places) for word in words]
    out = [] if "--out" in words else ["--out", str(tmp_path / "run")]
    assert _cli.main(["train", "copying", *SMALL, *out, *words]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("isometry: ")
    assert message in output.err


@pytest.mark.errors
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lag = true", "`lag` must be a whole number; got True"),
        ("lag = 3.5", "`lag` must be a whole number; got 3.5"),
        ("seed = 1.5", "`seed` must be a whole number; got 1.5"),
        ('lr = "small"', "`lr` must be a number; got 'small'"),
        ("model_options = 3", "`model_options` must be a table of names and values"),
        ('answer = "late"', "`answer` must be one of at-marker, after-marker; got"),
        ("tensorboard = 1", "`tensorboard` must be true or false; got 1"),
        ('task = ["copying"]', "`task` must be one of copying"),
    ],
)
def test_a_value_of_another_kind_is_named(line, message, tmp_path, capsys):
    """A wrong type in a file is named at once, as on the command line."""
    (tmp_path / "run.toml").write_text(line)
    task = [] if line.startswith("task") else ["copying"]
    words = ["--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    assert _cli.main(["train", *task, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_whole_numbers_and_null_are_what_they_were(tmp_path):
    """1 is accepted as a rate, and null in a JSON file stands for a missing option."""
    file = tmp_path / "run.toml"
    file.write_text("lr = 1\n")
    training = config_of(f"train copying --config {file}").training
    assert training == Training(lr=1)
    config = Config("copying", {}, training)
    assert Config.from_json(config.to_json()) == config


def test_the_root_is_found_from_anywhere(tmp_path, monkeypatch):
    """A run can be resumed from another folder: a relative root becomes absolute."""
    monkeypatch.chdir(tmp_path)
    config = config_of("train mnist --root some/where")
    assert config.task_options["root"] == str(tmp_path / "some" / "where")
    assert config_of(config.command.removeprefix("isometry ")) == config


@pytest.mark.errors
@pytest.mark.parametrize(
    ("words", "program", "hint"),
    [
        ("train copying --lga 5", "isometry train copying", "--lga 5. Did you mean --"),
        ("train copying --lga=5", "isometry train copying", "--lga=5. Did you mean --"),
        (
            "sweep adding --lengths 5 6",
            "isometry sweep adding",
            "Did you mean --length?",
        ),
        ("report --uot x y", "isometry report", "Did you mean --out?"),
        # the error used to be "argument TASK: invalid choice: '5'"
        ("train --resume x --iterationz 5", "isometry train", "Did you mean --iter"),
        ("sweep --seds 5 copying", "isometry sweep", "Did you mean --seeds?"),
        ("--verzion 5 train", "isometry", "--verzion 5 train. Did you mean --version?"),
        ("train copying --frobnicate", "isometry train copying", "--frobnicate.\n"),
    ],
)
def test_a_mistyped_option_is_told_by_its_command(words, program, hint, capsys):
    """A mistyped option is reported with the usage of its own command."""
    with pytest.raises(SystemExit, match="2"):
        _cli.main(shlex.split(words))
    output = capsys.readouterr().err
    assert output.startswith(f"usage: {program} ")
    assert f"{program}: error: unrecognized arguments" in output
    assert hint in output


@pytest.mark.errors
@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            "rebase_every=3 retraction=cayley",
            "retraction=cayley. Repeat --model-options for each NAME=VALUE.",
        ),
        # it used to be "must be a positive number; got '3,retraction=cayley'"
        (
            "rebase_every=3,retraction=cayley",
            "got 'rebase_every=3,retraction=cayley'. Repeat the option for each name",
        ),
        ("rebase_every", "must read NAME=VALUE; got 'rebase_every'. Repeat"),
    ],
)
def test_options_of_a_network_are_given_one_by_one(pairs, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        _cli.main(["train", "copying", "--model-options", *pairs.split()])
    assert message in capsys.readouterr().err
    config = config_of("train copying --model-options 'x=[1, 2]' --model-options y=a,b")
    assert config.training.model_options == {"x": [1, 2], "y": "a,b"}


@pytest.mark.errors
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            "copying --lag 9",
            "got `task` (the run keeps its task), `--lag` (it defines the run)",
        ),
        ("--out x", "got `--out` (the run stays in its folder). Leave"),
        ("--config x", "got `--config` (give the options directly). Leave"),
        ("--hidden-size=9", "got `--hidden-size` (it defines the run). Leave"),
    ],
)
def test_a_run_that_goes_on_refuses_options_by_name(words, named, tmp_path, capsys):
    """`--resume` refuses a task and options that define the run, each by its name."""
    train(small(iterations=1), tmp_path / "run")
    line = ["train", "--resume", str(tmp_path / "run"), *words.split()]
    assert _cli.main(line) == 2
    output = capsys.readouterr().err
    assert "a resumed run must keep all options except `--iterations`" in output
    assert named in output


@pytest.mark.errors
def test_a_sweep_that_goes_on_names_the_options_too(tmp_path, capsys):
    line = ["sweep", "--resume", str(tmp_path), "--hidden-sizes", "3", "4"]
    assert _cli.main(line) == 2
    assert "options of the runs; got --hidden-size. To" in capsys.readouterr().err


def test_options_may_come_before_the_task(tmp_path):
    """Options may come before the task, which may also come from a file."""
    assert config_of("train --lag 7 copying") == config_of("train copying --lag 7")
    words = "--model my:Net --model-options a=1 copying --model-options b=2"
    training = config_of(f"train {words}").training
    # `my:Net` is not taken for the task; `a=1`, before the task, used to be lost
    assert (training.model, training.model_options) == ("my:Net", {"a": 1, "b": 2})
    file = tmp_path / "run.toml"
    file.write_text('task = "copying"\nlag = 7\n')
    assert config_of(f"train --config {file} --lag 9").task_options["lag"] == 9


@pytest.mark.parametrize("words", ["mnist --validation 0", "timit --validation core"])
def test_a_task_reads_what_came_before_it(words):
    """`--validation` is a number of images, or the name of a set of speakers."""
    task, *option = words.split()
    before = config_of(f"train {' '.join(option)} {task}")
    assert before == config_of(f"train {words}")


@pytest.mark.errors
@pytest.mark.parametrize(
    ("words", "close"),
    [("traln", "train"), ("train copyin", "copying"), ("data get mnis", "mnist")],
)
def test_a_mistyped_choice_has_a_suggestion(words, close, capsys):
    with pytest.raises(SystemExit, match="2"):
        _cli.main(words.split())
    assert f"Did you mean {close}?" in capsys.readouterr().err


@pytest.mark.errors
@pytest.mark.parametrize(
    ("words", "option"),
    [("train mnist --root {}", "--root"), ("data get mnist --folder {}", "--folder")],
)
def test_a_folder_that_is_not_there_is_named_as_typed(words, option, tmp_path, capsys):
    """The error names the option as typed; it used to say `folder` for `--root`."""
    missing = tmp_path / "nowhere"
    assert _cli.main(words.format(missing).split()) == 2
    output = capsys.readouterr().err
    assert f"`{option}` must be a folder; got {missing}" in output


# networks whose optimizers multiply or divide the rate before they use it
@pytest.mark.parametrize("model", ["exprnn", "scurnn", "rgd", "householder", "lstm"])
def test_the_largest_rate_diverges_and_is_recorded(model, tmp_path, capsys):
    """A huge rate is recorded as divergence; at 1e38, torch's step raised an error."""
    words = [*SMALL, "--lr", "1e15", "--lr-ratio", "1e15", "--model", model]
    assert _cli.main(["train", "copying", *words, "--out", str(tmp_path / "run")]) == 1
    assert "diverged at step" in capsys.readouterr().err


@pytest.mark.errors
def test_a_place_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    words = [*SMALL, "--out", str(tmp_path / "file" / "run")]
    assert _cli.main(["train", "copying", *words]) == 2
    assert "must be a path for a new folder; got" in capsys.readouterr().err


def test_ctrl_c_before_training_is_no_traceback(monkeypatch, capsys):
    """Ctrl-C during the imports, which take seconds, prints no traceback."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isometry.lab._train.command.read", interrupted)
    assert _cli.main(["train", "copying"]) == 130
    assert capsys.readouterr().err == "isometry: interrupted\n"


@pytest.mark.errors
def test_train_without_a_task(capsys):
    assert _cli.main(["train"]) == 2
    assert "`task` must be one of copying" in capsys.readouterr().err


@pytest.mark.parametrize("name", _cli.COMMANDS)
def test_every_command_has_a_help(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        _cli.main([name, "--help"])
    assert f"usage: isometry {name}" in capsys.readouterr().out
