"""Trains runs as Ray tasks, on this machine or on a cluster with a shared disk."""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isometry.lab._errors import RunError
from isometry.lab._sweep.worker import PAUSE, log_of, work
from isometry.lab._train.config import Config

# maximum number of times that a run is resumed after its worker has died
RETRIES = 3


class Tasks:
    """Trains runs as tasks of a Ray cluster.

    If a worker dies, another worker resumes its run from the last checkpoint, up to
    `RETRIES` times.

    Args:
        address: address of a cluster; if None, the environment variable RAY_ADDRESS.
            If neither is set, Ray runs on this machine until `close` is called.
        cpus: number of cores to use on this machine, if there is no cluster.

    Attributes:
        running: the folders of the runs that have not ended, keyed by their tasks.

    Raises:
        RunError: if Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str | None, *, cpus: int) -> None:
        self.ray = _connected(address, cpus)
        self.running: dict[Any, Path] = {}

    def begin(self, folder: Path, config: Config) -> None:
        """Start or resume a run as soon as the cluster has the resources for it."""
        task = self.ray.remote(max_retries=RETRIES, **resources(config))(work)
        # make the path absolute, since a worker has a different working directory
        started = task.options(name=folder.name).remote(folder.absolute(), config)
        self.running[started] = folder

    def stop(self, *, kill: bool = False) -> None:
        """Tell all runs to write a checkpoint and stop, or kill them.

        Killed runs can still be resumed from their last checkpoints.
        """
        # without `force`, a worker treats a cancellation like Ctrl-C
        for task in self.running:
            self.ray.cancel(task, force=kill)

    def ended(self) -> Iterator[tuple[str, str]]:
        """Wait a moment for runs to end; yield their names and error messages.

        The message is empty if the run did not fail.
        """
        for task in self.ray.wait(list(self.running), timeout=PAUSE)[0]:
            folder = self.running.pop(task)
            yield folder.name, self._message(task, folder)

    def _message(self, task: Any, folder: Path) -> str:
        try:
            return self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            return ""
        except self.ray.exceptions.RayError as error:
            return (
                f"{type(error).__name__} after {RETRIES} retries. Perhaps memory ran "
                f"out; see {log_of(folder)}."
            )

    def close(self) -> None:
        """Leave the cluster, or stop Ray on this machine."""
        self.ray.shutdown()


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


def _connected(address: str | None, cpus: int) -> Any:
    """Connect to a Ray cluster, or start Ray on this machine; return Ray's module."""
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
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():
            # raise an error if nothing listens there, since Ray would retry for minutes
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise RunError(
            f"`--address` must be the address of a Ray cluster; got {address!r}: "
            f"{error}. Leave it out to use this machine alone."
        ) from error
    return ray
