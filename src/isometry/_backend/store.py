"""The cache folder for C libraries; only trusted and undamaged files are loaded.

Loading a library runs its code. So the folder and the library must belong to the user,
and nobody else may have permission to write to them. The name of a library ends with
the SHA-256 of its contents, so a damaged library is noticed. Libraries that have not
been used for a long time are removed.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

# days without use after which a library is removed
_UNUSED_DAYS = 90
# hours after which the temporary folder of a build is removed, since a build that takes
# so long must have been killed
_STALE_HOURS = 24

_DAY = 86400.0


class BuildError(RuntimeError):
    """There is no usable C library; the message says why."""


def open_folder() -> Path:
    """The cache folder, which is created if it does not exist.

    Raises:
        BuildError: if `cache_folder` finds no place for the folder, if the folder
            cannot be created, or if `check_trusted` refuses it.
    """
    folder = cache_folder()
    remedy = "Set XDG_CACHE_HOME to a folder of your own."
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"the cache cannot be written: {error}. {remedy}") from error
    check_trusted(folder)
    return folder


def cache_folder() -> Path:
    """The path of the cache folder, whether it exists or not.

    Raises:
        BuildError: if neither XDG_CACHE_HOME nor the user's home folder is known.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # the XDG specification says that a relative path must be ignored
    if base.is_absolute():
        return base / "isometry"
    try:
        return Path.home() / ".cache" / "isometry"
    except RuntimeError as error:
        # in a container, HOME may be unset and the user may be unknown to the system
        remedy = "Set XDG_CACHE_HOME to a folder."
        raise BuildError(f"this user has no home folder. {remedy}") from error


def check_trusted(path: Path) -> None:
    """Refuse a file or folder that somebody else could have written.

    Raises:
        BuildError: if `path` is a symbolic link, belongs to another user, or is
            writable by others.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise BuildError(f"{path} must not be a link. Remove it.")
    if status.st_uid != os.geteuid():
        raise BuildError(
            f"{path} must belong to this user, {os.geteuid()}; got {status.st_uid}. "
            f"Remove it, or set XDG_CACHE_HOME to a folder of your own."
        )
    if status.st_mode & 0o022:
        raise BuildError(
            f"{path} must not be writable by others; got mode "
            f"{stat.S_IMODE(status.st_mode):o}. Call `chmod go-w` on it."
        )


def find(folder: Path, key: str) -> Path | None:
    """The library with this key, or None. A damaged library is removed.

    Raises:
        BuildError: if somebody else could have written the library.
    """
    for library in sorted(folder.glob(f"kernels-{key}-*.so")):
        check_trusted(library)
        contents = library.read_bytes()
        if library.name == file_name(key, contents):
            _touch(library)
            return library
        # the contents do not match the name, perhaps because the machine crashed
        library.unlink(missing_ok=True)
    return None


def keep(source: Path, folder: Path, key: str) -> Path:
    """Move a new library into the folder. After a crash, it is complete or absent."""
    source.chmod(0o700)
    library = folder / file_name(key, source.read_bytes())
    _flush(source)
    source.replace(library)
    _flush(folder)
    return library


def file_name(key: str, contents: bytes) -> str:
    """The file name of the library with this key and these contents."""
    return f"kernels-{key}-{hashlib.sha256(contents).hexdigest()}.so"


def _flush(path: Path) -> None:
    """Wait until a file, or the list of files in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _touch(library: Path) -> None:
    """Record the day on which a library was last used, as its modification time."""
    # an administrator may have made the cache read-only
    with contextlib.suppress(OSError):
        if time.time() - library.stat().st_mtime > _DAY:
            os.utime(library)


def tidy(folder: Path) -> None:
    """Remove old unused libraries, old lock files and the remains of killed builds."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            days = (now - path.lstat().st_mtime) / _DAY
            if path.name.startswith("kernels-") and days > _UNUSED_DAYS:
                path.unlink()
            elif path.name.startswith("build-") and days > _STALE_HOURS / 24:
                shutil.rmtree(path)


@contextlib.contextmanager
def locked(folder: Path, key: str, *, seconds: float) -> Iterator[None]:
    """Hold the lock on this key: only one process at a time builds the library.

    Raises:
        BuildError: if another process holds the lock for this many seconds.
    """
    # not at the top of the file, because Windows does not have this module
    import fcntl

    path = folder / f"kernels-{key}.lock"
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"another process has been building for {seconds:.0f} s. If it "
                        f"hangs, kill it; it holds the lock {path}."
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
