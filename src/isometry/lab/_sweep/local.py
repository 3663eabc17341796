"""Trains each run in a process of its own, so that a crash affects only one run."""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path

from isometry.lab._process import Signals
from isometry.lab._sweep.plan import SweepRun
from isometry.lab._sweep.view import GRACE, PAUSE, View, log_of, work
from isometry.lab._train.config import Config

# Messages from a child are cut to this many characters; the run's log has the whole
# message. The parent reads the message only after the child has ended, and the child
# cannot end before the pipe has taken the whole message. On Linux, a pipe takes 64 KiB.
_LONGEST_MESSAGE = 4096


@dataclass(frozen=True)
class _Child:
    """A run in its own process.

    When the run ends, the process sends a string, which can be read from `receiver`: an
    error message, or "" if the run did not fail.
    """

    folder: Path
    process: SpawnProcess
    receiver: connection.Connection


def run_all(
    runs: Sequence[SweepRun],
    out: Path,
    view: View,
    *,
    jobs: int,
    seconds: float = math.inf,
) -> dict[str, str]:
    """Train runs, `jobs` at a time, until all have ended or the time is up.

    Args:
        runs: the runs, in order.
        out: folder of the sweep.
        view: shows the progress of the runs.
        jobs: number of processes at a time.
        seconds: time after which every run writes a checkpoint and stops.

    Returns:
        For each run that failed, the reason, keyed by the run's name.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has stopped or, after
            `GRACE` seconds, was killed.
    """
    waiting, children, failed = list(runs), dict[int, _Child](), dict[str, str]()
    kill_at, stop_at = math.inf, time.monotonic() + seconds
    with Signals() as signals, _ended(children):
        while True:
            stop = signals.received or time.monotonic() >= stop_at
            if not children and (stop or not waiting):
                break
            while waiting and len(children) < jobs and not stop:
                child = _begin(waiting.pop(0), out)
                children[child.process.sentinel] = child
            if stop and kill_at == math.inf:
                kill_at = time.monotonic() + GRACE
                _terminate(children.values())
            if time.monotonic() > kill_at:
                _kill(children.values())
            for sentinel in connection.wait(list(children), PAUSE):
                assert isinstance(sentinel, int)
                child = children.pop(sentinel)
                if message := _message(child):
                    failed[child.folder.name] = message
                view.end(child.folder.name, message)
            view.refresh()
    if signals.received:
        raise KeyboardInterrupt
    return failed


def _begin(run: SweepRun, out: Path) -> _Child:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    folder = out / run.name
    process = context.Process(
        target=_child, args=(folder, run.config, sender), name=run.name
    )
    with _without_ctrl_c():
        process.start()
    # Close this process's copy of the sender, so that only the child has a copy. If the
    # child dies, `_message` then gets an `EOFError` instead of waiting forever.
    sender.close()
    return _Child(folder, process, receiver)


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


def _terminate(children: Iterable[_Child]) -> None:
    # A child may get SIGTERM twice, from `run_all` and from `_ended`, which does no
    # harm. A run that is training only records the signal, and stops after its step.
    # Before and after training, the signal ends the process at once, and the run can
    # still be resumed.
    for child in children:
        child.process.terminate()


def _kill(children: Iterable[_Child]) -> None:
    # killed runs can still be resumed from their last checkpoints
    for child in children:
        child.process.kill()


@contextlib.contextmanager
def _ended(children: dict[int, _Child]) -> Iterator[None]:
    """Stop all child processes at the end of the block, even after an exception."""
    try:
        yield
    finally:
        left = list(children.values())
        _terminate(left)
        for child in left:
            child.process.join(GRACE)
        _kill(left)


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
