"""Mistakes in the user's own tasks and networks: each error says what to do."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.optim import SGD

from isometry.lab import (
    Config,
    OptimizerRecipe,
    Schedule,
    evaluate,
    register,
    train,
)
from isometry.lab._cli import main
from isometry.lab._train.experiment import build
from isometry.lab.paper.networks import recipe_for
from isometry.lab.tasks import CopyingTask
from isometry.optim import RiemannianAdam
from tests.lab.own import NumberTask, OrderTask, Whole
from tests.lab.small_runs import assert_same_run
from tests.lab.test_own import LAYER, WHOLE, config, forget


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Forget registered classes, since these tests patch them."""
    forget()
    yield
    forget()


@pytest.mark.errors
@pytest.mark.parametrize("batches", [0, -1, 2.5])
def test_an_epoch_has_at_least_one_batch(batches, monkeypatch, tmp_path):
    """An epoch must have at least one batch.

    With 0, such as `90 // 128`, 10,000 steps used to be trained without a warning.
    """
    monkeypatch.setattr(OrderTask, "epoch", lambda _task, _size: batches)
    message = rf"`epoch` of OrderTask must return .*; got {batches} for batches of 4\."
    with pytest.raises(ValueError, match=message):
        train(config(iterations=None), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.errors
def test_the_main_metric_is_among_the_metrics(monkeypatch, tmp_path):
    """The main metric must be among the metrics.

    If it was not, the second evaluation used to raise a KeyError.
    """
    monkeypatch.setattr(OrderTask, "metric", "rihgt")
    message = "must be one of loss, right, .*; got 'rihgt'. Did you mean right?"
    with pytest.raises(ValueError, match=message):
        train(config(log_every=9, iterations=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=message):
        evaluate(OrderTask(), lambda x: torch.zeros(1, x.shape[1], 2), "test", 4)


def test_a_metric_may_be_a_tensor(monkeypatch, tmp_path):
    """A metric may be a tensor.

    It used to be refused: "Object of type Tensor is not JSON serializable".
    """
    train(config(), tmp_path / "numbers")
    numbers = OrderTask.metrics
    monkeypatch.setattr(
        OrderTask,
        "metrics",
        lambda *args: {k: torch.tensor([v]) for k, v in numbers(*args).items()},
    )
    train(config(), tmp_path / "tensors")
    assert_same_run(tmp_path / "numbers", tmp_path / "tensors")


@pytest.mark.errors
@pytest.mark.parametrize("value", [torch.ones(4), "1"])
def test_a_metric_is_a_number(value, monkeypatch, tmp_path):
    monkeypatch.setattr(OrderTask, "metrics", lambda *_: {"right": value})
    with pytest.raises(TypeError, match=r"`metrics` of OrderTask .* for 'right'\. Re"):
        train(config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def schedule(*names: str) -> Schedule:
    """A schedule with an optimizer for these parameters, and one for all others."""
    first = OptimizerRecipe(SGD, {"lr": 0.25}, names)
    return Schedule((first, OptimizerRecipe(SGD, {"lr": 0.5})), "tests")


@pytest.mark.parametrize(
    ("name", "count"),
    [("head.weight", 1), ("head", 2), ("bias", 1), ("layer.bias_hh_l0", 1)],
)
def test_a_schedule_names_parameters_or_modules(name, count, monkeypatch, tmp_path):
    """A schedule may name parameters or modules.

    A name with a dot used to match no parameter, so the parameter had the rate of the
    other optimizer.
    """
    monkeypatch.setattr(Whole, "schedule", schedule(name))
    train(config(model=WHOLE), tmp_path / "run")
    experiment = build(config(model=WHOLE), torch.device("cpu"))
    assert [o.defaults["lr"] for o in experiment.optimizers] == [0.25, 0.5]
    sizes = [len(o.param_groups[0]["params"]) for o in experiment.optimizers]
    assert sizes == [count, 7 - count]


@pytest.mark.errors
@pytest.mark.parametrize("name", ["nope", "ead.weight", "head.weigh"])
def test_a_schedule_that_names_no_parameter(name, monkeypatch, tmp_path):
    """A name that matches no parameter is an error; it used to be ignored."""
    monkeypatch.setattr(Whole, "schedule", schedule("embed", name))
    message = rf"the schedule of .*Whole must be .*; got '{name}'\. It has embed\.we"
    with pytest.raises(ValueError, match=message):
        train(config(model=WHOLE), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.errors
def test_a_schedule_has_an_optimizer_for_the_rest():
    """A schedule needs an optimizer without `parameters`, and each needs an `lr`.

    Other schedules used to fail later, with a bare StopIteration or KeyError.
    """
    with pytest.raises(ValueError, match=r"without `parameters`.* only for head\. "):
        Schedule((OptimizerRecipe(SGD, {"lr": 0.5}, ("head",)),), "tests")
    with pytest.raises(ValueError, match=r"must have an `lr`; got \{\} for SGD"):
        Schedule((OptimizerRecipe(SGD, {}),), "tests")


class OwnAdam(RiemannianAdam):
    """An optimizer of the user's own for weights on manifolds."""


@pytest.mark.errors
@pytest.mark.parametrize("kind", [RiemannianAdam, OwnAdam, SGD])
def test_a_weight_on_a_manifold_needs_an_optimizer_for_manifolds(kind):
    """A weight on a manifold needs an optimizer that derives from isometry's.

    A user's subclass used to be refused unless `isometry.optim` had a class of the same
    name.
    """
    own = Schedule((OptimizerRecipe(kind, {"lr": 0.5}),), "tests")
    plan = replace(recipe_for("rgd", CopyingTask(), 4), schedule=own)
    model = plan.make_model()
    if kind is SGD:
        with pytest.raises(ValueError, match=r"isometry\.optim, .* rgd .*; got SGD\. "):
            plan.make_optimizers(model)
    else:
        (optimizer,) = plan.make_optimizers(model)
        assert type(optimizer) is kind


@pytest.mark.errors
def test_an_attribute_that_is_no_schedule(monkeypatch, tmp_path):
    """A `schedule` of another type is refused.

    It used to be AttributeError: type object 'SGD' has no attribute 'optimizers'.
    """
    monkeypatch.setattr(Whole, "schedule", SGD)
    with pytest.raises(TypeError, match=r"`schedule` of Whole must be an .*Schedule; "):
        train(config(model=WHOLE), tmp_path / "run")


@pytest.mark.errors
def test_a_config_that_is_none(tmp_path):
    """A config of another type is refused.

    It used to be AttributeError: 'dict' object has no attribute 'training'.
    """
    table: Any = {"task": "copying"}
    with pytest.raises(TypeError, match=r"`config` must be a `Config`; got dict\. Wr"):
        train(table, tmp_path / "run")
    with pytest.raises(TypeError, match=r"`training` must be a `Training`; got dict\."):
        Config("copying", {}, table)


@pytest.mark.errors
@pytest.mark.parametrize("kind", [AttributeError, ValueError])
@pytest.mark.parametrize("words", [["wrong:Task"], ["copying", "--model=wrong:Net"]])
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_a_mistake_in_a_module_keeps_its_traceback(
    command, words, kind, tmp_path, monkeypatch
):
    """An error in the user's module keeps its traceback.

    The message alone does not say in which line of which class it was. An
    AttributeError used to be taken for a class that the module does not have. A sweep
    used to print the message only.
    """
    code = f"raise {kind.__name__}('a line that went wrong')"
    (tmp_path / "wrong.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kind, match="a line that went wrong") as caught:
        main([command, *words, "--out", str(tmp_path / "run")])
    assert caught.value.__notes__ == ["isometry: raised by the import of wrong"]


@pytest.mark.errors
@pytest.mark.parametrize("words", [["foobar:Task"], ["copying", "--model=foobar:Net"]])
def test_a_missing_import_in_a_module_is_its_own_error(words, tmp_path, monkeypatch):
    """An import that fails in the user's module is reported unchanged.

    `foobar` begins with `foo`, so the error used to say that `foobar` itself could not
    be imported.
    """
    (tmp_path / "foobar.py").write_text("import foo")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'foo'"):
        main(["train", *words, "--out", str(tmp_path / "run")])


@pytest.mark.errors
def test_a_note_of_another_library_asks_for_no_traceback(monkeypatch, tmp_path, capsys):
    """Only errors that isometry has marked get a traceback, not all with a note."""

    def check(self: CopyingTask) -> None:
        error = ValueError("a file that went wrong")
        error.add_note("a note of another library")
        raise error

    monkeypatch.setattr(CopyingTask, "check", check)
    assert main(["train", "copying", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "isometry: a file that went wrong\n"


@pytest.mark.errors
def test_only_classes_are_registered():
    """An object that is no class is refused; Python's error used to be raised."""
    with pytest.raises(TypeError, match=r"must be .*; got 3"):
        register(3)  # type: ignore[type-var] # not a class
    # a Literal of numbers used to be accepted, but none of its values
    with pytest.raises(ValueError, match=r"`level` must .* Literal of strings"):
        register(NumberTask)


def test_the_way_on_after_an_interruption_names_trust(monkeypatch, tmp_path, capsys):
    """If only the file of a sweep names a class, resuming the sweep needs `--trust`.

    The printed command used to lack `--trust`, and was refused.
    """

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isometry.lab._sweep.command.sweep", interrupted)
    file, out = tmp_path / "sweep.toml", tmp_path / "sweep"
    file.write_text(f'task = "copying"\nmodels = ["{LAYER}"]\nlag = 3\n')
    assert main(["sweep", "--config", str(file), "--out", str(out)]) == 130
    assert f"sweep --resume {out} --trust\n" in capsys.readouterr().err
    # before the plan is read, its classes are not known; the command has `--trust`
    monkeypatch.setattr("isometry.lab._sweep.plan.read_plan", interrupted)
    assert main(["sweep", "--resume", str(out), "--trust"]) == 130
    assert f"sweep --resume {out} --trust\n" in capsys.readouterr().err
