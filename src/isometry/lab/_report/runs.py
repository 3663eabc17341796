"""Reads folders of runs, and groups runs that differ in their seeds alone."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """The content of the folder of a run.

    Attributes:
        path: the folder.
        config: `config.json`.
        records: lines of `metrics.jsonl`, up to one that was cut off.
        summary: `summary.json`; empty if the run has not written one.
        environment: `environment.json`; empty if there is none.
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
        """Features of the state, if they are written down."""
        return self.config.get("hidden_size")

    @property
    def status(self) -> str:
        """Status in the summary; "unfinished" if there is none."""
        return str(self.summary.get("status", "unfinished"))

    @property
    def steps(self) -> int:
        """Steps of training so far."""
        found = self.summary.get("steps")
        return int(found if found is not None else self._last("step", 0))

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        found = self.summary.get("seconds")
        return float(found if found is not None else self._last("seconds", 0.0))

    def _last(self, name: str, default: float) -> float:
        found = (as_number(record.get(name)) for record in self.records)
        return max((value for value in found if value is not None), default=default)

    def curve(
        self, what: str, split: str | None, *, against: str = "step"
    ) -> tuple[list[float], list[float]]:
        """A quantity of a split, where it is finite.

        Args:
            what: "loss", "accuracy", "orthogonality" ...
            split: "train", "validation" or "test"; None for what has nothing to do with
                data; then each place is taken once.
            against: "step" or "seconds".

        Returns:
            The places and the values.
        """
        points = [
            (as_number(r.get(against)), as_number(r.get(what)))
            for r in self.records
            if split is None or r.get("split", "train") == split
        ]
        kept = [(x, y) for x, y in points if x is not None and y is not None]
        if split is None:
            kept = list(dict(kept).items())
        return [x for x, _ in kept], [y for _, y in kept]


