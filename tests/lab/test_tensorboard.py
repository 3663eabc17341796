"""Events of a run, read back by TensorBoard itself."""

from pathlib import Path
from typing import Any

import pytest

from isometry.lab import resume, train
from isometry.lab._train.loop import Step
from tests.lab.fake_runs import Killed
from tests.lab.small_runs import records, small


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of each curve, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # all points; by default a reader keeps a sample
    events = EventAccumulator(str(folder / "tensorboard"), {"scalars": 0}).Reload()
    tags: Any = events.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves according to metrics.jsonl."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for record in records(folder):
        for name in record.keys() - {"step", "split"}:
            tag = f"{name}/{record['split']}"
            lines.setdefault(tag, []).append((record["step"], record[name]))
    return lines


def check(folder: Path) -> None:
    actual, metrics = curves(folder), expected(folder)
    assert actual.keys() == metrics.keys()
    for tag, points in metrics.items():
        assert [step for step, _ in actual[tag]] == [step for step, _ in points]
        # events are float32
        values = [value for _, value in points]
        assert [v for _, v in actual[tag]] == pytest.approx(values, rel=1e-7)


def test_events_are_the_metrics(tmp_path):
    """TensorBoard has every number of every split, at its step."""
    train(small(tensorboard=True), tmp_path / "run")
    check(tmp_path / "run")
    assert len(curves(tmp_path / "run")["loss/train"]) == 12
    assert [s for s, _ in curves(tmp_path / "run")["accuracy/test"]] == [4, 8, 12]


def test_a_resumed_run_goes_on_with_its_curve(tmp_path, monkeypatch):
    """A run killed after step 8 and resumed at step 6 has each step once in its curve.

    Steps 7 and 8 used to be there twice, and what a writer had not yet put on the disk
    was missing.
    """
    update, calls = Step.update, 0

    def stop(step: Step) -> None:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise Killed
        update(step)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", stop)
        with pytest.raises(Killed):
            train(small(tensorboard=True), tmp_path / "run")
    assert len(curves(tmp_path / "run")["loss/train"]) == 8
    resume(tmp_path / "run")
    check(tmp_path / "run")
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


def test_the_clock_is_that_of_training(tmp_path):
    """Relative time is training time: an interruption of a day does not show."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from isometry.lab._train.recorder import Events

    lines = [
        {"step": n, "seconds": 60.0 * n, "loss": 1.0, "split": "train"} for n in (1, 2)
    ]
    events = Events(tmp_path, lines)
    events.write({"step": 3, "seconds": 180.0, "loss": 1.0, "split": "train"})
    events.close()
    scalars = EventAccumulator(str(tmp_path)).Reload().Scalars("loss/train")
    times = [event.wall_time - scalars[0].wall_time for event in scalars]
    # a wall time has 53 bits, of which 1e9 seconds need 30: this leaves 2e-7
    assert times == pytest.approx([0.0, 60.0, 120.0], abs=1e-6)
