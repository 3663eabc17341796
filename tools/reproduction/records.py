"""Records of runs: everything that the page needs, and no more."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isometry.lab._report import figures, runs
from isometry.lab._report.runs import Curve, Run, read_run
from tools.reproduction.criteria import spikes

FOLDER = Path("records") / "runs"

# folder of unfinished runs, with their checkpoints; see `carry`
UNFINISHED = Path("records") / "unfinished"

# version of the format of records; it grows when the meaning of an entry changes
FORMAT = 1

# the ways in which a run can end
ENDED = (*runs.ENDED, "diverged")

# largest number of points of a training curve; each is a median of some steps
POINTS = 200

# entries of a config that name folders on the machine where the run was made
PLACES = ("root", "command")


def record(run: Run) -> dict[str, Any]:
    """The record of a run: all that the page needs, in less than 20 kilobytes.

    Args:
        run: a run that has ended.

    Returns:
        A dictionary that JSON can hold; floats have five digits.
    """
    config = {k: v for k, v in run.config.items() if k not in PLACES}
    options = {k: v for k, v in config["task_options"].items() if k not in PLACES}
    summary = dict(run.summary)
    if "cpu_seconds" not in run.records[0]:
        # The run was begun before processor time was measured, and was resumed later.
        # The time in its summary lacks the first steps.
        summary.pop("cpu_seconds", None)
    curve = run.curve("loss", "train")
    steps, losses = list(curve), list(curve.values())
    baseline = summary.get("baseline")
    thin = {
        "format": FORMAT,
        "name": run.path.name,
        "command": without_places(str(run.config["command"])),
        "config": config | {"task_options": options},
        "environment": dict(run.environment),
        "summary": summary,
        "train": thinned(steps, losses),
    }
    for split in ("validation", "test"):
        thin[split] = evaluations(run, split)
    # look at all steps, not only at the points of the curve: a spike may be short
    if baseline is not None and config["log_every"] == 1:
        jumps = spikes(losses, baseline)
        thin["spikes"] = {
            "count": jumps.count,
            "steps": jumps.steps,
            "worst": jumps.worst,
        }
    return rounded(thin)


def without_places(command: str) -> str:
    """A command without the folder of its data."""
    words = command.split(" ")
    if "--root" in words:
        at = words.index("--root")
        words[at : at + 2] = ["--root", "DIR"]
    return " ".join(words)


def thinned(steps: Sequence[float], losses: Sequence[float]) -> dict[str, list[float]]:
    """Medians of a training loss over equal parts of a run, and the range in each."""
    y = list(losses)
    points = figures.thinned(Curve(list(steps), y, y, y), POINTS)
    return dict(zip(("step", "median", "low", "high"), points, strict=True))


def evaluations(run: Run, split: str) -> dict[str, list[Any]]:
    """All measurements on a split, by quantity."""
    lines = [r for r in run.records if r.get("split") == split]
    names = dict.fromkeys(name for line in lines for name in line if name != "split")
    return {name: [line.get(name) for line in lines] for name in names}


def rounded(value: Any) -> Any:
    """A copy of nested lists and dictionaries, with floats rounded to five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value


def write(folders: Sequence[Path], out: Path = FOLDER) -> list[Path]:
    """Write the records of the runs that have ended, including diverged runs.

    Args:
        folders: folders of runs. Unfinished and interrupted runs are left out.
        out: where records are kept.

    Returns:
        The files that were written.
    """
    written = []
    out.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        run = read_run(folder)
        if run.status not in ENDED:
            continue
        path = out / f"{folder.name}.json"
        path.write_text(json.dumps(record(run), separators=(",", ":")) + "\n")
        written.append(path)
    return written


def carry(folders: Sequence[Path], out: Path = UNFINISHED) -> list[Path]:
    """Copy the folders of unfinished runs, so that another machine can continue them.

    Without these copies, hours of training are lost if the machine is lost. To continue
    a run, copy its folder back and call `isometry train --resume` at the commit that is
    named in its environment.json.

    Args:
        folders: folders of runs.
        out: where unfinished runs are kept. Its old contents are removed.

    Returns:
        The copies.
    """
    shutil.rmtree(out, ignore_errors=True)
    copies = []
    for folder in folders:
        begun = (folder / "checkpoint.safetensors").exists()
        if begun and read_run(folder).status not in ENDED:
            ignored = shutil.ignore_patterns("lock", "events*", "*.partial")
            shutil.copytree(folder, out / folder.name, ignore=ignored)
            copies.append(out / folder.name)
    return copies


def read(out: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """All records, by name."""
    records = {}
    for path in sorted(out.glob("*.json")):
        content = json.loads(path.read_text())
        if content["format"] > FORMAT:
            raise ValueError(
                f"`{path}` must have format {FORMAT} or less; got {content['format']}."
            )
        records[content["name"]] = content
    return records
