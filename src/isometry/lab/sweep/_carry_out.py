"""Carry out a sweep: begin what is missing, resume what was interrupted."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isometry.lab.report._run import read_run
from isometry.lab.reproduce._carry_out import DONE, status_of
from isometry.lab.sweep._plan import Cell
from isometry.lab.sweep._view import View
from isometry.lab.train._folder import last_good

# of a run that came to its end and can be averaged
WHOLE = ("finished", "solved")


@dataclass(frozen=True)
class Engine:
    """Where runs are made.

    Attributes:
        name: processes of this machine, or tasks of Ray.
        address: of a Ray cluster, if any.
        jobs: runs at a time; as many as there are cores for if None.
    """

    name: Literal["local", "ray"] = "local"
    address: str | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(
                f"`--jobs` must be at least 1; got {self.jobs}. Leave it out for as "
                f"many as there are cores."
            )
        if self.address is not None and self.name != "ray":
            raise ValueError(
                f"`--address` must come with `--engine ray`; got {self.address!r} "
                f"without. Leave it out, or add the other."
            )
        if self.address is not None and self.jobs is not None:
            raise ValueError(
                f"`--jobs` must be left out with `--address`, where the cluster "
                f"decides; got {self.jobs}. Leave one of them out."
            )

    def at_a_time(self, cells: Sequence[Cell]) -> int:
        """Runs that this machine makes at a time.

        Args:
            cells: the runs.

        Returns:
            What the user says; else as many as have cores, or one on a card.
        """
        if self.jobs is not None:
            return self.jobs
        if any(cell.config.training.device != "cpu" for cell in cells):
            return 1
        return max(1, cores() // threads(cells))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads(cells: Sequence[Cell]) -> int:
    """Threads of the run that has most."""
    return max((cell.config.training.threads or 1 for cell in cells), default=1)


def carry_out(cells: Sequence[Cell], out: Path, engine: Engine) -> dict[str, str]:
    """Make the runs that are not done.

    Args:
        cells: all runs.
        out: folder of the sweep.
        engine: where.

    Returns:
        Why runs failed, by name.

    Raises:
        RunError: if the engine is not there.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has its checkpoint.
    """
    status = {cell.name: status_of(out / cell.name) for cell in cells}
    missing = [cell for cell in cells if status[cell.name] not in DONE]
    if not missing:
        return {}
    done = sum(found in WHOLE for found in status.values())
    view = View(out, [c.name for c in missing], total=len(cells), done=done)
    jobs = engine.at_a_time(missing)
    try:
        if engine.name == "ray":
            from isometry.lab.sweep import _ray

            cpus = jobs * threads(missing)
            return _ray.run(missing, out, view, address=engine.address, cpus=cpus)
        from isometry.lab.sweep import _local

        return _local.run(missing, out, view, jobs=jobs)
    finally:
        view.close()


def verdicts(
    cells: Sequence[Cell], out: Path, failed: Mapping[str, str]
) -> dict[str, str]:
    """What is wrong with runs that did not come to their end.

    Args:
        cells: all runs.
        out: folder of the sweep.
        failed: what `carry_out` returned.

    Returns:
        Messages by name.
    """
    found: dict[str, str] = {}
    for cell in cells:
        status = status_of(out / cell.name)
        if status in WHOLE:
            continue
        message = failed.get(cell.name)
        if status == "diverged":
            steps = read_run(out / cell.name).steps
            message = (
                f"the loss diverged at step {steps + 1}. "
                f"{last_good(out / cell.name)}; sweep over smaller values of `--lr`."
            )
        found[cell.name] = message or "interrupted. The same command goes on with it."
    return found
