"""The folder of a run, read as it is: finished, stopped or killed."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """What a folder of a run holds.

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
        """That of the summary; "unfinished" if there is none."""
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
                data, of which each place is taken once.
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

    A summary that is missing and a last line of metrics that was cut off are what a
    killed run leaves behind: they are no errors.

    Args:
        path: the folder.

    Returns:
        What it holds.

    Raises:
        ValueError: if the folder holds no run, or a file of it is damaged.
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
        # half of a surrogate pair is JSON, but no text that a page can have
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

# what is read of each file; the folder may come from anybody
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
    """The objects of a file, one a line; the last line may be cut off."""
    if not path.is_file():
        return ()
    # a kill can leave half a character, too
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
