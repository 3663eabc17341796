"""Trains one run of a sweep in a worker process, and writes the run's log."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from isometry.lab._errors import RunError, needs_traceback
from isometry.lab._train.config import Config

# A run that is told to stop has this many seconds to write its checkpoint. After that,
# it is killed.
GRACE = 120.0

# seconds between two checks on the runs
PAUSE = 0.2


def work(folder: Path, config: Config) -> str:
    """Start or resume a run, and write its output to the log next to its folder.

    Args:
        folder: folder of the run.
        config: config of a new run. A resumed run has its config in its folder. In that
            case, this argument only says which classes may be imported.

    Returns:
        Why the run failed. Empty if it did not fail; then the summary of the run says
        how it ended.
    """
    with _logged(log_of(folder)):
        try:
            from isometry.lab._process import keep_freed_memory
            from isometry.lab._train.run import resume, train

            keep_freed_memory()
            if folder.exists():
                # trust only the classes named in the plan, even if the run's folder
                # names others
                resume(folder, trust=(config.task, config.training.model))
            else:
                train(config, folder)
        # Catch every error, since the other runs must continue. The returned message
        # tells the user about it.
        except Exception as error:  # noqa: BLE001 - see above
            known = (RunError, ValueError, TypeError, FileNotFoundError)
            if isinstance(error, known) and not needs_traceback(error):
                sys.stderr.write(f"isometry: {error}\n")
                return str(error)
            traceback.print_exc()
            return f"{type(error).__name__}: {error}. See {log_of(folder)}."
    return ""


def log_of(folder: Path) -> Path:
    """The path of a run's log. It is not in the folder, which may not exist yet."""
    return folder.with_name(f"{folder.name}.log")


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Redirect the process's stdout and stderr to a file, including output from C."""
    with path.open("a", buffering=1) as log, contextlib.ExitStack() as stack:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        log.write(f"{now} process {os.getpid()}\n")
        for number in (1, 2):
            original = os.dup(number)
            stack.callback(os.close, original)
            stack.callback(os.dup2, original, number)
            os.dup2(log.fileno(), number)
        # Redirect Python's streams, too. If they have been replaced, for example by
        # pytest, they do not write to the file descriptors 1 and 2.
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield
