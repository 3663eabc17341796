"""The config of a run: its defaults, and its form in `config.json`."""

import json
from typing import Any, cast

import pytest
import torch

from isometry.lab import Config, Training
from isometry.lab._train.config import ResolvedTraining
from isometry.lab._train.experiment import build
from isometry.lab.paper.networks import recipe_for
from isometry.lab.tasks import MnistTask
from tests.lab.small_runs import small

CPU = torch.device("cpu")


def test_defaults_are_written_out():
    """`config.json` has the paper's defaults written out."""
    config = build(Config("copying", {}, Training()), CPU).config.training
    assert (config.hidden_size, config.iterations) == (190, 4000)
    assert (config.batch_size, config.seed, config.evaluate_every) == (128, 5544, 100)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 70 * 430), ({"epochs": 2}, 2 * 430), ({"iterations": 5}, 5)],
    ids=str,
)
def test_epochs_of_finite_data(options, expected):
    """MNIST has 55,000 images in 430 batches of 128, and the paper has 70 epochs."""
    config = Config("mnist", {}, Training(**options))
    resolved = config.resolved(recipe_for("exprnn", MnistTask()), 430, threads=1)
    assert (resolved.iterations, resolved.epochs) == (expected, None)
    assert resolved.evaluate_every == 430


@pytest.mark.errors
def test_an_unresolved_training_is_not_a_resolved_one():
    """`iterations` is required; without them, a run used to finish after no steps."""
    options: dict[str, Any] = {"hidden_size": 4, "evaluate_every": 1, "threads": 1}
    with pytest.raises(ValueError, match="`iterations` must be a whole number; got No"):
        ResolvedTraining(**options, iterations=cast("int", None))
    with pytest.raises(TypeError, match="'iterations'"):
        ResolvedTraining(**options)


def test_config_survives_json():
    config = small(model_options={"rebase_every": 3}, lr=0.1)
    assert Config.from_json(config.to_json()) == config


@pytest.mark.errors
def test_a_config_without_a_command_is_refused():
    """A missing command was read as "", and a dry run printed only ` --out DIR`."""
    flat = json.loads(small().to_json())
    del flat["command"]
    with pytest.raises(KeyError, match="command"):
        Config.from_json(json.dumps(flat))
