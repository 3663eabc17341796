"""Carry out a sweep: begin what is missing, resume what was interrupted."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isometry.lab._report.runs import read_run
from isometry.lab._sweep.plan import Cell, fit, load, save
from isometry.lab._sweep.view import View
from isometry.lab._train.folder import last_good, locked, write_atomically

TABLE = "sweep.md"

# a run that came to its end and can be averaged
WHOLE = ("finished", "solved")

# a run that needs nothing more; one that diverged would do so again
DONE = (*WHOLE, "diverged")


@dataclass(frozen=True)
class Engine:
    """Where runs are made.

    Attributes:
        name: processes of this machine, or tasks of Ray.
        address: of a Ray cluster, if any.
        jobs: runs at a time; as many as there are cores for if None.
        hours: time for all runs together; no end if None. What is not done by then
            has its checkpoint.
    """

    name: Literal["local", "ray"] = "local"
    address: str | None = None
    jobs: int | None = None
    hours: float | None = None

    def __post_init__(self) -> None:
        if self.hours is not None and not self.hours > 0:
            raise ValueError(
                f"`--budget` must be a positive number of hours; got {self.hours}. "
                f"Leave it out to run to the end."
            )
        if self.hours is not None and self.name != "local":
            raise ValueError(
                f"`--budget` must come with `--engine local`; got {self.hours} with "
                f"{self.name!r}. Leave it out, and stop the command when you like: "
                f"the same command resumes every run."
            )
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


def status_of(folder: Path) -> str:
    """How far a run is.

    Args:
        folder: where it is or will be.

    Returns:
        "missing", "unfinished", or the status of its summary.
    """
    return read_run(folder).status if folder.exists() else "missing"


def sweep(cells: Sequence[Cell], out: Path, engine: Engine) -> dict[str, str]:
    """Make the runs that are missing, then write the table and the report of all.

    The table goes to stdout too, everything else that is said to stderr.

    Args:
        cells: the runs, in the order in which they are made.
        out: folder of the sweep.
        engine: where they are made.

    Returns:
        Why runs did not come to their end, by name.

    Raises:
        RunError: if the folder holds other runs of these names, or is in use.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has its checkpoint.
    """
    from isometry.lab._report.command import write_report
    from isometry.lab._sweep.table import table

    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        cells = fit(out, cells)
        save(out, cells)
        failed = carry_out(cells, out, engine)
        bad = verdicts(cells, out, failed)
        # runs of earlier commands belong to the sweep too
        begun = [out / c.name for c in load(out) if (out / c.name).exists()]
        if begun:
            text = table([read_run(folder) for folder in begun])
            write_atomically(out / TABLE, text.encode())
            page = write_report(begun, out / "report")
            sys.stderr.write(f"table {out / TABLE}\nreport {page}\n")
            sys.stdout.write(text)
    sys.stderr.write(f"{len(cells) - len(bad)} of {len(cells)} runs are done.\n")
    return bad


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
            from isometry.lab._sweep import ray

            cpus = jobs * threads(missing)
            return ray.run(missing, out, view, address=engine.address, cpus=cpus)
        from isometry.lab._sweep import local

        seconds = math.inf if engine.hours is None else 3600 * engine.hours
        return local.run(missing, out, view, jobs=jobs, seconds=seconds)
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
