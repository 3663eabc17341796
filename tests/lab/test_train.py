"""How a run is trained, when it stops, and which files it leaves."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from isometry.lab import Config, RunError, Training, resume, train
from isometry.lab._process import Ranks
from isometry.lab._train.experiment import build
from isometry.lab._train.loop import Step, begin_step
from isometry.lab._train.spectrum import orthogonality_error, recurrent_matrix_of
from isometry.lab.paper import networks
from isometry.lab.paper.networks import NETWORKS, recipe_for
from isometry.lab.tasks import CopyingTask
from isometry.optim import RiemannianSGD
from tests.helpers import eps, shifted_seed
from tests.lab.small_runs import assert_same_run, records, small, summary, tensors

CPU = torch.device("cpu")


def rates(**options: Any) -> dict[str, float]:
    """Learning rates, keyed by optimizer and by what it trains: orthogonal or rest."""
    experiment = build(small(**options), CPU)
    place = "network.cells.0.parametrizations.weight_hh.original"
    X = experiment.model.get_parameter(place)
    table = {}
    for optimizer in experiment.optimizers:
        for group in optimizer.param_groups:
            ours = any(p is X for p in group["params"])
            place = "orthogonal" if ours else "rest"
            table[f"{type(optimizer).__name__}, {place}"] = group["lr"]
    return table


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # the paper's table: 2e-4 for copying, a tenth of it for the orthogonal weight
        ({}, {"RMSprop, rest": 2e-4, "RMSprop, orthogonal": 2e-5}),
        ({"lr": 1e-3}, {"RMSprop, rest": 1e-3, "RMSprop, orthogonal": 1e-4}),
        (
            {"lr": 1e-3, "lr_ratio": 0.5},
            {"RMSprop, rest": 1e-3, "RMSprop, orthogonal": 5e-4},
        ),
        ({"optimizer": "Adam"}, {"Adam, rest": 2e-4, "Adam, orthogonal": 2e-5}),
    ],
    ids=str,
)
def test_rates_are_the_papers_or_the_users(options, expected):
    found = rates(**options)
    assert found == pytest.approx(expected, rel=1e-12)


# optimizers that need closures, sparse gradients or matrices only
REFUSED = {"LBFGS": "dense", "SparseAdam": "dense", "Muon": "only supports 2D"}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, found in vars(torch.optim).items()
        if isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
    ],
)
def test_any_optimizer_of_torch_trains_or_says_why_not(name, tmp_path):
    """Each optimizer of torch changes the weights in two steps, or is refused at once.

    It is refused before a folder is made.
    """
    config = small(optimizer=name, iterations=2)
    if name in REFUSED or name == "Optimizer":
        reason = REFUSED.get(name, "accept the network's parameters")
        with pytest.raises(ValueError, match=rf"`optimizer` must.*{reason}"):
            train(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
        return
    assert train(config, tmp_path / "run").summary["steps"] == 2
    first = build(config, CPU).model.state_dict()["output.weight"]
    last = tensors(tmp_path / "run")["model.output.weight"]
    assert last != first.numpy().tobytes()


def test_same_seed_same_bits(tmp_path):
    train(small(), tmp_path / "one")
    train(small(), tmp_path / "two")
    train(small(seed=1), tmp_path / "other")
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert records(tmp_path / "one") != records(tmp_path / "other")


def test_what_a_run_leaves_behind(tmp_path):
    """A run leaves the files and names that reports rely on."""
    folder = tmp_path / "run"
    assert train(small(), folder).folder == folder
    config = json.loads((folder / "config.json").read_text())
    assert config["task"] == "copying"
    assert config["task_options"]["lag"] == 3
    assert config["model"] == "exprnn"
    entries = records(folder)
    assert [r["step"] for r in entries if r["split"] == "train"] == list(range(1, 13))
    for split in ("validation", "test"):
        lines = [r for r in entries if r["split"] == split]
        assert [r["step"] for r in lines] == [4, 8, 12]
        assert lines[0].keys() == {
            *("step", "loss", "accuracy", "orthogonality", "largest_angle", "split")
        }
    end = summary(folder)
    assert end["status"] == "finished"
    # the paper's count for n = 6 with 10 inputs and 9 outputs
    assert end["parameters"] == 15 + 60 + 6 + 54 + 9
    assert end["baseline"] == pytest.approx(2 * math.log(8) / 7)
    assert len(end["angles"]) == 6
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["threads"] == 1
    assert environment["versions"]["torch"] == torch.__version__
    sources = Path(__file__).parents[2]
    if (sources / ".git").exists():
        head = ["git", "-C", str(sources), "rev-parse", "--short=7", "HEAD"]
        revision = subprocess.run(head, capture_output=True, text=True, check=True)
        assert revision.stdout.strip() in environment["revision"]


def test_best_is_that_of_the_split_that_selects(tmp_path):
    """The summary has the test metrics at the best validation, and the best ones."""
    folder = tmp_path / "run"
    train(small(iterations=60, evaluate_every=1, lr=0.05), folder)
    lines = records(folder)
    end = summary(folder)
    for name, split in (("best", "validation"), ("best_by_test", "test")):
        # the first of the highest values
        chosen = max(
            (r for r in lines if r["split"] == split), key=lambda r: r["accuracy"]
        )
        assert end[name]["step"] == chosen["step"]
        at = [r for r in lines if r["step"] == chosen["step"] and r["split"] == "test"]
        assert end[name]["test"]["accuracy"] == at[0]["accuracy"]


def test_stops_when_solved(tmp_path):
    """A run stops below a part of the baseline, here so large that it stops at once."""
    outcome = train(small(solved=100.0), tmp_path / "run")
    assert (outcome.summary["status"], outcome.summary["steps"]) == ("solved", 4)
    assert resume(tmp_path / "run").summary["status"] == "solved"


def test_stops_when_it_stays_solved(tmp_path):
    """A run stops if it was solved at step 4 and at each evaluation for eight steps."""
    outcome = train(small(solved=100.0, solved_for=8), tmp_path / "run")
    assert (outcome.summary["status"], outcome.summary["steps"]) == ("solved", 12)
    assert outcome.summary.get("solved_at") == 4


def test_a_retraction_reaches_the_optimizer(tmp_path):
    outcome = train(small(model="rgd", retraction="exp"), tmp_path / "run")
    recipe = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert outcome.summary["status"] == "finished"
    assert recipe["optimizers"][1]["options"]["retraction"] == "exp"


@pytest.mark.errors
def test_a_retraction_needs_a_manifold(tmp_path):
    with pytest.raises(ValueError, match="`retraction` must be left out for exprnn"):
        train(small(retraction="exp"), tmp_path / "run")


def test_angles_of_the_coordinates_are_recorded(tmp_path):
    """Each evaluation records the largest angle, which is at most pi at the first."""
    train(small(lr=0.0), tmp_path / "run")
    lines = records(tmp_path / "run")
    angles = [r["largest_angle"] for r in lines if r["split"] == "test"]
    assert len(angles) == 3
    assert 0 < angles[0] <= math.pi


@pytest.mark.errors
@pytest.mark.parametrize("lr", [1e4, 1e15])
def test_divergence_keeps_the_last_good_checkpoint(lr, tmp_path):
    """After a loss that is huge or NaN, the last good checkpoint stays."""
    outcome = train(small(lr=lr, checkpoint_every=1), tmp_path / "run")
    assert outcome.summary["status"] == "diverged"
    assert outcome.summary["steps"] < 12
    has_checkpoint = (tmp_path / "run" / "checkpoint.safetensors").exists()
    if has_checkpoint:
        for name, bits in tensors(tmp_path / "run").items():
            if name.startswith("model.output"):
                values = torch.frombuffer(bytearray(bits), dtype=torch.float32)
                assert values.isfinite().all()
    left = (
        "The last good checkpoint is"
        if has_checkpoint
        else "That was before its first ch"
    )
    step = outcome.summary["steps"] + 1
    message = rf"the loss diverged at step {step}\. {left}.* run with a smaller `lr`"
    with pytest.raises(RunError, match=message):
        resume(tmp_path / "run")


def test_nan_gradient_is_not_saved(tmp_path, monkeypatch):
    """Weights that are NaN after a step with a finite loss are not saved."""
    update = Step.update

    def poisoned(step: Step) -> None:
        update(step)
        if len(records(tmp_path / "run")) == 6:
            with torch.no_grad():
                step.experiment.model.get_parameter("output.bias").fill_(math.nan)

    monkeypatch.setattr(Step, "update", poisoned)
    config = small(checkpoint_every=1, evaluate_every=12)
    outcome = train(config, tmp_path / "run")
    assert outcome.summary["status"] == "diverged"
    bias = torch.frombuffer(
        bytearray(tensors(tmp_path / "run")["model.output.bias"]), dtype=torch.float32
    )
    assert bias.isfinite().all()


@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in ("lstm", "gru")])
def test_recurrent_map_is_orthogonal(name):
    """Recurrent matrices start orthogonal, except for two networks by design."""
    experiment = build(small(model=name, hidden_size=8), CPU)
    W = recurrent_matrix_of(experiment.model)
    assert W is not None
    assert W.shape == (8, 8)
    error = orthogonality_error(experiment.model)
    assert error is not None
    if name in ("spectral", "lie"):
        return
    # 8: twice the worst of the networks here, 3.6 (urnn)
    assert error < 8 * eps(torch.float32)


def test_recurrent_map_is_what_moves_the_state():
    """h' = W h + T x with the recurrent matrix W; b = 0 makes modReLU the identity."""
    model: Any = build(small(), CPU).model
    cell: Any = model.network.get_submodule("cells.0")
    with torch.no_grad():
        cell.bias.zero_()
        h, x = torch.randn(2, 1, 6), torch.zeros(1, 1, 10)
        _, last = model.network(x, h[:1, :1])
    W = recurrent_matrix_of(model)
    assert W is not None
    torch.testing.assert_close(last[0, 0], W @ h[0, 0])


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_layers_of_torch_have_no_recurrent_map(name, tmp_path):
    """Records and summaries of torch's layers have no orthogonality."""
    train(small(model=name, iterations=4), tmp_path / "run")
    assert all("orthogonality" not in record for record in records(tmp_path / "run"))
    end = summary(tmp_path / "run")
    assert (end["angles"], end["orthogonality"]) == ([], None)


