"""This process, its machine, and the processes that train together with it."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import torch
from torch import distributed, nn

from isometry._config import blas, processor


def machine() -> dict[str, Any]:
    """Properties of this machine that affect times and the last digits of results.

    Returns:
        The processor, the number of logical cores, torch's number of threads, torch's
        version, and the BLAS that torch uses.
    """
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "blas": blas(torch.__config__.show()),
    }


PACKAGES = ("isometry", "torch", "numpy", "safetensors")


def environment(*, ranks: int) -> dict[str, Any]:
    """The content of `environment.json`: versions, machine and revision.

    Args:
        ranks: number of processes that train together.

    Returns:
        The values, keyed by name.
    """
    here = machine()
    return {
        "python": platform.python_version(),
        "versions": {name: _installed_version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": here["processor"],
        **{name: here[name] for name in ("cores", "threads", "blas")},
        "processes": ranks,
        "revision": revision(),
    }


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def revision() -> str | None:
    """The commit of this package, as `git describe` names it; None if not known."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    command = ["git", "-C", str(source), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


# options of mallopt(3), from glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Keep freed memory in the process, instead of returning it to the system.

    Otherwise, in each training step, the system would have to provide the memory for
    all hidden states again, page by page: 100 MB for 1,020 time steps, a batch of 128
    and 190 features. Call this function only in a process that does nothing but train.
    Without glibc, it has no effect.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Take large blocks from the heap, too. By default they come from mmap, and go
        # back to the system as soon as they are freed.
        mallopt(_M_MMAP_MAX, 0)
        # glibc reads -1 as the largest unsigned number, and so never trims the heap
        mallopt(_M_TRIM_THRESHOLD, -1)


class Signals:
    """Records SIGINT and SIGTERM inside a `with` block, so that the process continues.

    Signals are recorded only if the block is in the main thread.

    Attributes:
        received: whether SIGINT or SIGTERM has been received.
    """

    received = False

    def __enter__(self) -> Self:
        self.before: dict[int, Any] = {}
        # Python lets only the main thread set handlers. A run in another thread does
        # not notice signals, so the caller has to stop the run.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _remember(self, *_: object) -> None:
        self.received = True


@dataclass(frozen=True)
class Ranks:
    """The rank of this process among the processes that train together, and its device.

    Attributes:
        rank: index of this process, counting from 0.
        count: how many processes train together.
        device: device of this process.
    """

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True for the first process, which is the only process that writes files."""
        return self.rank == 0

    def parallel(self, model: nn.Module) -> nn.Module:
        """Wrap the model so that its gradients are averaged over all processes.

        If there is only one process, the model itself is returned.
        """
        if self.count == 1:
            return model
        return nn.parallel.DistributedDataParallel(model)

    def sum(self, *numbers: float) -> list[float]:
        """The sum of each number over all processes, in float64.

        Do not call this in a process that trains alone, which has no process group.
        """
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def share(self, data: bytes | None) -> bytes:
        """Send bytes from the first process to all others, without a shared disk.

        The first process passes the bytes, or None for no bytes. The others pass None.
        In every process, the method returns the bytes, which are empty for None.
        """
        contents = [data]
        if self.count > 1:
            distributed.broadcast_object_list(contents, src=0, device=self.device)
        return contents[0] or b""


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Set up torch's process group for the duration of a `with` block.

    A process that trains alone, with or without torchrun, gets no process group.

    Args:
        device: "cpu" or "cuda". Under torchrun, "cuda" means the GPU whose index is the
            local rank of the process.

    Yields:
        The rank of this process, the number of processes, and the device.

    Raises:
        ValueError: if torch cannot use the device.
    """
    try:
        torch.zeros(1, device=device)
    # catch two types, since the type of torch's error depends on how torch was built
    except (AssertionError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"`device` must be available to torch here; got {device!r}: {first}. "
            f"Leave it out to train on the CPU."
        ) from error
    own_device, backend = torch.device(device), "gloo"
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Ranks(0, 1, own_device)
        return
    if own_device.type == "cuda":
        own_device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        backend = "nccl"
        torch.cuda.set_device(own_device)
    distributed.init_process_group(backend)
    try:
        yield Ranks(distributed.get_rank(), count, own_device)
    finally:
        distributed.destroy_process_group()
