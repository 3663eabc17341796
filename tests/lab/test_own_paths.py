"""Options of a user's task that hold a path, or a value that looks like an option."""

import shlex
from pathlib import Path

import pytest

from isometry.lab._cli import main
from isometry.lab._train.command import read
from isometry.lab._train.config import read_config

TASK = "tests.lab.own:FolderTask"


@pytest.mark.parametrize("root", ["C", 3])
def test_only_the_options_in_paths_become_absolute(root, tmp_path, monkeypatch):
    """A task says which of its options hold a path.

    Every option named `root` used to become an absolute path: "C" was stored as
    "/.../C", and 3 raised a `TypeError`. Options with other names stayed relative, so
    a run that was resumed from another folder did not find its data.
    """
    monkeypatch.chdir(tmp_path)
    config, _ = read({"task": TASK, "root": root, "folder": "data"})
    assert config.task_options["root"] == root
    assert config.task_options["folder"] == str(tmp_path / "data")
    assert config.command.endswith(f"--root {root} --folder {tmp_path / 'data'}")
    monkeypatch.setenv("HOME", str(tmp_path))
    config, _ = read({"task": TASK, "folder": "~/data"})
    assert config.task_options["folder"] == str(tmp_path / "data")
    config, _ = read({"task": TASK})
    assert config.task_options["folder"] is None


@pytest.mark.parametrize("task", ["mnist", "timit"])
def test_the_folder_of_our_tasks_is_a_path(task):
    config, _ = read({"task": task, "root": "data"})
    assert config.task_options["root"] == str(Path.cwd() / "data")


@pytest.mark.parametrize(
    "options",
    [{"h": -1e-5}, {"h": -0.5}, {"root": "-x"}, {"root": "--threads"}],
    ids=str,
)
def test_the_command_of_a_run_spells_a_value_that_begins_with_a_dash(options, tmp_path):
    """The recorded command can be given to a shell.

    It used to contain `--h -1e-05`, and argparse takes a word that begins with a dash
    for an option: "argument --h: expected one argument".
    """
    task = "tests.lab.own:ShortTask" if "h" in options else TASK
    config, _ = read({"task": task, "iterations": 1, "hidden_size": 4} | options)
    words = shlex.split(config.command)[1:]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert options.items() <= read_config(tmp_path / "run").task_options.items()


@pytest.mark.errors
def test_paths_must_be_options(tmp_path, capsys):
    words = ["--iterations=1", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="2"):
        main(["train", "tests.lab.own:NoFolderTask", *words])
    message = "`paths` must name options of type str; got folder, steps in"
    assert message in capsys.readouterr().err
