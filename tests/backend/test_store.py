"""The cache of libraries: damaged files, files of other users, and old files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isometry._backend.build import build
from isometry._backend.store import (
    BuildError,
    check_trusted,
    find,
    keep,
    locked,
    open_folder,
    tidy,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


DAMAGE = """
import os
from isometry._backend import build as _build, store as _store, library as _native

_, library = _build.build()
good = library.read_bytes()

def again(compiler, folder, key, timeout):
    scratch = folder / "scratch"
    scratch.write_bytes(good)
    return _store.keep(scratch, folder, key)

# a real compiler would take seconds, for the same bytes
_build._compile = again
cuts = [0, 64, 100, 500, 4096, 8192, 16384, 40960, 65536, 81920, len(good) - 1]
for damaged in (*(good[:cut] for cut in cuts), good[:8192] + bytes(len(good) - 8192)):
    library.write_bytes(damaged)
    # each damage gets a new process, because a process loads a library only once
    if not (process := os.fork()):
        os._exit(not _native._load(_build.build()[1]).isometry_scan_f32)
    status = os.waitpid(process, 0)[1]
    assert status == 0, (len(damaged), status)
    assert library.read_bytes() == good
"""


@pytest.mark.once
def test_a_damaged_library_is_built_again():
    """A library that a power cut truncated or filled with zeros is built again.

    At every start it used to cause SIGBUS if it was truncated to 4096 bytes or more,
    and SIGSEGV if it was filled with zeros.
    """
    command = [sys.executable, "-c", DAMAGE]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    assert process.returncode == 0, (process.stdout, process.stderr)


def put(contents: bytes = b"a library", key: str = "key") -> Path:
    """Put a library into the cache, as a build does."""
    scratch = open_folder() / "scratch"
    scratch.write_bytes(contents)
    return keep(scratch, open_folder(), key)


def test_only_the_user_may_write(cache):
    """Only the user may write to the cache, whatever the umask is.

    With umask 000 folder and library used to be open to everybody.
    """
    before = os.umask(0)
    try:
        library = put()
        with locked(open_folder(), "key", seconds=1.0):
            pass
    finally:
        os.umask(before)
    modes = {p.stat().st_mode & 0o077 for p in (cache / "isometry", library)}
    assert modes == {0}
    assert (cache / "isometry" / "kernels-key.lock").stat().st_mode & 0o777 == 0o600


def test_a_folder_of_others_is_refused(cache, monkeypatch):
    """A cache folder that others can write to is refused.

    Its libraries run with our rights: root used to run the library of another user.
    """
    folder = open_folder()
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        with pytest.raises(BuildError, match=rf"others; got mode {mode:o}.*chmod go-w"):
            build()
    folder.chmod(0o755)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(BuildError, match=rf"belong to this user, {owner + 1}"):
        build()
    assert not list(folder.glob("*.so"))


def test_a_library_of_others_is_refused(monkeypatch):
    library = put()
    assert find(open_folder(), "key") == library
    library.chmod(0o777)
    with pytest.raises(
        BuildError, match=r"must not be writable by others; got mode 777"
    ):
        find(open_folder(), "key")


def test_links_are_refused(cache, tmp_path):
    """Links in the cache are refused.

    A lock that was a link used to empty the file that it pointed to.
    """
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    folder = open_folder()
    (folder / "kernels-key.lock").symlink_to(precious)
    with (
        pytest.raises(OSError, match="symbolic links"),
        locked(folder, "key", seconds=1.0),
    ):
        pass
    assert precious.read_text() == "keep me"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match="must not be a link"):
        check_trusted(tmp_path / "link")


def test_a_relative_cache_is_ignored(tmp_path, monkeypatch):
    """A relative cache is ignored.

    `XDG_CACHE_HOME=.` used to load libraries from the folder of the process.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", ".")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert open_folder() == tmp_path / "home" / ".cache" / "isometry"


def test_a_cache_that_cannot_be_written(cache):
    """If the cache cannot be a folder, there are no kernels, and nothing crashes."""
    cache.write_text("not a folder")
    with pytest.raises(BuildError, match=r"cannot be written.*Set XDG_CACHE_HOME"):
        build()


def test_without_a_home(monkeypatch):
    """Without a home folder there are no kernels, but no crash.

    A user in a container may have no home.
    """

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(BuildError, match=r"no home folder. Set XDG_CACHE_HOME"):
        build()


def test_old_libraries_and_killed_builds_are_removed():
    """Old libraries and killed builds are removed.

    They used to stay: each change of the sources left 100 kB.
    """
    folder, day = open_folder(), 86400
    used = put(b"used", "used")
    ages = {put(b"old", "old"): 91, used: 89}
    for name, days in (("build-old", 2), ("build-new", 0), ("data", 1000)):
        path = folder / name
        path.mkdir()
        (path / "kernels.so").touch()
        ages[path] = days
    for path, days in ages.items():
        then = time.time() - days * day
        os.utime(path, (then, then))
    tidy(folder)
    assert {p.name for p in folder.iterdir()} == {used.name, "build-new", "data"}


def test_a_library_that_is_used_stays_young():
    """Using a library renews its time stamp."""
    library = put()
    then = time.time() - 80 * 86400
    os.utime(library, (then, then))
    find(open_folder(), "key")
    assert time.time() - library.stat().st_mtime < 3600
