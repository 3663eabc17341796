"""Files that are what they should be: read within bounds, verified, written at once."""

import gzip
import hashlib
import io
import os
import uuid
import zlib
from pathlib import Path

from isometry.lab.data._catalogue import File


class DamagedFileError(ValueError):
    """A file whose content is not the one that its name promises."""


def find(file: File, folder: Path) -> Path | None:
    """The file in a folder, compressed or not."""
    for path in (folder / file.name, folder / f"{file.name}.gz"):
        if path.is_file():
            return path
    return None


def bound(file: File) -> int:
    """Bytes to read at most: a few more than the file has, which shows if it is longer.

    What cannot be compressed grows by a header.
    """
    return file.size + 1024


def read(file: File, path: Path) -> bytes:
    """The verified content of a file on disk.

    Args:
        file: what it should be.
        path: where it is; `.gz` if it is compressed.

    Returns:
        The content, not compressed.

    Raises:
        DamagedFileError: if it is not what it should be.
    """
    with path.open("rb") as stream:
        content = stream.read(bound(file))
    return verified(file, content, str(path))


def verified(file: File, content: bytes, where: str) -> bytes:
    """The content of a file, if it has the size and the hash.

    Args:
        file: what it should be.
        content: as it came; compressed if `where` ends in `.gz`.
        where: to be named in the message.

    Returns:
        The content, not compressed.

    Raises:
        DamagedFileError: if it is not what it should be.
    """
    if where.endswith(".gz"):
        content = _expand(content, file.size + 1, where)
    if len(content) != file.size:
        got = "more" if len(content) > file.size else f"{len(content)}"
        raise DamagedFileError(
            f"`{where}` must hold {file.size} bytes; got {got}. Remove it and fetch "
            f"it again."
        )
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise DamagedFileError(
            f"`{where}` must have the SHA-256 {file.sha256}; got {digest}. Remove it "
            f"and fetch it again."
        )
    return content


def _expand(content: bytes, limit: int, where: str) -> bytes:
    """At most so many bytes: a small compressed file may expand to any size."""
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            return stream.read(limit)
    except (EOFError, OSError, zlib.error) as error:
        raise DamagedFileError(
            f"`{where}` must be a whole gzip file; got {error}. Remove it and fetch it "
            f"again."
        ) from error


def write(path: Path, content: bytes) -> None:
    """Write all of a file or nothing: a reader never sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # beside the file, so that the last step is a renaming; no other process has it
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with unfinished.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
