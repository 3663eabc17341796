"""Records of runs, and the definitions that were fixed before the runs."""

import json
import math

import pytest

from isometry.lab._report.runs import read_run
from tests.lab.fake_runs import fake_run
from tests.lab.small_runs import small, train
from tools.reproduction.criteria import solved_at, spikes
from tools.reproduction.records import (
    carry,
    read,
    record,
    thinned,
    without_places,
    write,
)

BASELINE = 0.02


def test_a_smooth_curve_has_no_spikes():
    """A fall by four decades, or noise below 1 % of the baseline, is no spike."""
    falling = [BASELINE * 10 ** (-4 * t / 1000) for t in range(1000)]
    assert spikes(falling, BASELINE).count == 0
    noisy = [1e-6 * (1 + 99 * (t % 10 == 0)) for t in range(1000)]
    assert spikes(noisy, BASELINE).count == 0


def test_a_jump_is_counted_once_however_long_it_lasts():
    losses = [0.5 * BASELINE] * 1000
    for start_of, length in ((200, 1), (300, 40), (600, 200)):
        losses[start_of : start_of + length] = [2 * BASELINE] * length
    statistics = spikes(losses, BASELINE)
    assert (statistics.count, statistics.steps) == (3, 1 + 40 + 200)
    assert statistics.worst == pytest.approx(4)
    assert statistics.unstable


def test_first_steps_do_not_count():
    losses = [0.5 * BASELINE] * 200
    losses[60] = 1.0
    assert not spikes(losses, BASELINE).count


def test_a_run_is_solved_if_it_stays_below_the_limit_for_200_steps():
    steps = list(range(50, 501, 50))
    for losses, step in (
        ([1] * 4 + [0] * 6, 250),
        ([1] * 5 + [0] * 5, 300),
        # the run ends too early
        ([1] * 6 + [0] * 4, None),
        # the loss does not stay below the limit
        ([1, 0, 0, 0, 1, 0, 0, 0, 0, 1], None),
        # the loss stays below the limit for 200 steps, and rises only afterwards
        ([0, 0, 0, 0, 0, 1, 1, 1, 1, 1], 50),
        ([math.nan] * 10, None),
    ):
        # 0 is a loss below the limit, and 1 a loss just above it
        curve = {"step": steps, "loss": [0.009 + 0.002 * loss for loss in losses]}
        assert solved_at(curve, baseline=1.0) == step, losses


def test_thinned_curves_keep_their_extremes():
    steps = list(range(1, 1001))
    losses = [1.0] * 1000
    losses[777] = 9.0
    curve = thinned(steps, losses)
    assert len(curve["step"]) == 200
    assert (max(curve["high"]), max(curve["median"])) == (9.0, 1.0)
    assert curve["step"][-1] == 1000


def test_a_record_has_what_the_run_has(tmp_path):
    """A record has config, environment, commit, summary and curves, but no paths."""
    folder = tmp_path / "runs" / "one"
    train(small(), folder)
    run = read_run(folder)
    entry = record(run)
    assert entry["config"]["recipe"]["network"] == "ExpRNN"
    assert "command" not in entry["config"]
    assert entry["environment"]["cpu"]
    assert entry["test"]["step"] == [4, 8, 12]
    assert len(entry["train"]["step"]) == 12
    assert entry["summary"]["steps"] == 12
    assert str(tmp_path) not in json.dumps(entry)


def test_processor_time_is_recorded_only_if_it_covers_every_step(tmp_path):
    """Processor time that is known for some of the steps only is left out."""
    folder = tmp_path / "runs" / "one"
    train(small(), folder)
    assert record(read_run(folder))["summary"]["cpu_seconds"] > 0
    path = folder / "metrics.jsonl"
    first, *others = [json.loads(line) for line in path.read_text().splitlines()]
    del first["cpu_seconds"]
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *others]))
    assert "cpu_seconds" not in record(read_run(folder))["summary"]


def test_only_runs_that_ended_are_recorded(tmp_path):
    """Only finished runs are recorded, and a record can be read again."""
    for name, status in (("done", "finished"), ("killed", None)):
        folder = fake_run(tmp_path / name, status=status)
        config = json.loads((folder / "config.json").read_text())
        text = json.dumps(config | {"log_every": 1})
        (folder / "config.json").write_text(text)
    written = write([tmp_path / "done", tmp_path / "killed"], tmp_path / "records")
    assert [path.name for path in written] == ["done.json"]
    entries = read(tmp_path / "records")
    assert entries["done"]["summary"]["status"] == "finished"


def test_unfinished_runs_are_carried_with_their_checkpoints(tmp_path):
    """Unfinished runs are copied with their checkpoints; older copies are removed."""
    for name, status in (("done", "finished"), ("killed", None), ("new", None)):
        folder = fake_run(tmp_path / name, status=status)
        (folder / "lock").touch()
        if name != "new":
            (folder / "checkpoint.safetensors").touch()
    folders = [tmp_path / name for name in ("done", "killed", "new")]
    out = tmp_path / "unfinished"
    (out / "before").mkdir(parents=True)
    assert carry(folders, out) == [out / "killed"]
    assert [path.name for path in out.iterdir()] == ["killed"]
    assert (out / "killed" / "checkpoint.safetensors").exists()
    assert not (out / "killed" / "lock").exists()


def test_commands_name_no_folder():
    command = "isometry train timit --root /data/here --epochs 3"
    assert without_places(command) == "isometry train timit --root DIR --epochs 3"
