"""Runs that take a second, and comparisons that ignore the clock."""

import json
from pathlib import Path
from typing import Any

from isometry.lab import Config, RunOutcome, Training, resume, train
from tests.helpers import shifted_seed

# entries that differ from run to run
_CLOCK = ("seconds", "cpu_seconds")


def small(**options: Any) -> Config:
    """A config: copy two symbols after a lag of three, for twelve steps."""
    usual: dict[str, Any] = {
        "hidden_size": 6,
        "batch_size": 4,
        "iterations": 12,
        "log_every": 1,
        "evaluate_every": 4,
        "checkpoint_every": 3,
        "threads": 1,
        "seed": shifted_seed(Training.seed),
    }
    task = {"lag": 3, "length": 2, "held_out": 8}
    return Config("copying", task, Training(**(usual | options)))


def records(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in _CLOCK} for line in lines
    ]


def summary(folder: Path) -> dict[str, Any]:
    """The summary, without times."""
    entries = json.loads((folder / "summary.json").read_text())
    return {k: v for k, v in entries.items() if k not in _CLOCK}


def tensors(folder: Path) -> dict[str, bytes]:
    """The bits of the checkpoint's tensors."""
    from safetensors.torch import load_file

    state = load_file(folder / "checkpoint.safetensors")
    return {name: value.numpy().tobytes() for name, value in state.items()}


def best(folder: Path) -> dict[str, bytes]:
    """The files with the weights of the best validation: one file, or none."""
    return {p.name: p.read_bytes() for p in folder.glob("best-*.safetensors")}


def assert_same_run(one: Path, two: Path) -> None:
    """Two runs have the same bits in metrics, weights, optimizers and summary."""
    assert records(one) == records(two)
    assert tensors(one) == tensors(two)
    assert best(one) == best(two)
    assert summary(one) == summary(two)


__all__ = [
    "RunOutcome",
    "assert_same_run",
    "best",
    "records",
    "resume",
    "small",
    "train",
    "summary",
    "tensors",
]
