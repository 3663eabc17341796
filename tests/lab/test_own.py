"""The user's own tasks and networks, in Python and on the command line."""

import copy
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isometry.lab import (
    Config,
    RunError,
    Training,
    evaluate,
    load_model,
    register,
    resume,
    train,
    write_report,
)
from isometry.lab._cli import main
from isometry.lab.paper.networks import NETWORKS, Draw
from isometry.lab.tasks import TASKS
from tests.lab import own
from tests.lab.own import Layer, NoSizes, OrderTask, Whole
from tests.lab.small_runs import assert_same_run, records
from tests.lab.test_report import edit

TASK, LAYER, WHOLE = (f"tests.lab.own:{n}" for n in ("OrderTask", "Layer", "Whole"))
LINE = ["--hidden-size=4", "--batch-size=4", "--iterations=6", "--threads=1"]
LINE += ["--log-every=1", "--evaluate-every=2", "--checkpoint-every=2", "--steps=5"]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Restore the registered names after each test."""
    known = dict(TASKS.known), dict(NETWORKS.known)
    # the pages of the manual register names, and may have run before in this process
    forget()
    yield
    TASKS.known, NETWORKS.known = known


def forget() -> None:
    """Forget all names but the library's own."""
    TASKS.known, NETWORKS.known = dict(TASKS.ours), dict(NETWORKS.ours)


def config(task: str = TASK, model: str = LAYER, **options: Any) -> Config:
    usual: dict[str, Any] = {
        "hidden_size": 4,
        "batch_size": 4,
        "iterations": 6,
        "threads": 1,
    }
    usual |= {"log_every": 1, "evaluate_every": 2, "checkpoint_every": 2}
    training = Training(model=model, **(usual | options))
    return Config(task, {"steps": 5, "held_out": 8}, training)


@pytest.mark.parametrize("model", [LAYER, WHOLE, "exprnn", "torch.nn:RNN"])
def test_a_line_names_a_class(model, tmp_path, capsys):
    """A class named on the command line has its dataclass fields as options.

    The command makes the same run as `train` in Python.
    """
    out = ["--out", str(tmp_path / "line")]
    assert main(["train", TASK, *LINE, "--held-out=8", "--model", model, *out]) == 0
    assert "order" not in TASKS
    train(config(model=model), tmp_path / "python")
    assert_same_run(tmp_path / "line", tmp_path / "python")
    output = capsys.readouterr().err
    assert "test right 0" in output or "test right 1" in output
    assert {"right", "loss"} <= records(tmp_path / "line")[-1].keys()


def test_a_line_names_a_class_of_the_current_folder(tmp_path):
    """A class in the current folder is found, as by `python -m`."""
    text = Path(own.__file__).read_text()
    (tmp_path / "mine.py").write_text(text)
    words = ["train", "mine:OrderTask", *LINE, "--model=mine:Whole", "--out=run"]
    code = f"import sys; sys.path.remove(''); from isometry.lab._cli import main; \
        sys.exit(main({words!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["format"] == 3


def test_options_of_a_class_are_in_the_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["train", TASK, "--help"])
    output = capsys.readouterr().out
    assert "Tell which of two tones came first." in output
    assert "--steps INT" in output
    assert "time steps of a sequence (6)" in output


