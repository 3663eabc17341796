"""Reads the folders of runs, and groups runs that differ only in their seeds."""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from isometry.lab._files import CONFIG, ENDED, ENVIRONMENT, METRICS, SUMMARY
from isometry.lab._options import FieldType

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A run, as read from its folder.

    Attributes:
        path: the folder.
        config: content of `config.json`.
        records: the lines of `metrics.jsonl`, without an incomplete last line.
        summary: content of `summary.json`; empty if there is no such file. Its
            entries are those of `_files.Summary`, but any of them may be missing, since
            an earlier version or another program may have written the file.
        environment: content of `environment.json`; empty if there is no such file.
    """

    path: Path
    config: Record
    records: tuple[Record, ...] = ()
    summary: Record = field(default_factory=dict)
    environment: Record = field(default_factory=dict)

    @property
    def model(self) -> str:
        """Name of the network."""
        return str(self.config["model"])

    @property
    def hidden_size(self) -> int | None:
        """Number of features of the hidden state; None if it is not in the config."""
        return self.config.get("hidden_size")

    @property
    def status(self) -> str:
        """The status in the summary, or "unfinished" if there is no summary."""
        return str(self.summary.get("status", "unfinished"))

    @property
    def steps(self) -> int:
        """Number of training steps so far."""
        return int(self._total("steps", "step"))

    @property
    def seconds(self) -> float:
        """Seconds spent in training so far."""
        return float(self._total("seconds", "seconds"))

    def _total(self, name: str, entry: str) -> float:
        """The summary's entry `name`, or else the largest `entry` in the records."""
        total = self.summary.get(name)
        if total is None:
            return max(numbers(r.get(entry) for r in self.records), default=0)
        return total

    def curve(self, what: str, split: str | None) -> dict[float, float]:
        """The finite values that were recorded for a quantity, keyed by step.

        Args:
            what: name of the quantity: "loss", "accuracy", "seconds" ...
            split: "train", "validation" or "test"; None for a quantity that does not
                depend on data.

        Returns:
            The values. If several records have the same step, the last one is used.
        """
        points = (
            (as_number(r.get("step")), as_number(r.get(what)))
            for r in self.records
            if split is None or r.get("split", "train") == split
        )
        return {x: y for x, y in points if x is not None and y is not None}


# A function that reads a number from a run. It returns None if the run did not measure
# this number.
Score = Callable[[Run], float | None]


