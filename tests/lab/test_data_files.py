"""Data files that are cut, too long, compressed, or not what they should be."""

import errno
import gzip
import os

import pytest

from isometry.lab._data.catalogue import (
    CATALOGUE,
    DamagedFileError,
    File,
    find,
    read,
    verified,
)
from isometry.lab._files import write_atomically
from tests.lab.small_data import dataset

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def file() -> File:
    return dataset({"numbers": CONTENT}).files[0]


def test_read_takes_both_forms(file, tmp_path):
    (tmp_path / "numbers.gz").write_bytes(gzip.compress(CONTENT))
    path = find(file, tmp_path)
    assert path is not None
    assert path.suffix == ".gz"
    assert read(file, path) == CONTENT
    write_atomically(tmp_path / "numbers", CONTENT)
    assert find(file, tmp_path) == tmp_path / "numbers"
    assert read(file, tmp_path / "numbers") == CONTENT


BAD = {
    "empty": b"",
    "cut": CONTENT[:-1],
    "longer": CONTENT + b"\0",
    "other": b"\1" + CONTENT[1:],
}


@pytest.mark.errors
@pytest.mark.parametrize("form", ["numbers", "numbers.gz"])
@pytest.mark.parametrize("kind", BAD)
def test_read_refuses_other_content(kind, form, file, tmp_path):
    """A file with another size or another hash is refused."""
    content = BAD[kind]
    path = tmp_path / form
    path.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    what = "SHA-256" if kind == "other" else "10240 bytes; got"
    with pytest.raises(DamagedFileError, match=f"must h.* {what}.*fetch it again"):
        read(file, path)


@pytest.mark.errors
@pytest.mark.parametrize("kind", ["cut", "flipped", "plain"])
def test_read_refuses_a_broken_gzip_file(kind, file, tmp_path):
    packed = gzip.compress(CONTENT)
    middle = len(packed) // 2
    broken = {
        "cut": packed[:-9],
        "flipped": packed[:middle]
        + bytes((packed[middle] ^ 255,))
        + packed[middle + 1 :],
        "plain": CONTENT,
    }
    path = tmp_path / "numbers.gz"
    path.write_bytes(broken[kind])
    with pytest.raises(DamagedFileError, match="must"):
        read(file, path)


@pytest.mark.errors
def test_read_stops_where_a_bomb_begins(file, tmp_path, monkeypatch):
    """10 kB that would expand to 10 MB are expanded only up to the expected size."""
    path = tmp_path / "numbers.gz"
    path.write_bytes(gzip.compress(bytes(10**7)))
    asked: list[int] = []
    original = gzip.GzipFile.read

    def recording(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        asked.append(-1 if size is None else size)
        return original(self, size)

    monkeypatch.setattr(gzip.GzipFile, "read", recording)
    with pytest.raises(DamagedFileError, match="10240 bytes; got more"):
        read(file, path)
    assert asked == [10241]


@pytest.mark.errors
def test_read_stops_among_empty_members(file, tmp_path):
    """A gzip file of 2 MB that expands to nothing is not read to its end.

    It used to be, although a stream from a mirror need not have an end.
    """
    path = tmp_path / "numbers.gz"
    path.write_bytes(gzip.compress(b"") * 10**5)
    with path.open("rb") as stream:
        with pytest.raises(DamagedFileError, match="must be a whole file"):
            verified(file, stream, str(path))
        assert stream.tell() < 2 * len(CONTENT)


@pytest.mark.errors
def test_write_leaves_nothing_on_a_full_disk(tmp_path, monkeypatch):
    """On a full disk the old content stays, and no part of the new one is left."""
    write_atomically(tmp_path / "numbers", b"old")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "numbers", CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["numbers"]
    assert (tmp_path / "numbers").read_bytes() == b"old"


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue_has_the_sizes_of_mnist(name):
    """60,000 and 10,000 images of 784 bytes, after headers of 16 and 8."""
    sizes = {file.name: file.size for file in CATALOGUE[name].files}
    assert sorted(sizes.values()) == [10008, 60008, 7840016, 47040016]
    assert len({file.sha256 for file in CATALOGUE[name].files}) == 4
