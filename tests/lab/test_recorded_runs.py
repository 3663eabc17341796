"""Folders of runs that earlier code has written, which every later version reads.

Both runs in `recorded_runs` were made at the commit 5e1fd0b, in format 2. The run `cut`
has a checkpoint of its fourth step and no summary, as after a kill.
"""

import json
from pathlib import Path

import pytest

from isometry.lab import write_report
from isometry.lab._report.runs import read_run
from isometry.lab._train.config import FORMAT, Config
from tools.reproduction.records import record

RUNS = Path(__file__).parent / "recorded_runs"


@pytest.mark.parametrize("name", ["whole", "cut"])
def test_a_config_of_format_2_is_read_and_written_again(name):
    """Nothing is lost, added or renamed on the way."""
    text = (RUNS / name / "config.json").read_text()
    assert json.loads(Config.from_json(text).to_json()) == json.loads(text)
    assert json.loads(text)["format"] == FORMAT == 2


def test_a_recorded_run_is_reported(tmp_path):
    """Its loss, its orthogonality and its command are on the page."""
    page = write_report([RUNS / "whole", RUNS / "cut"], tmp_path / "report").read_text()
    assert "--lag 3" in page
    assert "ExpRNN 4" in page
    assert "unfinished" in page


def test_a_recorded_run_becomes_a_record():
    """What `tools.reproduction` takes from a folder is all there."""
    found = record(read_run(RUNS / "whole"))
    assert found["summary"]["status"] == "finished"
    assert found["config"]["recipe"]["optimizers"][1]["parameters"] == ["weight_hh"]
    assert found["test"]["step"] == [4, 8]
    assert found["train"]["step"] == [*range(1, 9)]