def as_number(value: object) -> float | None:
    """A value of a record, if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        # an integer of more than 308 digits
        return None
    return found if math.isfinite(found) else None


def read_run(path: Path) -> Run:
    """The run in a folder.

    A run that was killed may lack its summary, and its last line of metrics may be cut
    off. Neither is an error.

    Args:
        path: the folder.

    Returns:
        What it holds.

    Raises:
        ValueError: if the folder holds no run, or one of its files is damaged.
    """
    if not (path / "config.json").is_file():
        raise ValueError(
            f"`{path}` must be the folder of a run, with a `config.json`; got "
            f"{'a folder without one' if path.is_dir() else 'no such folder'}. "
            f"Give the folders that `isometry train` has printed."
        )
    config = _json(path / "config.json")
    for name in ("task", "model"):
        if name not in config:
            raise ValueError(
                f"`{path / 'config.json'}` must name a {name}; got "
                f"{', '.join(sorted(config)) or 'nothing'}. Is it a run of isometry?"
            )
    return Run(
        path=path,
        config=config,
        records=_lines(path / "metrics.jsonl"),
        summary=_json(path / "summary.json"),
        environment=_json(path / "environment.json"),
    )


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        # JSON may hold half of a surrogate pair, which no page can show
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{path}` must be JSON; got {error}. {_REMEDY}") from error
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004 - the content of a file, not an argument
            f"`{path}` must hold an object; got {type(found).__name__}. {_REMEDY}"
        )
    for name, kind in _KINDS[path.name].items():
        value = found.get(name)
        if value is not None and not _is(value, kind):
            raise ValueError(
                f"`{name}` in `{path}` must be {kind}; got {value!r:.60}. {_REMEDY}"
            )
    return found


_REMEDY = "Remove the file or leave the run out."

# what the entries of each file must be; they are checked, since the folder may come
# from anybody
_KINDS = {
    "config.json": {
        **dict.fromkeys(("task", "model", "command"), "a text"),
        **dict.fromkeys(("hidden_size", "iterations", "seed"), "a whole number"),
        **dict.fromkeys(("task_options", "model_options"), "an object"),
    },
    "summary.json": {
        "status": "a text",
        **dict.fromkeys(("steps", "parameters"), "a whole number"),
        "seconds": "a number",
        "angles": "a list",
        "scores": "an object",
    },
    "environment.json": {"versions": "an object"},
}


def _is(value: object, kind: str) -> bool:
    if kind == "a number":
        return as_number(value) is not None
    if kind == "a whole number":
        return as_number(value) is not None and isinstance(value, int)
    return isinstance(value, {"a text": str, "a list": list, "an object": dict}[kind])


def _lines(path: Path) -> tuple[Record, ...]:
    """The objects of a file, one per line; the last line may be cut off."""
    if not path.is_file():
        return ()
    # a kill can even leave half a character
    lines = path.read_bytes().decode(errors="replace").splitlines()
    found: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            found.append(record)
        elif number < len(lines):
            raise ValueError(
                f"`{path}` must hold an object of JSON in each line; got "
                f"{line[:40]!r} in line {number}. Remove that line or leave the run "
                f"out."
            )
    return tuple(found)


# options that change neither what is trained nor what is measured
ELSEWHERE = {
    *("seed", "command", "format", "recipe", "threads", "device", "tensorboard"),
    *("about", "continued"),
    *("log_every", "checkpoint_every", "task_options"),
}


class Curve(NamedTuple):
    """A quantity of several runs: its places, its mean and its range."""

    x: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone; most often one.

    Attributes:
        runs: in the order given, each with a seed of its own.
    """

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """Any of them, for what they share."""
        return self.runs[0]

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that are averaged: those that did not diverge, or all if all did."""
        good = tuple(run for run in self.runs if run.status != "diverged")
        return good or self.runs

    @property
    def status(self) -> str:
        """The status that all runs have, or how many runs have each status."""
        found = Counter(run.status for run in self.runs)
        if len(found) == 1:
            return self.first.status
        return ", ".join(f"{count} {status}" for status, count in found.items())

    @property
    def seeds(self) -> str:
        """How many runs there are, and how many of them are averaged."""
        all_, good = len(self.runs), len(self.counted)
        return f"{all_}" if good == all_ else f"{good} of {all_}"

    def values(self, of: Callable[[Run], float | None]) -> list[float]:
        """A number of each run that is averaged, if it has that number."""
        found = (of(run) for run in self.counted)
        return [value for value in found if value is not None]

    def curve(self, what: str, split: str | None, *, against: str = "step") -> Curve:
        """A quantity of a split: at each step the mean of the runs that count.

        Where one has ended, the mean is taken over the others.

        Args:
            what: "loss", "accuracy", "orthogonality" ...
            split: "train", "validation" or "test"; None for what has nothing to do with
                data.
            against: "step" or "seconds"; seconds are averaged, too.

        Returns:
            The curve, by steps.
        """
        points: dict[float, list[tuple[float, float]]] = {}
        for run in self.counted:
            steps, y = run.curve(what, split)
            places, _ = run.curve(what, split, against=against)
            # a record without seconds has no place on that axis
            if len(places) == len(steps):
                for step, place, value in zip(steps, places, y, strict=True):
                    points.setdefault(step, []).append((place, value))
        found = [points[step] for step in sorted(points)]
        return Curve(
            [mean(place for place, _ in at) for at in found],
            [mean(value for _, value in at) for at in found],
            [min(value for _, value in at) for at in found],
            [max(value for _, value in at) for at in found],
        )


def groups(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Group the runs of one task that differ in their seeds alone.

    A second run with the same seed is not a new sample: it goes into another group.

    Args:
        runs: runs of one task, with the same options of the task.

    Returns:
        The groups, in the order in which they first appear.
    """
    found: list[tuple[str, list[Run]]] = []
    for run in runs:
        key, seed = _key(run), run.config.get("seed")
        for known, members in found:
            if known == key and all(m.config.get("seed") != seed for m in members):
                members.append(run)
                break
        else:
            found.append((key, [run]))
    return tuple(Group(tuple(members)) for _, members in found)


def _key(run: Run) -> str:
    # an option that an earlier version did not have counts as left out
    options = {
        name: value
        for name, value in run.config.items()
        if name not in ELSEWHERE and value is not None
    }
    return json.dumps(options, sort_keys=True)
