"""Folders of runs that earlier code has written, which every later version reads.

Both runs in `recorded_runs` were made at the commit 5e1fd0b, in format 2. The run `cut`
has a checkpoint of its fourth step and no summary, as after a kill.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isometry.groups import Cayley
from isometry.lab import RunError, resume, write_report
from isometry.lab._report.runs import read_run
from isometry.lab._train.config import FORMAT, Config
from isometry.lab._train.experiment import build
from isometry.parametrizations._holder import constrained
from tools.reproduction.records import record

RUNS = Path(__file__).parent / "recorded_runs"


@pytest.mark.parametrize("name", ["whole", "cut"])
def test_a_config_of_format_2_is_read_and_written_again(name):
    """A config of format 2 is read and written again; nothing is lost or renamed.

    Options that only format 3 has are left out.
    """
    old = json.loads((RUNS / name / "config.json").read_text())
    assert old["format"] == 2
    new = {"format": FORMAT, "decay": None, "clip_norm": None}
    assert json.loads(Config.from_json(json.dumps(old)).to_json()) == old | new


@pytest.mark.errors
def test_a_run_of_a_later_version_is_refused(tmp_path):
    """A run of a later version is refused, since it may have options unknown here."""
    folder = shutil.copytree(RUNS / "cut", tmp_path / "cut")
    old = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(old | {"format": FORMAT + 1}))
    with pytest.raises(RunError, match=rf"format {FORMAT + 1} of a later version"):
        resume(folder)


def test_a_recorded_run_is_reported(tmp_path):
    """The report of recorded runs has their command, network and status."""
    page = write_report([RUNS / "whole", RUNS / "cut"], tmp_path / "report").read_text()
    assert "--lag 3" in page
    assert "ExpRNN 4" in page
    assert "unfinished" in page


def test_a_recorded_run_becomes_a_record():
    """A recorded run has all that `tools.reproduction` reads from a folder."""
    run_record = record(read_run(RUNS / "whole"))
    assert run_record["summary"]["status"] == "finished"
    assert run_record["config"]["recipe"]["optimizers"][1]["parameters"] == [
        "weight_hh"
    ]
    assert run_record["test"]["step"] == [4, 8]
    assert run_record["train"]["step"] == [*range(1, 9)]


def test_a_run_that_was_cut_goes_on_with_this_code(tmp_path):
    """A checkpoint of format 2 is read, and the run goes on with its fifth step."""
    folder = shutil.copytree(RUNS / "cut", tmp_path / "cut")
    assert resume(folder).summary["steps"] == 8
    whole, cut = read_run(RUNS / "whole"), read_run(folder)
    for expected, line in zip(whole.records, cut.records, strict=True):
        assert (line["step"], line["split"]) == (
            expected["step"],
            expected["split"],
        )
        # another processor sums in another order; 1e-4 is far above that difference
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_options_of_a_network_are_known_by_their_recorded_names():
    """A network's options are read under the names that they had when recorded.

    The option `retraction` used to be `orthogonal_map`.
    """
    config = Config.from_json((RUNS / "cut" / "config.json").read_text())
    options = {"orthogonal_map": "cayley", "rebase_every": None}
    training = replace(config.training, model_options=options)
    experiment = build(replace(config, training=training), torch.device("cpu"))
    (weight,) = constrained(experiment.model)
    assert weight.constraint.retraction == Cayley()
    assert experiment.config.training.model_options == options


@pytest.mark.errors
def test_a_checkpoint_that_cannot_be_read_names_the_code_that_wrote_it(tmp_path):
    """The error for a checkpoint that does not fit names the commit that wrote it.

    A later version may have other parameters: here, one tensor is renamed.
    """
    folder = shutil.copytree(RUNS / "cut", tmp_path / "cut")
    path = folder / "checkpoint.safetensors"
    data = path.read_bytes().replace(b"model.output.bias", b"model.output.bios")
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"revision 5e1fd0b .* check out 5e1fd0b"):
        resume(folder)
