"""`isometry bench --device cuda`, as far as it can be shown without a card."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isometry.lab.bench import SUITE_NAMES
from isometry.lab.bench.report import summary
from tests.helpers import needs_torch
from tests.lab.test_bench import bench


@pytest.mark.errors
@pytest.mark.parametrize(
    ("cuda", "missing"),
    [(None, "was built without CUDA. Install"), ("12.8", "torch finds no GPU. See")],
)
def test_without_a_card_it_says_what_is_missing(cuda, missing, monkeypatch):
    """Without a card the error says what is missing, and how to measure without one."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr("isometry.lab.bench.timing.measure", None)
    code, out, err = bench("--device", "cuda")
    assert (code, out) == (2, "")
    assert err.startswith("isometry bench: `--device` must be one that torch can use;")
    assert missing in err
    assert err.endswith("or leave `--device` out to measure the CPU.\n")


@pytest.mark.once
@needs_torch("2.13", "devices that are written in Python")
def test_a_table_of_a_card_can_be_posted(tmp_path):
    """One command prints card, processor, versions, sizes, times and ratios."""
    words = ["--sizes", "4", "--rounds", "1", "--out", str(tmp_path / "out")]
    process = subprocess.run(
        [sys.executable, "-m", "tests.lab.bench_on_a_card", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.returncode == 0, process.stderr
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    where = record["environment"]
    assert where["device"] == "Stand-in card, CUDA 12.8"
    for text in (where["cpu"], where["device"], f"torch {torch.__version__}"):
        assert text in process.stdout.partition("## Kernel")[0]
    assert process.stdout.startswith(summary(record))
    assert [part["suite"] for part in record["suites"]] == list(SUITE_NAMES)
    for part in record["suites"]:
        assert [row["n"] for row in part["rows"]] == [4]
        assert len(part["rows"][0]["seconds"]) >= 4
