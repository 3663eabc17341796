"""Trains each run in a process of its own, so that a crash affects only one run."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from isometry.lab._sweep.worker import GRACE, PAUSE, log_of, work
from isometry.lab._train.config import Config


class Processes:
    """Trains runs in processes of this machine.

    When training has ended, the process sends a string through a pipe: an error
    message, or "" if the run did not fail. If the process dies before that, its end of
    the pipe is closed without a string. A run counts as ended only when its process has
    ended. This may be later, because a thread of the user's code may still be running.

    Attributes:
        running: for each run that has not ended, its folder, its process, and the
            string (None if no string has arrived). The key is the object to wait for
            next: first the receiving end of the pipe, then the process's sentinel.
    """

    def __init__(self) -> None:
        self.running: dict[Any, tuple[Path, SpawnProcess, str | None]] = {}

    def begin(self, folder: Path, config: Config) -> None:
        """Start or resume a run in a new process."""
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(folder, config, sender))
        with _without_ctrl_c():
            process.start()
        # close this process's copy of the sender, so that only the child has a copy
        sender.close()
        self.running[receiver] = folder, process, None

    def stop(self, *, kill: bool = False) -> None:
        """Tell all runs to write a checkpoint and stop, or kill them.

        Killed runs can still be resumed from their last checkpoints.
        """
        # A child may get SIGTERM twice, from `run_all` and from `close`, which does no
        # harm. A run that is training only records the signal, and stops after its
        # step. Before and after training, the signal ends the process at once, and the
        # run can still be resumed.
        for _, process, _ in self.running.values():
            process.kill() if kill else process.terminate()

    def ended(self) -> Iterator[tuple[str, str]]:
        """Wait a moment for runs to end; yield their names and error messages.

        The message is empty if the run did not fail.
        """
        for ready in connection.wait(list(self.running), PAUSE):
            folder, process, message = self.running.pop(ready)
            if ready != process.sentinel:
                # Read the string now. The process cannot end before that if the string
                # is longer than the pipe can hold, 64 KiB on Linux.
                self.running[process.sentinel] = folder, process, _received(ready)
            elif message is None:
                yield folder.name, _death(folder, process)
            else:
                yield folder.name, message

    def close(self) -> None:
        """Stop all processes that are still running, for example after an exception."""
        self.stop()
        for _, process, _ in self.running.values():
            process.join(GRACE)
        self.stop(kill=True)


def _child(folder: Path, config: Config, sender: connection.Connection) -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    sender.send(work(folder, config))


def _follow_parent() -> None:
    """Wait until the process of the sweep ends, then stop this run with SIGTERM."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _received(receiver: Any) -> str | None:
    """The string that a child has sent; None if the child died before sending it."""
    with contextlib.suppress(EOFError, OSError), receiver:
        return receiver.recv()
    return None


def _death(folder: Path, process: SpawnProcess) -> str:
    """Why a child has died without a message; empty if it was told to stop."""
    process.join()
    code = process.exitcode or 0
    if code == -signal.SIGTERM:
        # the child was told to stop while it was not training, usually before it began
        return ""
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was ended by signal {signal.Signals(-code).name}"
    if code == -signal.SIGKILL:
        how += f", perhaps because memory ran out or it did not stop in {GRACE:.0f} s"
    return f"its process {how}. See {log_of(folder)}."


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Protect processes started inside the `with` block from Ctrl-C, except on Windows.

    On Ctrl-C, a terminal sends SIGINT to all processes in the foreground, and would
    also interrupt a child that is still importing torch. To prevent this, a process
    that is started inside the block inherits a mask that blocks SIGINT. Only the
    process of the sweep reacts to Ctrl-C; it stops its children with SIGTERM.
    """
    if os.name != "posix":
        yield
        return
    # start the resource tracker of multiprocessing now, since its start unblocks SIGINT
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
