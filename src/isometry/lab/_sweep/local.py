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
from typing import Any, NamedTuple

from isometry.lab._sweep.view import GRACE, PAUSE, log_of, work
from isometry.lab._train.config import Config

# Messages from a child are cut to this many characters; the run's log has the whole
# message. The parent reads the message only after the child has ended, and the child
# cannot end before the pipe has taken the whole message. On Linux, a pipe takes 64 KiB.
_LONGEST_MESSAGE = 4096


class _Child(NamedTuple):
    """A run in its own process.

    When the run ends, the process sends a string, which can be read from `receiver`: an
    error message, or "" if the run did not fail.
    """

    folder: Path
    process: SpawnProcess
    receiver: connection.Connection


class Processes:
    """Trains runs in processes of this machine.

    Attributes:
        running: the processes that have not ended, keyed by their sentinels.
    """

    def __init__(self) -> None:
        self.running: dict[Any, _Child] = {}

    def begin(self, folder: Path, config: Config) -> None:
        """Start or resume a run in a new process."""
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        arguments = (folder, config, sender)
        process = context.Process(target=_child, args=arguments, name=folder.name)
        with _without_ctrl_c():
            process.start()
        # Close this process's copy of the sender, so that only the child has a copy. If
        # the child dies, `_message` then gets an `EOFError` instead of waiting forever.
        sender.close()
        self.running[process.sentinel] = _Child(folder, process, receiver)

    def stop(self, *, kill: bool = False) -> None:
        """Tell all runs to write a checkpoint and stop, or kill them.

        Killed runs can still be resumed from their last checkpoints.
        """
        # A child may get SIGTERM twice, from `run_all` and from `close`, which does no
        # harm. A run that is training only records the signal, and stops after its
        # step. Before and after training, the signal ends the process at once, and the
        # run can still be resumed.
        for child in self.running.values():
            child.process.kill() if kill else child.process.terminate()

    def ended(self) -> Iterator[tuple[str, str]]:
        """Wait a moment for runs to end; yields their names and why they failed."""
        for sentinel in connection.wait(list(self.running), PAUSE):
            child = self.running.pop(sentinel)
            yield child.folder.name, _message(child)

    def close(self) -> None:
        """Stop all processes that are still running, for example after an exception."""
        self.stop()
        for child in self.running.values():
            child.process.join(GRACE)
        self.stop(kill=True)


def _child(folder: Path, config: Config, sender: connection.Connection) -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    sender.send(work(folder, config)[:_LONGEST_MESSAGE])


def _follow_parent() -> None:
    """Wait until the process of the sweep ends, then stop this run with SIGTERM."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _message(child: _Child) -> str:
    """Why a child failed: its message or its exit code; empty if it did not fail."""
    child.process.join()
    code = child.process.exitcode or 0
    try:
        return child.receiver.recv()
    except EOFError:
        # the child died before it could send anything
        pass
    finally:
        child.receiver.close()
    if code == -signal.SIGTERM:
        # the child was told to stop while it was not training, usually before it began
        return ""
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was ended by signal {signal.Signals(-code).name}"
    if code == -signal.SIGKILL:
        how += f", perhaps because memory ran out or it did not stop in {GRACE:.0f} s"
    return f"its process {how}. See {log_of(child.folder)}."


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
