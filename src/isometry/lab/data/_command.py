"""`isometry data get NAME`."""

import argparse
import sys
from pathlib import Path

from isometry.lab.data._catalogue import CATALOGUE
from isometry.lab.train._options import as_typed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command, with one command below it.

    Args:
        parser: that of `isometry data`.
    """
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    get = actions.add_parser("get", help="print the folder of a dataset; fetch it")
    get.add_argument("name", choices=sorted(CATALOGUE), help="the dataset")
    get.add_argument(
        "--folder", type=Path, help="look here first; the files may be compressed"
    )


def main(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: what the parser found.

    Returns:
        The exit code: 0, or 2 after a message on standard error.
    """
    from isometry.lab.data._get import get

    try:
        folder = get(args.name, args.folder)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"isometry: {as_typed(str(error), ['folder'])}\n")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0