def as_number(value: object) -> float | None:
    """A value from a record as a float; None unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # the comparison is false for NaN, for infinity, and for an integer that is too
    # large for a float
    return float(value) if abs(value) <= sys.float_info.max else None


def numbers(values: Iterable[object]) -> list[float]:
    """The finite numbers among the values of records, as floats."""
    return [number for number in map(as_number, values) if number is not None]


def read_run(path: Path) -> Run:
    """Read the run in a folder.

    A run that was killed may lack its summary, and its last line of metrics may be cut
    off. Neither is an error.

    Args:
        path: the folder.

    Returns:
        The run.

    Raises:
        ValueError: if the folder holds no run, or one of its files is damaged.
    """
    if not (path / CONFIG).is_file():
        kind = "a folder without one" if path.is_dir() else "no such folder"
        raise ValueError(
            f"`{path}` must be the folder of a run, with a `{CONFIG}`; got "
            f"{'a file' if path.is_file() else kind}. Give the folders that `isometry "
            f"train` has printed, or the folder of a sweep."
        )
    config = _json(path / CONFIG)
    for name in ("task", "model"):
        if name not in config:
            raise ValueError(
                f"`{path / CONFIG}` must name a {name}; got "
                f"{', '.join(sorted(config)) or 'nothing'}. Is it a run of isometry?"
            )
    return Run(
        path=path,
        config=config,
        records=_lines(path / METRICS),
        summary=_json(path / SUMMARY),
        environment=_json(path / ENVIRONMENT),
    )


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty dictionary if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # A JSON string may contain half of a surrogate pair, which UTF-8 cannot
        # encode. Fail here, before the report is written in UTF-8.
        json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{path}` must be JSON; got {error}. {_REMEDY}") from error
    if not isinstance(content, dict):
        raise ValueError(  # noqa: TRY004 - about a file, not an argument's type
            f"`{path}` must hold a JSON object; got {type(content).__name__}. {_REMEDY}"
        )
    for name, type_ in _ENTRY_TYPES[path.name].items():
        value, kind = content.get(name), FieldType((type_,))
        finite = not isinstance(value, int | float) or as_number(value) is not None
        if value is not None and not (finite and kind.takes(value)):
            raise ValueError(
                f"`{name}` in `{path}` must be {kind}; got {value!r:.60}. {_REMEDY}"
            )
    return content


_REMEDY = "Remove the file or leave the run out."

# The types of some entries of each file. We check them because another program or
# person may have written the files.
_ENTRY_TYPES: dict[str, dict[str, type]] = {
    CONFIG: {
        **dict.fromkeys(("task", "model", "command"), str),
        **dict.fromkeys(("hidden_size", "iterations", "seed"), int),
        **dict.fromkeys(("task_options", "model_options"), dict),
    },
    SUMMARY: {
        "status": str,
        **dict.fromkeys(("steps", "parameters"), int),
        "seconds": float,
        "angles": list,
        "scores": dict,
    },
    ENVIRONMENT: {"versions": dict},
}


def _lines(path: Path) -> tuple[Record, ...]:
    """The JSON objects in a file, one per line, without an incomplete last line."""
    content = path.read_bytes() if path.is_file() else b""
    # do not fail if an incomplete last line is not valid UTF-8
    lines = content.decode(errors="replace").splitlines()
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif number < len(lines):
            raise ValueError(
                f"`{path}` must hold a JSON object in each line; got "
                f"{line[:40]!r} in line {number}. Remove that line or leave the run "
                f"out."
            )
    return tuple(records)


# Entries of `config.json` that follow from other entries or say how the run was started
# or resumed, and options that hardly affect results
_FOLLOWING = {"command", "format", "recipe", "about", "continued"}
_NEUTRAL = {"threads", "device", "tensorboard", "log_every", "checkpoint_every"}

# The entries in which the runs of a group may differ. `task_options` is among them,
# since all runs of an experiment already agree on the task options that affect results.
MAY_DIFFER = {"seed", "task_options"} | _FOLLOWING | _NEUTRAL


class Curve(NamedTuple):
    """A curve with a range around it: positions, middle, lowest and highest values."""

    x: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seeds, and in options that hardly affect results.

    Attributes:
        runs: the runs in the order given, each with a different seed.
    """

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The first run. The options that all runs share are read from it."""
        return self.runs[0]

    @property
    def sound(self) -> tuple[Run, ...]:
        """The runs over which curves are averaged: all that did not diverge.

        If every run diverged, these are all runs.
        """
        sound = tuple(run for run in self.runs if run.status != "diverged")
        return sound or self.runs

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that a table averages: finished and solved runs, if there are any.

        Runs that stopped too early would distort the mean. If no run is finished or
        solved, the table averages the runs in `sound`.
        """
        return tuple(run for run in self.runs if run.status in ENDED) or self.sound

    @property
    def status(self) -> str:
        """The status that all runs share, or how many runs have each status."""
        counts = Counter(run.status for run in self.runs)
        if len(counts) == 1:
            return self.first.status
        return ", ".join(f"{count} {status}" for status, count in counts.items())

    @property
    def seeds(self) -> str:
        """The number of runs, such as "3", or "2 of 3" if only two are averaged."""
        runs, counted = len(self.runs), len(self.counted)
        return f"{runs}" if counted == runs else f"{counted} of {runs}"

    def values(self, score: Score) -> list[float]:
        """The scores of the runs in `counted`, without runs that have no score."""
        return numbers(map(score, self.counted))

    def curve(self, what: str, split: str | None, *, against: str = "step") -> Curve:
        """The mean and range of a quantity at each step, over the runs in `sound`.

        At steps that a run has not recorded, the mean is taken over the other runs.

        Args:
            what: name of the quantity: "loss", "accuracy", "orthogonality" ...
            split: "train", "validation" or "test"; None for a quantity that does not
                depend on data.
            against: the horizontal axis, "step" or "seconds". With "seconds", the
                position of a point is the mean time at which the runs reach its step.

        Returns:
            The curve, with one point per step.
        """
        x: dict[float, list[float]] = defaultdict(list)
        y: dict[float, list[float]] = defaultdict(list)
        for run in self.sound:
            places = run.curve(against, split)
            for step, value in run.curve(what, split).items():
                if step in places:
                    x[step].append(places[step])
                    y[step].append(value)
        steps = sorted(x)
        middle, low, high = ([f(y[s]) for s in steps] for f in (mean, min, max))
        return Curve([mean(x[s]) for s in steps], middle, low, high)


def seed_groups(runs: Iterable[Run]) -> tuple[SeedGroup, ...]:
    """Group the runs of one task that differ only in entries of `MAY_DIFFER`.

    A second run with the same seed is not a new sample: it goes into another group.

    Args:
        runs: runs of one task with the same task options.

    Returns:
        The groups, in the order in which they first appear.
    """
    # Each group maps seeds to runs. The key of a group consists of its options and a
    # number that tells groups with equal options apart.
    members: dict[tuple[str, int], dict[Any, Run]] = {}
    for run in runs:
        key, seed = _key(run), run.config.get("seed")
        free = next(n for n in count() if seed not in members.get((key, n), {}))
        members.setdefault((key, free), {})[seed] = run
    return tuple(SeedGroup(tuple(by_seed.values())) for by_seed in members.values())


def _key(run: Run) -> str:
    # Leave out options that are None. A run of an earlier version lacks newer options.
    # It must get the same key as a run in which these options are None.
    config = run.config.items()
    options = {k: v for k, v in config if k not in MAY_DIFFER and v is not None}
    return json.dumps(options, sort_keys=True)
