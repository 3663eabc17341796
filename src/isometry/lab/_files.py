"""The files in the folder of a run, written so that a killed run can be resumed."""

import contextlib
import itertools
import json
import math
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from isometry.lab._errors import RunError

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
SUMMARY = "summary.json"
LOCK = "lock"

Status = Literal["finished", "solved", "diverged", "interrupted"]
# the statuses of a run that stopped as planned: after its last step, or because the
# task was solved
ENDED: tuple[Status, ...] = ("finished", "solved")


class Summary(TypedDict):
    """The content of `summary.json`: how a run ended, and its results.

    `RunOutcome` describes `best`, `best_by_test` and `final`.
    """

    status: Status
    steps: int
    seconds: float
    # missing in runs of earlier versions
    cpu_seconds: NotRequired[float]
    metric: str
    best: dict[str, Any]
    best_by_test: dict[str, Any]
    # missing in runs of earlier versions
    solved_at: NotRequired[int | None]
    final: dict[str, Any]
    parameters: int
    baseline: float | None
    angles: list[float]
    orthogonality: float | None
    source: str
    # the `final_scores` of the task, keyed by split and name, if it has any
    scores: NotRequired[dict[str, dict[str, float]]]


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of a file. A crash leaves either the old or the new content.

    Other processes never see the file incomplete, even if several write it at once.

    Args:
        path: the file.
        data: its new content.

    Raises:
        OSError: if the file cannot be written. The file keeps its old content, unless
            the error came from the sync of its folder, which is the last step.
    """
    # Name the partial file by a random number, not by the process id: containers that
    # share a folder can have processes with equal ids.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        # after a successful write, the partial file no longer has this name
        partial.unlink(missing_ok=True)
    _sync_folder(path.parent)


def remove_partial(folder: Path, *, before: float = math.inf) -> None:
    """Remove the partial files that killed processes have left in a folder.

    Args:
        folder: the folder, which need not exist.
        before: remove only files that were last written before this time. Newer ones
            may belong to a process that is still writing.
    """
    for path in folder.glob("*.????????.partial"):
        # another process may remove the file first
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()


def for_file_name(text: str) -> str:
    """Replace characters that file names should not have, such as "/", by underscores.

    Several such characters in a row become one underscore.
    """
    return re.sub(r"[^\w.+=-]+", "_", text)


def is_file_name(text: str) -> bool:
    """True for a plain file name: no path, no hidden file, no unusual characters."""
    return re.fullmatch(r"\w[\w.+=-]*", text) is not None


def as_json(value: Any) -> bytes:
    """A value as indented JSON."""
    return (json.dumps(value, indent=2) + "\n").encode()


def create(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a new folder with files in it. On failure, no partial folder is left.

    Args:
        folder: path of the folder, which must not exist.
        files: contents of the files, keyed by name.

    Raises:
        RunError: if the folder exists or cannot be made.
    """
    if folder.exists():
        raise RunError(
            f"{folder} exists, and runs are never overwritten. Choose another folder, "
            f"or resume the run: {resume_command(folder)}"
        )
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        for name, data in files.items():
            write_atomically(partial / name, data)
        # this fails if another process has created and filled `folder` in the meantime
        partial.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(
            f"{folder} must be a path for a new folder; got {error}. Choose another."
        ) from error


def divergence(folder: Path, steps: int) -> str:
    """Text for messages: when a run diverged, and where its last checkpoint is.

    Args:
        folder: folder of the run.
        steps: number of steps in the run's summary, which counts only the steps before
            the loss diverged.

    Returns:
        Two sentences, without the final period.
    """
    path = folder / CHECKPOINT
    rest = "That was before its first checkpoint"
    if path.exists():
        rest = f"The last good checkpoint is {path}"
    return f"the loss diverged at step {steps + 1}. {rest}"


def default_folder(name: str) -> Path:
    """The path of a new folder under the user's data directory.

    Args:
        name: first part of the folder's name.

    Returns:
        A path that does not exist yet: the name, followed by the first free number.
    """
    runs = data_folder() / "runs"
    candidates = (runs / f"{name}-{i:03}" for i in itertools.count(1))
    return next(path for path in candidates if not path.exists())


