"""Carry out a plan: begin what is missing, resume what was interrupted."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isometry.lab.report._run import read_run
from isometry.lab.reproduce._plan import PlannedRun

# what a run needs no more of; one that diverged would do so again
DONE = {"finished", "solved", "diverged"}

# seconds in which a run has to write its checkpoint when the time is over
GRACE = 120.0

# runs the words after `isometry` until they end or for so many seconds
Launch = Callable[[Sequence[str], float | None], None]


def status_of(folder: Path) -> str:
    """How far a run is.

    Args:
        folder: where it is or will be.

    Returns:
        "missing", "unfinished", or the status of its summary.
    """
    return read_run(folder).status if folder.exists() else "missing"


def next_command(run: PlannedRun, folder: Path, *more: str) -> list[str] | None:
    """The words after `isometry` that bring a run further.

    Args:
        run: of a plan.
        folder: where it is or will be.
        *more: options of the machine, for a run that begins.

    Returns:
        The words; None if the run is done.
    """
    status = status_of(folder)
    if status in DONE:
        return None
    if status == "missing":
        return run.command(folder, *more)
    return ["train", "--resume", f"{folder}"]


def carry_out(
    commands: Sequence[tuple[Path, Sequence[str]]],
    *,
    hours: float | None,
    launch: Launch,
    now: Callable[[], float] = time.monotonic,
) -> list[Path]:
    """Run commands one after the other, for so many hours at most.

    Args:
        commands: folders of runs, each with the words that bring it further.
        hours: of all together; no end if None.
        launch: runs one.
        now: seconds of a clock.

    Returns:
        Folders of the runs that ended before their time without being done: failures.
    """
    end = None if hours is None else now() + 3600 * hours
    failed = []
    for folder, words in commands:
        left = None if end is None else end - now()
        if left is not None and left <= 0:
            break
        launch(words, left)
        is_over = end is not None and now() >= end
        if not is_over and status_of(folder) not in DONE:
            failed.append(folder)
    return failed


def launch(words: Sequence[str], seconds: float | None) -> None:
    """Run `isometry` in a process of its own, and interrupt it when its time is over.

    Args:
        words: after `isometry`.
        seconds: how long it may take; no end if None.
    """
    # what it prints is news; only the report is the result
    line = [sys.executable, "-m", "isometry", *words]
    with subprocess.Popen(line, stdout=sys.stderr) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            # as Ctrl-C: the run writes a checkpoint and its summary
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                # its last checkpoint serves
                process.kill()
