"""Carries out a sweep: starts or resumes its runs, then writes the report."""

import math
import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isometry.lab._files import ENDED, divergence, locked
from isometry.lab._report.experiments import experiments
from isometry.lab._report.runs import Run, read_run
from isometry.lab._report.table import results
from isometry.lab._sweep.local import Processes
from isometry.lab._sweep.plan import Plan, with_known_names, write_plan
from isometry.lab._sweep.ray import Tasks
from isometry.lab._sweep.view import View
from isometry.lab._sweep.worker import GRACE

Workers = Processes | Tasks


@dataclass(frozen=True)
class Engine:
    """Where the runs of a sweep are trained, and how many at a time.

    Attributes:
        engine: "local" to train in processes on this machine, "ray" to train as tasks
            of Ray
        address: address of a Ray cluster, as HOST:PORT; by default the environment
            variable RAY_ADDRESS or, if that is not set, this machine
        jobs: number of runs at a time; by default as many as the cores or the cluster
            allow, but only one if a run uses this machine's GPU, and only one for
            `isometry reproduce`
        budget: number of hours after which all runs stop; the same command resumes them
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
                f"`jobs` must be at least 1; got {self.jobs}. Or leave it out."
            )
        if self.address is not None and self.engine != "ray":
            raise ValueError(
                f"`address` must come with `--engine ray`; got only {self.address!r}. "
                f"Leave it out, or add `--engine ray`."
            )

    def at_a_time(self, runs: Plan) -> int:
        """How many runs this machine trains at a time.

        Args:
            runs: the runs.

        Returns:
            The option `jobs`, if it is given. Otherwise 1 if any run uses a GPU, or
            else as many as the cores allow.
        """
        if self.jobs is not None:
            return self.jobs
        if any(config.training.device != "cpu" for config in runs.values()):
            return 1
        return max(1, cores() // threads(runs))


def sweep(runs: Plan, out: Path, engine: Engine) -> dict[str, str]:
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
        # the whole plan also has the runs of earlier commands in this folder
        plan = write_plan(out, runs)
        failed = carry_out(runs, out, engine)
        begun = {n: read_run(out / n) for n in plan if (out / n).exists()}
        if begun:
            page = write_report([run.path for run in begun.values()], out / "report")
            sys.stderr.write(f"report {page}\n")
            sys.stdout.write(results(experiments(begun.values())))
    verdicts = {name: _verdict(begun.get(name), failed.get(name)) for name in runs}
    bad = {name: verdict for name, verdict in verdicts.items() if verdict}
    sys.stderr.write(f"{len(runs) - len(bad)} of {len(runs)} runs are done.\n")
    return bad


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads(runs: Plan) -> int:
    """The largest number of threads that any of the runs uses."""
    return max(config.training.threads or 1 for config in runs.values())


def carry_out(runs: Plan, out: Path, engine: Engine) -> dict[str, str]:
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
    statuses = {n: read_run(out / n).status for n in runs if (out / n).exists()}
    skipped = (*ENDED, "diverged")
    missing = {n: run for n, run in runs.items() if statuses.get(n) not in skipped}
    if not missing:
        return {}
    jobs = engine.at_a_time(missing)
    done = sum(status in ENDED for status in statuses.values())
    with closing(View(out, missing, total=len(runs), done=done)) as view:
        workers: Workers = Processes()
        if engine.engine == "ray":
            workers = Tasks(engine.address, cpus=jobs * threads(missing))
            # by default, Ray trains as many runs at a time as it has cores and GPUs for
            jobs = engine.jobs or math.inf
        seconds = math.inf if engine.budget is None else 3600 * engine.budget
        run_all(missing, workers, view, jobs=jobs, seconds=seconds)
    return view.failed


def run_all(
    runs: Plan, workers: Workers, view: View, *, jobs: float, seconds: float
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
    # `_process` imports torch, and the help of the command must not wait for that
    from isometry.lab._process import Signals

    waiting = list(runs.items())
    kill_at, stop_at = math.inf, time.monotonic() + seconds
    with Signals() as signals, closing(workers):
        while True:
            stop = signals.received or time.monotonic() >= stop_at
            if not workers.running and (stop or not waiting):
                break
            while waiting and len(workers.running) < jobs and not stop:
                name, config = waiting.pop(0)
                workers.begin(view.out / name, config)
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
