"""Trains runs as Ray tasks, on this machine or on a cluster with a shared disk."""

import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from isometry.lab._files import RunError
from isometry.lab._process import Signals
from isometry.lab._sweep.plan import SweepRun
from isometry.lab._sweep.view import GRACE, PAUSE, View, log_of, work
from isometry.lab._train.config import Config

# maximum number of times that a run is resumed after its worker has died
RETRIES = 3


def run_all(
    runs: Sequence[SweepRun], out: Path, view: View, *, address: str | None, cpus: int
) -> dict[str, str]:
    """Train all runs, as many at a time as the cluster has resources for.

    The function returns when all runs have ended. If a worker dies, another worker
    resumes its run from the last checkpoint, up to `RETRIES` times.

    Args:
        runs: the runs, in order.
        out: folder of the sweep, which all machines share.
        view: shows the progress of the runs.
        address: address of a cluster; if None, the environment variable RAY_ADDRESS.
            If neither is set, Ray runs on this machine alone.
        cpus: number of cores to use on this machine, if there is no cluster.

    Returns:
        For each run that failed, the reason, keyed by the run's name.

    Raises:
        RunError: if Ray is not installed, or the cluster cannot be reached.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has stopped or, after
            `GRACE` seconds, was killed.
    """
    with _cluster(address, cpus) as ray, Signals() as signals:
        # make the path absolute, since a worker has a different working directory
        out = out.absolute()
        tasks = {_submit(ray, run, out): out / run.name for run in runs}
        failed: dict[str, str] = {}
        kill_at = math.inf
        while tasks:
            if signals.received and kill_at == math.inf:
                kill_at = time.monotonic() + GRACE
                # a worker treats a cancellation like Ctrl-C, and writes a checkpoint
                for task in tasks:
                    ray.cancel(task)
            if time.monotonic() > kill_at:
                for task in tasks:
                    ray.cancel(task, force=True)
            ended, _ = ray.wait(list(tasks), timeout=PAUSE)
            for task in ended:
                folder = tasks.pop(task)
                if message := _message(ray, task, folder):
                    failed[folder.name] = message
                view.end(folder.name, message)
            view.refresh()
    if signals.received:
        raise KeyboardInterrupt
    return failed


def resources(config: Config) -> dict[str, float]:
    """The number of cores and GPUs that a run needs.

    Args:
        config: config of the run.

    Returns:
        The options `num_cpus` and `num_gpus` of a Ray task.
    """
    training = config.training
    cards = 1.0 if training.device.startswith("cuda") else 0.0
    return {"num_cpus": float(training.threads or 1), "num_gpus": cards}


def _submit(ray: Any, run: SweepRun, out: Path) -> Any:
    task = ray.remote(max_retries=RETRIES, **resources(run.config))(work)
    return task.options(name=run.name).remote(out / run.name, run.config)


def _message(ray: Any, task: Any, folder: Path) -> str:
    try:
        return ray.get(task)
    except ray.exceptions.TaskCancelledError:
        return ""
    except ray.exceptions.RayError as error:
        return (
            f"{type(error).__name__} after {RETRIES} retries. Perhaps memory ran out; "
            f"see {log_of(folder)}."
        )


@contextlib.contextmanager
def _cluster(address: str | None, cpus: int) -> Iterator[Any]:
    """Connect to a Ray cluster, or run Ray on this machine until the block ends."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise RunError(
            "`--engine ray` needs Ray, which is not installed. Install it, "
            "`pip install ray`, or leave the option out."
        ) from None
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        quiet |= {"num_cpus": cpus, "include_dashboard": False}
    try:
        _check_reachable(address)
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise RunError(
            f"`--address` must be the address of a Ray cluster; got {address!r}: "
            f"{error}. Leave it out to use this machine alone."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at HOST:PORT. Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()