def test_a_step_is_that_of_torch():
    """A step has the gradients of the task's loss and the recipe's optimizers."""
    one, two = build(small(), CPU), build(small(), CPU)
    step = begin_step(one, one.model, Ranks(0, 1, CPU), 0)
    step.agree(interrupt=False)
    step.update()
    batch = two.task.batch(0, size=4, seed=shifted_seed(5544))
    two.task.loss(two.model(batch.x), batch).backward()
    for optimizer in two.optimizers:
        optimizer.step()
    for p, q in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1; got 0"),
        # it used to be "TypeError: 'float' object cannot be interpreted as an integer",
        # in a step
        ({"batch_size": 2.5}, "`batch_size` must be a whole number; got 2.5"),
        ({"seed": -1}, r"`seed` must be in \[0, 2\^31\); got -1"),
        ({"iterations": 1, "epochs": 1}, "must not both be given"),
        ({"iterations": None, "epochs": 1}, "`epochs` must be left out .* endless"),
        ({"optimizer": "adam"}, "`optimizer` must be a class of torch.optim"),
        ({"model": "rnn"}, "`model` must be one of exprnn"),
        ({"lr": -1.0}, "`lr` must be a number from 0 to 1e.15; got -1"),
        ({"lr": math.nan}, "`lr` must be a number from 0 to 1e.15; got nan"),
        ({"device": "gpu"}, "`device` must be available to torch here; got 'gpu'"),
        ({"model_options": {"foo": 1}}, "must be options of exprnn; got foo"),
        ({"model_options": {"input_size": 1}}, "option decides; got input_size"),
        ({"model_options": {"last_only": True}}, "option decides; got last_only"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(small(**options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_descent_on_a_group_is_kept():
    """`--optimizer` replaces the other optimizers, but not descent on a group.

    A plain optimizer would move that weight off the group.
    """
    optimizers = build(small(model="rgd", optimizer="Adam"), CPU).optimizers
    assert [type(o).__name__ for o in optimizers] == ["Adam", "RiemannianSGD"]


def test_descent_by_a_derived_optimizer_is_kept(monkeypatch):
    """A user's subclass of RiemannianSGD counts as descent on a group."""

    class Own(RiemannianSGD):
        pass

    monkeypatch.setattr(networks, "RiemannianSGD", Own)
    optimizers = build(small(model="rgd", optimizer="Adam"), CPU).optimizers
    assert [type(o).__name__ for o in optimizers] == ["Adam", "Own"]


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("symbols", [1, 12])
def test_networks_have_the_sizes_of_the_task(name, symbols):
    """An alphabet of N symbols has N + 2 classes as inputs and N + 1 as outputs."""
    options = {"lag": 3, "length": 2, "symbols": symbols, "held_out": 8}
    training = Training(model=name, hidden_size=6, batch_size=4, threads=1)
    experiment: Any = build(Config("copying", options, training), CPU)
    assert experiment.model.output.out_features == symbols + 1
    assert experiment.model.network.input_size == symbols + 2
    step = begin_step(experiment, experiment.model, Ranks(0, 1, CPU), 0)
    loss, _ = step.agree(interrupt=False)
    step.update()
    assert math.isfinite(loss)
    assert step.outputs.shape == (7, 4, symbols + 1)


def test_other_sizes_keep_what_the_paper_says(rng):
    """Other sizes keep the optimizers, and Glorot's bound has the new outputs."""
    usual, other = (
        recipe_for("scornn", CopyingTask(symbols=symbols), 6) for symbols in (8, 99)
    )
    assert other.schedule.optimizers == usual.schedule.optimizers
    weight = other.make_model(generator=rng).output.weight
    bound = math.sqrt(6 / (6 + 100))
    # uniform: the largest of 600 numbers is close to the bound
    assert 0.95 * bound < weight.abs().max() <= bound


class Mute(CopyingTask):
    """A task that expects no answer."""

    @property
    def output_size(self) -> int:
        return 0


@pytest.mark.errors
def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="`input_size` and `output_size` must be at"):
        recipe_for("exprnn", Mute())


@pytest.mark.errors
def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match="pip install tensorboard"):
        train(small(tensorboard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