def test_an_option_may_be_the_beginning_of_another(tmp_path, capsys):
    """An option may be a prefix of another option.

    `--mode` used to be refused: "ambiguous option: could match --model,
    --model-options". The command in `config.json` was refused as well.
    """
    task, out = "tests.lab.own:ShortTask", tmp_path / "run"
    line = [task, *LINE, "--model", LAYER, "--mode=all", "--h", "2.5", "--s=3", "--o"]
    assert main(["train", *line, "--out", str(out)]) == 0
    saved = json.loads((out / "config.json").read_text())
    options = {k: saved["task_options"][k] for k in ("mode", "h", "s", "o")}
    assert options == {"mode": "all", "h": 2.5, "s": 3, "o": True}
    words = [*shlex.split(saved["command"])[1:], "--out", str(tmp_path / "again")]
    assert main(words) == 0
    assert_same_run(out, tmp_path / "again")
    capsys.readouterr()
    line = [task, "--mode", "all", "some", "--h", "1", "2", "--out", str(tmp_path)]
    assert main(["sweep", *line, "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_an_option_may_be_a_table(tmp_path):
    """An option may be a table.

    A table used to be refused: "must be a table; got [('a', 1)]".
    """
    task, out = "tests.lab.own:TableTask", tmp_path / "run"
    line = ["train", task, *LINE, "--model", LAYER, "--table=a=1", "--table", "b=x"]
    assert main([*line, "--out", str(out)]) == 0
    saved = json.loads((out / "config.json").read_text())
    assert saved["task_options"]["table"] == {"a": 1, "b": "x"}
    assert "--table a=1 --table b=x" in saved["command"]


def test_a_registered_class_has_a_name(tmp_path):
    register(OrderTask)
    register(Layer, "mine")
    train(config("order", "mine"), tmp_path / "run")
    # both names are registered now, so no trust is needed
    assert resume(tmp_path / "run", iterations=8).summary["steps"] == 8
    edit(tmp_path / "run" / "config.json", task=TASK, model=LAYER)
    assert isinstance(load_model(tmp_path / "run"), nn.Module)
    assert "order" in TASKS
    assert TASK not in list(TASKS)


def test_an_installed_package_lists_its_own(tmp_path, monkeypatch):
    """Entry points of an installed package are listed.

    So a name in a folder can only lead to installed code.
    """
    points = {
        "isometry.tasks": [EntryPoint("theirs", TASK, "isometry.tasks")],
        "isometry.networks": [EntryPoint("net", WHOLE, "isometry.networks")],
    }
    monkeypatch.setattr(
        "isometry.lab._options.entry_points", lambda *, group: points[group]
    )
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", "theirs", *LINE, "--model", "net", *out]) == 0
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert isinstance(load_model(tmp_path / "run"), Whole)


def test_a_folder_names_no_code_to_import(tmp_path, monkeypatch, capsys):
    """A folder does not name code to import unless the caller trusts it.

    A hostile folder could name any module.
    """
    train(config(), tmp_path / "run")
    TASKS.known.pop(TASK)
    NETWORKS.known.pop(LAYER)
    edit(tmp_path / "run" / "summary.json", status="interrupted")
    trap = tmp_path / "trap.py"
    trap.write_text("raise SystemExit('code of the folder was run')")
    monkeypatch.syspath_prepend(tmp_path)
    for name, entry in ((TASK, "task"), (LAYER, "model")):
        for call in (resume, load_model):
            with pytest.raises(
                ValueError, match=rf"`{entry}` must be registered.*{name}"
            ):
                call(tmp_path / "run", trust=[{TASK: LAYER, LAYER: TASK}[name]])
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "add `--trust`" in capsys.readouterr().err
    # the error about the existing folder suggests a command with `--trust`
    assert main(["train", TASK, *LINE, "--out", str(tmp_path / "run")]) == 2
    assert f"train --resume {tmp_path / 'run'} --trust" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "run"), "--trust"]) == 0
    edit(tmp_path / "run" / "summary.json", status="interrupted")
    edit(tmp_path / "run" / "config.json", model="trap:Net")
    for call in (resume, load_model):
        with pytest.raises(ValueError, match=r"got trap:Net"):
            call(tmp_path / "run")
    # a report imports no class, so it is written
    write_report([tmp_path / "run"], tmp_path / "report")


