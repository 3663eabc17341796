"""The folder of a run: written by one process, and whole at every moment."""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
SUMMARY = "summary.json"
LOCK = "lock"


class RunError(Exception):
    """A run that cannot begin or go on; the message says why, and what to do."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that has its old content or its new one, whatever happens.

    Args:
        path: the file.
        data: its new content.

    Raises:
        OSError: if it cannot be written; the old content stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def as_json(value: Any) -> bytes:
    """Readable JSON."""
    return (json.dumps(value, indent=2) + "\n").encode()


def create(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder of a new run, which is there with all its first files or not.

    Args:
        folder: where; must not exist.
        files: contents by name.

    Raises:
        RunError: if it exists or cannot be made.
    """
    if folder.exists():
        raise RunError(
            f"{folder} exists, and runs are never overwritten. Choose another `--out`, "
            f"or go on with it: isometry train --resume {folder}"
        )
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # a process that died may have left this folder; its number is ours now
        partial.mkdir(exist_ok=True)
        for name, data in files.items():
            write_atomically(partial / name, data)
        # fails if somebody else has made and filled it in the meantime
        partial.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(
            f"{folder} must be a place for a new folder; got {error}. Choose another "
            f"`--out`."
        ) from error


def last_good(folder: Path) -> str:
    """What a run that has diverged leaves behind, as the first half of a sentence."""
    path = folder / CHECKPOINT
    if path.exists():
        return f"The last good checkpoint is {path}"
    return "That was before its first checkpoint"


def default_folder(name: str) -> Path:
    """A new folder under the user's data directory.

    Args:
        name: what it is about.

    Returns:
        A path that does not exist, numbered if need be.
    """
    from platformdirs import user_data_path

    runs = user_data_path("isometry") / "runs"
    candidates = (runs / f"{name}-{i:03}" for i in itertools.count(1))
    return next(path for path in candidates if not path.exists())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes into the folder, and a killed process holds nothing.

    Args:
        folder: folder of a run.

    Yields:
        Nothing.

    Raises:
        RunError: if another process has it, or it cannot be written to.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(
            f"{folder} is being written by another process. Wait until it has ended, "
            f"or train into another folder."
        ) from None
    except OSError as error:
        raise RunError(
            f"{folder} must be a folder that can be written to; got {error}. Copy it "
            f"to a place where you may write."
        ) from error
    try:
        yield
    finally:
        lock.release()


class Metrics:
    """The records of a run: one JSON object a line.

    Args:
        folder: folder of the run.
        size: bytes of the file that the checkpoint knows; what follows is cut off.

    Raises:
        RunError: if there are fewer.
    """

    def __init__(self, folder: Path, size: int = 0) -> None:
        path = folder / METRICS
        size_on_disk = path.stat().st_size if path.exists() else 0
        if size_on_disk < size:
            raise RunError(
                f"{path} must have the {size} bytes that the checkpoint knows; got "
                f"{size_on_disk}. It was changed: restore it, or train anew."
            )
        self.path = path
        # no buffer: what was written is there when the process is killed
        self.file = path.open("ab", buffering=0)
        self.file.truncate(size)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line."""
        line = memoryview((json.dumps(record) + "\n").encode())
        while line:
            line = line[self.file.write(line) :]

    def records(self) -> list[dict[str, Any]]:
        """The lines so far."""
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def size(self) -> int:
        """Bytes that are safely there."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _sync_folder(folder: Path) -> None:
    # a rename is safe once its folder is; Windows has no such call
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
