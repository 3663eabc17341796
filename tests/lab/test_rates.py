"""Rates that decay and gradients that are clipped: `--decay` and `--clip-norm`."""

import json
import math

import pytest
import torch

from isometry.lab import OptimizerRecipe, Schedule, register, train
from isometry.lab._process import Ranks
from isometry.lab._train.experiment import build
from isometry.lab._train.loop import begin_step
from tests.lab.small_runs import assert_same_run, small

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", ["exprnn", "rgd"])
@pytest.mark.parametrize(
    ("decay", "factors"),
    [
        ("cosine", [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ("linear", [1, 0.75, 0.5, 0.25]),
    ],
)
def test_rates_decay_to_zero_over_the_run(decay, factors, model):
    """Every rate decays by the factor of its step, also on a manifold."""
    experiment = build(small(model=model, decay=decay, iterations=4), CPU)
    groups = [g for o in experiment.optimizers for g in o.param_groups]
    first = [group["lr"] for group in groups]
    assert len(first) > 1
    for index, factor in enumerate(factors):
        begin_step(experiment, experiment.model, Ranks(0, 1, CPU), index).update()
        expected = [factor * lr for lr in first]
        assert [group["lr"] for group in groups] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"model": "exprnn", "model_options": {"unitary": True}}, {"model": "lstm"}],
    ids=str,
)
def test_a_gradient_is_clipped_to_its_norm(options):
    """A clipped gradient keeps its direction and has the norm that was asked for."""
    norm, grads = 1e-3, []
    for more in ({}, {"clip_norm": norm}):
        experiment = build(small(**options, **more), CPU)
        begin_step(experiment, experiment.model, Ranks(0, 1, CPU), 0).update()
        parts = [p.grad for p in experiment.model.parameters() if p.grad is not None]
        # complex here, and pairs of real numbers below: a complex entry counts as two
        grads.append(torch.cat([p.to(torch.cfloat).flatten() for p in parts]))
    whole, clipped = map(torch.view_as_real, grads)
    assert whole.norm() > norm
    # torch adds 1e-6 to the norm that it divides by
    torch.testing.assert_close(clipped, norm * whole / whole.norm(), rtol=1e-3, atol=0)


def test_a_norm_that_is_never_reached_changes_nothing(tmp_path):
    """A limit that is never reached changes no bit."""
    train(small(), tmp_path / "one")
    train(small(clip_norm=1e15), tmp_path / "two")
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_decay_and_clipping_are_in_the_record(tmp_path):
    train(small(decay="cosine", clip_norm=2), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    for place in (config, config["recipe"]):
        assert (place["decay"], place["clip_norm"]) == ("cosine", 2)
    train(small(model="lstm", iterations=2), tmp_path / "other")
    recipe = json.loads((tmp_path / "other" / "config.json").read_text())["recipe"]
    assert (recipe["decay"], recipe["clip_norm"]) == (None, None)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": "cosin"}, r"`decay` must be one of cosine, linear; got 'cosin'"),
        ({"decay": "linear", "optimizer": "Rprop"}, "must be left out for Rprop"),
        ({"clip_norm": 0.0}, r"`clip_norm` must be a positive number .* got 0.0"),
        ({"clip_norm": math.nan}, r"`clip_norm` must be a positive .* got nan"),
    ],
    ids=str,
)
def test_rates_that_make_no_sense(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(small(**options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def frozen_rest(options: dict) -> list[float]:
    """The rates of a network of which only the recurrent weight is trained."""
    frozen = OptimizerRecipe(torch.optim.SGD, {"lr": 0.0})
    trained = OptimizerRecipe(torch.optim.Adam, {"lr": 1e-3}, ("weight_hh_l0",))
    schedule = Schedule((frozen, trained), "mine")
    network = type("Own", (torch.nn.RNN,), {"schedule": schedule})
    register(network, name="frozen")
    optimizers = build(small(model="frozen", **options), CPU).optimizers
    return [group["lr"] for o in optimizers for group in o.param_groups]


def test_a_rate_of_zero_stays_zero():
    """A schedule may freeze parameters with a rate of 0."""
    assert frozen_rest({}) == [0.0, 1e-3]
    # a run with the rate that the schedule has anyway could no longer be resumed
    assert frozen_rest({"lr": 0.0}) == [0.0, 1e-3]
    assert frozen_rest({"lr": 0.5, "lr_ratio": 0.1}) == [0.5, 0.05]
    with pytest.raises(
        ValueError, match=r"passed together .* rate of 0; got only `lr`"
    ):
        frozen_rest({"lr": 0.5})
    # both rates used to become 0
    with pytest.raises(
        ValueError, match=r"passed together .* of 0; got only `lr_ratio`"
    ):
        frozen_rest({"lr_ratio": 0.1})
