"""Sweeps of runs that take a second."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isometry.lab._sweep.worker import log_of

SMALL: dict[str, Any] = {
    "lag": 3,
    "length": 2,
    "held_out": 8,
    "hidden_size": 6,
    "batch_size": 4,
    "iterations": 4,
    "log_every": 1,
    "checkpoint_every": 20,
}


def words(**options: Any) -> list[str]:
    """Options as words of the command line."""
    line = []
    for name, value in (SMALL | options).items():
        values = value if isinstance(value, list) else [value]
        line += ["--" + name.replace("_", "-"), *map(str, values)]
    return line


def process_of(folder: Path) -> int:
    """The id of the process that makes a run, once the run has a checkpoint."""
    until((folder / "checkpoint.safetensors").exists)
    return int(log_of(folder).read_text().splitlines()[0].split()[-1])


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, for up to five minutes."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