def test_a_sweep_over_networks_of_ones_own(tmp_path, capsys):
    """The processes of a sweep import the user's classes.

    A plan written by somebody else is not trusted.
    """
    line = ["sweep", TASK, *LINE, "--models", LAYER, WHOLE, "--jobs=1"]
    assert main([*line, "--out", str(tmp_path / "sweep")]) == 0
    names = sorted(p.parent.name for p in (tmp_path / "sweep").glob("*/config.json"))
    assert [n.split("-seed")[0] for n in names] == [
        "OrderTask-Layer-4",
        "OrderTask-Whole-4",
    ]
    table = (tmp_path / "sweep" / "report" / "results.md").read_text()
    assert "| Layer | 4 |" in " ".join(table.split())
    assert "Test right at best validation" in table
    forget()
    capsys.readouterr()
    again = ["sweep", "--resume", str(tmp_path / "sweep")]
    assert main(again) == 2
    assert "add `--trust`" in capsys.readouterr().err
    assert main([*again, "--trust"]) == 0


def test_the_report_needs_no_code_of_the_task(tmp_path):
    """A report needs no code of the task: the run has recorded all that it shows."""
    train(config(), tmp_path / "run")
    forget()
    write_report([tmp_path / "run"], tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    text = (tmp_path / "report" / "results.md").read_text()
    assert "<title>Isometry: Order, steps 5" in page
    assert "| Layer | 4 |" in " ".join(text.split())
    assert "Test right at best validation" in text
    assert (tmp_path / "report" / "order-right-test.svg").exists()


def test_parametrized_weights_have_a_tenth_of_the_rate(tmp_path):
    """Constrained weights have a tenth of the rate, unless the class has a schedule."""
    outcome = train(config(), tmp_path / "layer")
    assert outcome.summary["source"].startswith("ours: Adam")
    recipe = json.loads((tmp_path / "layer" / "config.json").read_text())["recipe"]
    rates = [optimizer["options"]["lr"] for optimizer in recipe["optimizers"]]
    assert rates == [1e-3, 1e-4]
    train(config(model=WHOLE), tmp_path / "whole")
    recipe = json.loads((tmp_path / "whole" / "config.json").read_text())["recipe"]
    assert [optimizer["name"] for optimizer in recipe["optimizers"]] == ["SGD"]


@pytest.mark.errors
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tests.lab.own:Nothing"], "has no attribute 'Nothing'. Install its package"),
        (["tests.lab.nowhere:Task"], "No module named 'tests.lab.nowhere'"),
        (["tests.lab.own:Layer"], "`task` must be a dataclass that derives from"),
        (["tests.lab.own:ListTask"], "`places` must be annotated as bool, int"),
        (["tests.lab.own:RateTask"], "those of isometry train; got lr. Rename these"),
        # the error used to be "argument --config: conflicting option string: --config"
        (["tests.lab.own:OutTask"], "isometry train; got config, out, task. Rename"),
        (["tests.lab.own:AbstractEndlessTask"], "which does not define draw, input"),
        # it used to be AttributeError: 'NoHeldOutTask' object has no attribute
        # 'held_out'
        (["tests.lab.own:NoHeldOutTask"], "`task` must have `held_out`, the number of"),
        (["orde"], "must be one of copying, adding, mnist, timit, or a class as"),
    ],
)
def test_a_task_that_is_none_is_told(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", *words])
    assert message in capsys.readouterr().err


@pytest.mark.errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "tests.lab.own:NoSizes"}, r"is called with `input_size`, `hidden"),
        ({"model": "tests.lab.own:OrderTask"}, r"derives from torch.nn.Module; got"),
        ({"model": LAYER, "model_options": {"bia": 1}}, r"got bia. Did you mean bias?"),
        # the error used to end with "It has ."
        ({"model": WHOLE, "model_options": {"foo": 3}}, r"got foo. It has no options"),
    ],
)
def test_a_network_that_is_none_is_told(options, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        train(config(**options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.errors
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OneTensor", "`OneTensor` must return a tuple of its states and its last .*"),
        ("Failing", "a scale of 3 went wrong"),
    ],
)
def test_a_mistake_in_a_network_keeps_its_traceback(name, message, tmp_path):
    """A mistake in a network keeps its traceback.

    The command line used to print one line, and to leave a folder behind; the corrected
    command was then refused, since the folder existed.
    """
    out, model = tmp_path / "run", f"tests.lab.own:{name}"
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        main(["train", TASK, *LINE, "--model", model, "--out", str(out)])
    assert caught.value.__notes__ == ["isometry: raised after 0 steps of the run"]
    assert not out.exists()
    assert main(["train", TASK, *LINE, "--model", LAYER, "--out", str(out)]) == 0


@pytest.mark.errors
def test_a_mistake_in_a_constructor_keeps_its_traceback(monkeypatch, tmp_path):
    """A mistake in a constructor keeps its traceback.

    A `ValueError` without options used to be printed as one line.
    """

    def fail(self: Layer, input_size: int, hidden_size: int, scale: int = 1) -> None:
        raise ValueError(f"a width of {hidden_size * scale} went wrong")

    monkeypatch.setattr(Layer, "__init__", fail)
    line = ["train", TASK, *LINE, "--model", LAYER, "--out", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="a width of 4 went wrong"):
        main(line)
    # in this case the option may be wrong, and one line is enough
    assert main([*line, "--model-options", "scale=3"]) == 2


def test_a_mistake_after_recorded_steps_keeps_the_folder(monkeypatch, tmp_path):
    """If a run fails after recorded steps, its folder stays."""

    def fail(task: OrderTask, step: int, **kwargs: Any) -> Any:
        if step == 3:
            raise ValueError("no batch")
        return OrderTask.__mro__[1].batch(task, step, **kwargs)

    monkeypatch.setattr(OrderTask, "batch", fail)
    with pytest.raises(ValueError, match="no batch"):
        train(config(), tmp_path / "run")
    assert len(records(tmp_path / "run")) > 2


@pytest.mark.errors
def test_the_way_on_after_a_full_disk_names_trust(monkeypatch, tmp_path):
    """Without `--trust`, the command in the message would be refused."""

    def full(*_: object, **_options: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("isometry.lab._train.recorder.Recorder.checkpoint", full)
    with pytest.raises(RunError, match=r"device\. Solve.* --resume \S+/run --trust$"):
        train(config(), tmp_path / "run")


def test_folders_may_be_strings(tmp_path, monkeypatch):
    """`train` and `write_report` used to call methods of a path on a string."""
    monkeypatch.chdir(tmp_path)
    train(config(), "run")
    assert write_report(["run"], "report").exists()


@pytest.mark.errors
def test_names_of_ours_are_taken():
    with pytest.raises(ValueError, match=r"`name` must not be one of isometry's own"):
        register(OrderTask, "copying")
    with pytest.raises(ValueError, match=r"is called with `input_size`"):
        register(NoSizes)


def test_metrics_without_a_weight_have_the_weight_of_the_loss():
    """A metric without a weight is averaged with the weights of the loss.

    Batches of six and two: their means are weighted by their sizes.
    """
    task, right = OrderTask(held_out=8), torch.tensor([1.0, 0.0])

    def model(x: torch.Tensor) -> torch.Tensor:
        # the first answer is right in the larger batch, and the second in the other
        answer = right if x.shape[1] == 6 else 1 - right
        return answer.expand(1, x.shape[1], 2)

    y = torch.cat([batch.y for batch in task.evaluation("test", 6)])
    expected = ((y[:6] == 0).sum() + (y[6:] == 1).sum()).item() / 8
    assert evaluate(task, model, "test", 6)["right"] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["Layer", "Plain"])
def test_a_network_reads_classes_as_unit_vectors(name):
    """A network reads classes as unit vectors, with its own output layer or without.

    With an output layer it used to get raw integers.
    """
    task = OrderTask()
    network: Any = NETWORKS.find(f"tests.lab.own:{name}", trust=True)
    model = network.make_model(task, 4, {}, Draw())
    x = task.batch(0, size=2, seed=1).x
    assert torch.equal(model(x), model(torch.nn.functional.one_hot(x, 3).float()))
    assert copy.deepcopy(model).double()(x).dtype == torch.float64
