"""Mistakes in tasks and networks of one's own: each is named, with what to do."""

import pytest
import torch

from isometry.lab import evaluate, start
from tests.lab.own import OrderTask
from tests.lab.small_runs import assert_same_run
from tests.lab.test_own import config


@pytest.mark.errors
@pytest.mark.parametrize("batches", [0, -1, 2.5])
def test_an_epoch_has_at_least_one_batch(batches, monkeypatch, tmp_path):
    """With 0, as of `90 // 128`, 10,000 steps were trained without a word."""
    monkeypatch.setattr(OrderTask, "epoch", lambda _task, _size: batches)
    message = rf"`epoch` of OrderTask must return .*; got {batches} for batches of 4\."
    with pytest.raises(ValueError, match=message):
        start(config(iterations=None), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.errors
def test_the_main_metric_is_among_the_metrics(monkeypatch, tmp_path):
    """It was missed at the second evaluation, by a KeyError, and else never."""
    monkeypatch.setattr(OrderTask, "metric", "rihgt")
    message = "must be one of loss, right, .*; got 'rihgt'. Do you mean right?"
    with pytest.raises(ValueError, match=message):
        start(config(log_every=9, iterations=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=message):
        evaluate(OrderTask(), lambda x: torch.zeros(1, x.shape[1], 2), "test", 4)


def test_a_metric_may_be_a_tensor(monkeypatch, tmp_path):
    """It was refused by JSON: "Object of type Tensor is not JSON serializable"."""
    start(config(), tmp_path / "numbers")
    numbers = OrderTask.metrics
    monkeypatch.setattr(
        OrderTask,
        "metrics",
        lambda *args: {k: torch.tensor([v]) for k, v in numbers(*args).items()},
    )
    start(config(), tmp_path / "tensors")
    assert_same_run(tmp_path / "numbers", tmp_path / "tensors")


@pytest.mark.errors
@pytest.mark.parametrize("value", [torch.ones(4), "1"])
def test_a_metric_is_a_number(value, monkeypatch, tmp_path):
    monkeypatch.setattr(OrderTask, "metrics", lambda *_: {"right": value})
    with pytest.raises(TypeError, match=r"`metrics` of OrderTask .* for 'right'\. Re"):
        start(config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
