"""Carries out a sweep: starts or resumes its runs, then writes the report."""

import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isometry.lab._files import ENDED, divergence, locked
from isometry.lab._process import Signals
from isometry.lab._report.experiments import experiments
from isometry.lab._report.runs import Run, read_run
from isometry.lab._report.table import results
from isometry.lab._sweep.local import Processes
from isometry.lab._sweep.plan import SweepRun, read_plan, with_known_names, write_plan
from isometry.lab._sweep.ray import Tasks
from isometry.lab._sweep.view import GRACE, View

Workers = Processes | Tasks


@dataclass(frozen=True)
class Engine:
    """Where the runs of a sweep are trained, and how many at a time.

    Attributes:
        engine: train in processes on this machine, or as Ray tasks
        address: address of a Ray cluster, as HOST:PORT; by default the environment
            variable RAY_ADDRESS or, if that is not set, this machine
        jobs: number of runs at a time; by default as many as the cores or the cluster
            allow, but one on this machine's GPU and one for `isometry reproduce`
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
        # the plan also has the runs of earlier commands in this folder
        folders = [out / run.name for run in read_plan(out)]
        begun = {path.name: read_run(path) for path in folders if path.exists()}
        if begun:
            page = write_report([run.path for run in begun.values()], out / "report")
            sys.stderr.write(f"report {page}\n")
            sys.stdout.write(results(experiments(begun.values())))
    verdicts = {r.name: _verdict(begun.get(r.name), failed.get(r.name)) for r in runs}
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
    return max(run.config.training.threads or 1 for run in runs)


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
    folders = [out / run.name for run in runs]
    statuses = {f.name: read_run(f).status for f in folders if f.exists()}
    skipped = (*ENDED, "diverged")
    missing = [run for run in runs if statuses.get(run.name) not in skipped]
    if not missing:
        return {}
    names, jobs = [run.name for run in missing], engine.at_a_time(missing)
    done = sum(status in ENDED for status in statuses.values())
    with closing(View(out, names, total=len(runs), done=done)) as view:
        workers: Workers = Processes()
        if engine.engine == "ray":
            workers = Tasks(engine.address, cpus=jobs * threads(missing))
            # a cluster has as many runs at a time as it has resources for
            jobs = engine.jobs or math.inf
        seconds = math.inf if engine.budget is None else 3600 * engine.budget
        run_all(missing, workers, view, jobs=jobs, seconds=seconds)
    return view.failed


def run_all(
    runs: Sequence[SweepRun],
    workers: Workers,
    view: View,
    *,
    jobs: float,
    seconds: float,
) -> None:
    """Train runs, `jobs` at a time, until all have ended or the time is up.

    Args:
        runs: the runs, in order.
        workers: the processes or tasks that train the runs.
        view: shows the progress of the runs, and remembers which ones failed.
        jobs: number of runs at a time.
        seconds: time after which every run writes a checkpoint and stops.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has stopped or, after
            `GRACE` seconds, was killed.
    """
    waiting = list(runs)
    kill_at, stop_at = math.inf, time.monotonic() + seconds
    with Signals() as signals, closing(workers):
        while True:
            stop = signals.received or time.monotonic() >= stop_at
            if not workers.running and (stop or not waiting):
                break
            while waiting and len(workers.running) < jobs and not stop:
                run = waiting.pop(0)
                workers.begin(view.out / run.name, run.config)
            if stop and kill_at == math.inf:
                kill_at = time.monotonic() + GRACE
                workers.stop()
            if time.monotonic() > kill_at:
                workers.stop(kill=True)
            for name, message in workers.ended():
                view.end(name, message)
            view.refresh()
    if signals.received:
        raise KeyboardInterrupt


def _verdict(run: Run | None, failure: str | None) -> str:
    """Why a run is not done; empty if it is done.

    Args:
        run: the run; None if it has no folder yet.
        failure: the reason that `carry_out` returned; None if the run did not fail.
    """
    if run and run.status in ENDED:
        return ""
    if run and run.status == "diverged":
        reason = divergence(run.path, run.steps)
        return f"{reason}; sweep over smaller values of `--lr`."
    return failure or "interrupted. The same command resumes it."