def data_folder() -> Path:
    """The folder that contains the default folders for the results of commands."""
    from platformdirs import user_data_path

    return user_data_path("isometry")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes until the `with` block or process ends.

    Partial files that an earlier process has left in the folder are removed.

    Args:
        folder: folder of a run or of a sweep.

    Yields:
        Nothing.

    Raises:
        RunError: if another process holds the lock, or the folder is not writable.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    try:
        hold = lock.acquire(timeout=0)
    except Timeout:
        raise RunError(
            f"{folder} is being written by another process. Wait until that process "
            f"has ended, or choose another folder."
        ) from None
    except OSError as error:
        raise RunError(
            f"{folder} must be a folder that can be written to; got {error}. Copy it "
            f"to a place where you have write permission."
        ) from error
    with hold:
        remove_partial(folder)
        yield


def has_records(folder: Path) -> bool:
    """True if a run has recorded a step."""
    paths = (folder / METRICS, folder / CHECKPOINT)
    return any(path.exists() and path.stat().st_size for path in paths)


class Metrics:
    """The file with the records of a run, one JSON object per line.

    Args:
        folder: folder of the run.
        size: length of the file in bytes when the checkpoint was written; 0 if there is
            no checkpoint. Later records are removed.

    Raises:
        RunError: if the file is shorter than `size`.
    """

    def __init__(self, folder: Path, size: int = 0) -> None:
        path = folder / METRICS
        size_on_disk = path.stat().st_size if path.exists() else 0
        if size_on_disk < size:
            raise RunError(
                f"{path} must have the {size} bytes that it had at the checkpoint; got "
                f"{size_on_disk}. Restore it from a copy, or begin another run."
            )
        self.path = path
        # without a buffer, a written line is not lost if the process is killed
        self.file = path.open("ab", buffering=0)
        self.file.truncate(size)
        # `truncate` does not move the file position. The method `size` returns this
        # position, so move it to the new end.
        self.file.seek(size)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record as a line."""
        line = memoryview((json.dumps(record) + "\n").encode())
        while line:
            line = line[self.file.write(line) :]

    def records(self) -> list[dict[str, Any]]:
        """All records so far."""
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def size(self) -> int:
        """Wait until the whole file is on the disk, and return its length in bytes."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _sync_folder(folder: Path) -> None:
    # A crash can undo a rename until the folder is synced. Windows cannot sync folders.
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if the file does not exist."""
    return json.loads(path.read_bytes()) if path.exists() else {}


def resume_command(folder: Path) -> str:
    """The command that resumes a run, with `--trust` if the run uses a user's class."""
    own = False
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        config = read_json(folder / CONFIG)
        own = any(":" in str(config.get(name)) for name in ("task", "model"))
    trust = ("--trust",) if own else ()
    return shlex.join(("isometry", "train", "--resume", str(folder), *trust))


# The entries that a summary must have, since they are read when a run is resumed.
# Another program or an earlier version may have left out other entries.
_READ = {"status", "steps", "seconds", "metric", "best", "best_by_test"}


def read_summary(folder: Path) -> Summary | None:
    """Read the summary of a run from its folder; None if there is no summary.

    A damaged summary raises a `RunError`.
    """
    path = folder / SUMMARY
    if not path.exists():
        return None
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        summary: Any = read_json(path)
        if summary.keys() >= _READ:
            return summary
    raise RunError(damaged(path, "something that is not a summary"))


def read_checkpoint(folder: Path) -> bytes | None:
    """Read the checkpoint of a run as bytes; None if there is no checkpoint yet."""
    path = folder / CHECKPOINT
    data = path.read_bytes() if path.exists() else None
    if data == b"":
        raise RunError(damaged(path, "an empty file"))
    return data


def damaged(path: Path, what: str) -> str:
    """An error message about a file that is not what the run wrote."""
    return (
        f"{path} must be what `isometry train` wrote for this run; got {what}. "
        f"Restore it from a copy, or begin another run."
    )
