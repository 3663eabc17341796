"""Runs that are one experiment with several seeds."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from isometry.lab.report._run import Run

# options that change neither what is trained nor what is measured
ELSEWHERE = {
    *("seed", "command", "format", "recipe", "threads", "device", "tensorboard"),
    *("log_every", "checkpoint_every", "task_options"),
}


class Curve(NamedTuple):
    """A quantity of some runs: where, their mean, and their range."""

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
        """Those that means are over: without the diverged, unless there is no other."""
        good = tuple(run for run in self.runs if run.status != "diverged")
        return good or self.runs

    @property
    def status(self) -> str:
        """That of all, or how many have which."""
        found = Counter(run.status for run in self.runs)
        if len(found) == 1:
            return self.first.status
        return ", ".join(f"{count} {status}" for status, count in found.items())

    @property
    def seeds(self) -> str:
        """How many there are, and how many of them count."""
        all_, good = len(self.runs), len(self.counted)
        return f"{all_}" if good == all_ else f"{good} of {all_}"

    def values(self, of: Callable[[Run], float | None]) -> list[float]:
        """A number of each run that counts, where it has one."""
        found = (of(run) for run in self.counted)
        return [value for value in found if value is not None]

    def curve(self, what: str, split: str | None, *, against: str = "step") -> Curve:
        """A quantity of a split: at each step the mean of the runs that count.

        Where one has ended, it is that of the others.

        Args:
            what: "loss", "accuracy", "orthogonality" ...
            split: "train", "validation" or "test"; None for what has nothing to do with
                data.
            against: "step" or "seconds", of which a mean is taken, too.

        Returns:
            The curve, by steps.
        """
        points: dict[float, list[tuple[float, float]]] = {}
        for run in self.counted:
            steps, y = run.curve(what, split)
            places, _ = run.curve(what, split, against=against)
            # a record without its seconds has no place there
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
    """Runs of one task, those together that differ in their seeds alone.

    A second run of the same seed is no other sample: it stands for itself.

    Args:
        runs: with the same task and options of it.

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
    kept = {name: v for name, v in run.config.items() if name not in ELSEWHERE}
    return json.dumps(kept, sort_keys=True)
