"""Carries out a sweep: starts or resumes its runs, then writes the report."""

import math
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isometry.lab._files import ENDED, divergence, locked
from isometry.lab._report.experiments import experiments
from isometry.lab._report.runs import read_run
from isometry.lab._report.table import results
from isometry.lab._sweep.plan import SweepRun, read_plan, with_known_names, write_plan
from isometry.lab._sweep.view import View


@dataclass(frozen=True)
class Engine:
    """Where the runs of a sweep are trained, and how many at a time.

    Attributes:
        engine: train in processes on this machine, or as Ray tasks
        address: address of a Ray cluster, as HOST:PORT; by default the environment
            variable RAY_ADDRESS or, if that is not set, this machine
        jobs: number of runs at a time; by default as many as the cores allow, but one
            on a GPU and one for `isometry reproduce`
        budget: stop after this many hours; the same command resumes every run
    """

    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    jobs: int | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not self.budget > 0:
            raise ValueError(
                f"`budget` must be a positive number of hours; got {self.budget}. "
                f"Leave it out to run to the end."
            )
        if self.budget is not None and self.engine != "local":
            raise ValueError(
                f"`budget` must come with `--engine local`; got {self.budget} with "
                f"{self.engine!r}. Leave it out, and stop the command when you like: "
                f"the same command resumes every run."
            )
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(
                f"`jobs` must be at least 1; got {self.jobs}. Leave it out to use all "
                f"cores."
            )
        if self.address is not None and self.engine != "ray":
            raise ValueError(
                f"`address` must come with `--engine ray`; got {self.address!r} "
                f"without it. Leave the address out, or add `--engine ray`."
            )
        if self.address is not None and self.jobs is not None:
            raise ValueError(
                f"`jobs` must be left out with `--address`, since the cluster decides "
                f"how many runs it trains at a time; got {self.jobs}."
            )

    def at_a_time(self, runs: Sequence[SweepRun]) -> int:
        """How many runs this machine trains at a time.

        Args:
            runs: the runs.

        Returns:
            The option `jobs`, if it is given. Otherwise 1 if any run uses a GPU, or
            else as many as the cores allow.
        """
        if self.jobs is not None:
            return self.jobs
        if any(run.config.training.device != "cpu" for run in runs):
            return 1
        return max(1, cores() // threads(runs))


def sweep(runs: Sequence[SweepRun], out: Path, engine: Engine) -> dict[str, str]:
    """Train the runs that have neither ended nor diverged, then report on all runs.

    The tables of the report also go to stdout; all other messages go to stderr.

    Args:
        runs: the runs, in the order in which they are trained.
        out: folder of the sweep.
        engine: where the runs are trained, and how many at a time.

    Returns:
        For each run that is still not done, the reason, keyed by the run's name.

    Raises:
        RunError: if the folder holds other runs with these names, has a damaged plan or
            is in use, or if the engine is not available.
        ValueError: if a folder holds no run, or a file of a run is damaged.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has stopped or, after
            `GRACE` seconds, was killed.
    """
    from isometry.lab._report.command import write_report

    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        runs = with_known_names(out, runs)
        write_plan(out, runs)
        failed = carry_out(runs, out, engine)
        verdicts = {r.name: _verdict(out / r.name, failed.get(r.name)) for r in runs}
        # the plan also has the runs of earlier commands in this folder
        folders = [
            out / run.name for run in read_plan(out) if (out / run.name).exists()
        ]
        if folders:
            page = write_report(folders, out / "report")
            sys.stderr.write(f"report {page}\n")
            sys.stdout.write(results(experiments(map(read_run, folders))))
    bad = {name: verdict for name, verdict in verdicts.items() if verdict}
    sys.stderr.write(f"{len(runs) - len(bad)} of {len(runs)} runs are done.\n")
    return bad


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads(runs: Sequence[SweepRun]) -> int:
    """The largest number of threads that any of the runs uses."""
    return max((run.config.training.threads or 1 for run in runs), default=1)


def carry_out(runs: Sequence[SweepRun], out: Path, engine: Engine) -> dict[str, str]:
    """Train the runs that have neither ended nor diverged.

    A run that diverged is left out, since it would diverge again.

    Args:
        runs: all runs.
        out: folder of the sweep.
        engine: where the runs are trained, and how many at a time.

    Returns:
        For each run that failed, the reason, keyed by the run's name.

    Raises:
        RunError: if Ray is asked for and is not installed or cannot be reached.
        ValueError: if a folder holds no run, or a file of a run is damaged.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has stopped or, after
            `GRACE` seconds, was killed.
    """
    statuses = [_status(out / run.name) for run in runs]
    pairs = zip(runs, statuses, strict=True)
    missing = [run for run, status in pairs if status not in (*ENDED, "diverged")]
    if not missing:
        return {}
    done = sum(status in ENDED for status in statuses)
    names = [run.name for run in missing]
    jobs = engine.at_a_time(missing)
    with closing(View(out, names, total=len(runs), done=done)) as view:
        if engine.engine == "ray":
            from isometry.lab._sweep import ray

            cpus = jobs * threads(missing)
            return ray.run_all(missing, out, view, address=engine.address, cpus=cpus)
        from isometry.lab._sweep import local

        seconds = math.inf if engine.budget is None else 3600 * engine.budget
        return local.run_all(missing, out, view, jobs=jobs, seconds=seconds)


def _status(folder: Path) -> str:
    """The status of a run, which is "missing" if the run has no folder yet."""
    return read_run(folder).status if folder.exists() else "missing"


def _verdict(folder: Path, failure: str | None) -> str:
    """Why a run is not done; empty if it is done.

    Args:
        folder: folder of the run, which need not exist.
        failure: the reason that `carry_out` returned; None if the run did not fail.
    """
    status = _status(folder)
    if status in ENDED:
        return ""
    if status == "diverged":
        steps = read_run(folder).steps
        return f"{divergence(folder, steps)}; sweep over smaller values of `--lr`."
    return failure or "interrupted. The same command resumes it."
