"""One run of a sweep, in the process that an engine gives it."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from isometry.lab.train._config import Config
from isometry.lab.train._folder import RunError


def work(folder: Path, config: Config) -> str:
    """Begin a run, or go on with it; what it says goes to the log beside its folder.

    Args:
        folder: of the run.
        config: of the run, for one that begins.

    Returns:
        Why it failed; nothing if it has a summary, which says how it ended.
    """
    with _logged(log_of(folder)):
        try:
            from isometry.lab.train import resume, start
            from isometry.lab.train._memory import keep_freed_memory

            keep_freed_memory()
            if folder.exists():
                resume(folder)
            else:
                start(config, folder)
        except (RunError, ValueError, TypeError, FileNotFoundError) as error:
            sys.stderr.write(f"isometry: {error}\n")
            return str(error)
        # whatever it is, the other runs go on, and the user is told
        except Exception as error:  # noqa: BLE001 - as said above
            traceback.print_exc()
            return f"{type(error).__name__}: {error}. See {log_of(folder)}."
    return ""


def log_of(folder: Path) -> Path:
    """Where a run's words go: beside its folder, which does not exist before it."""
    return folder.with_name(f"{folder.name}.log")


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Both streams of the process go to a file, those of C code too."""
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(path.open("a", buffering=1))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        log.write(f"{now} process {os.getpid()}\n")
        for number in (1, 2):
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(log.fileno(), number)
        # what has taken the place of Python's own streams
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        yield
