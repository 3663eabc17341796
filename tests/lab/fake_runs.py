"""Folders as `isometry train` writes them, of runs that were never trained."""

import json
import math
import random
from io import StringIO
from pathlib import Path
from typing import Any

ENVIRONMENT = {"versions": {"torch": "2.13.0"}, "cpu": "Fake CPU", "threads": 2}


class Terminal(StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Killed(BaseException):
    """Raised where a real run would be killed; no code catches it."""


def fake_run(
    path: Path,
    *,
    task: str = "copying",
    options: dict[str, Any] | None = None,
    model: str = "exprnn",
    hidden_size: int = 190,
    steps: int = 400,
    status: str | None = "finished",
    seed: int = 5544,
    end: float = 1e-4,
) -> Path:
    """A run whose loss falls from 0.05 to `end`; if `status` is None, it was killed."""
    options = {"lag": 1000} if options is None else options
    command = f"isometry train {task} --model {model} --hidden-size {hidden_size}"
    config = {
        "task": task,
        "task_options": options,
        "model": model,
        "model_options": {},
        "hidden_size": hidden_size,
        "batch_size": 128,
        "iterations": 400,
        "seed": seed,
        "command": command,
    }
    records = list(_records(task, steps, end, status, random.Random(seed)))
    path.mkdir(parents=True)
    _dump(path / "config.json", config)
    _dump(path / "environment.json", ENVIRONMENT)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (path / "metrics.jsonl").write_text(lines)
    if status is not None:
        _dump(path / "summary.json", _summary(config, steps, status))
    return path


def _records(task: str, steps: int, end: float, status, rng: random.Random):
    for step in range(1, steps + 1):
        loss = 0.05 * (end / 0.05) ** (step / steps) * math.exp(rng.gauss(0, 0.2))
        # NaN is written as `NaN`, as in the file of a run that diverges
        if status == "diverged" and step == steps:
            loss = math.nan
        record = {"step": step, "seconds": 0.25 * step, "loss": loss, "split": "train"}
        yield record
        if step % 100 == 0:
            for split, shift in (("validation", 0.0), ("test", 0.002)):
                accuracy = 0.9 + 0.06 * step / steps - shift
                metrics = (
                    {"mse": 1 / accuracy} if task == "timit" else {"accuracy": accuracy}
                )
                metrics["orthogonality"] = 1e-6 * (1 + step / steps)
                yield record | {"split": split, "loss": 1 - accuracy} | metrics


def _summary(config: dict[str, Any], steps: int, status: str) -> dict[str, Any]:
    rng = random.Random(config["hidden_size"])
    angles = [rng.uniform(-math.pi, math.pi) for _ in range(config["hidden_size"])]
    is_orthogonal = config["model"] != "lstm"
    return {
        "status": status,
        "steps": steps,
        "seconds": 0.25 * steps,
        "best": {},
        "final": {},
        "parameters": 21764,
        "baseline": 0.020387 if config["task"] == "copying" else None,
        "angles": angles if is_orthogonal else [],
        "orthogonality": 2e-6 if is_orthogonal else None,
    }


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
