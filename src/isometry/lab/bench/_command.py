"""`isometry bench [kernel|layer|recurrent|optimizers ...]`."""

import argparse
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isometry.lab.bench._names import PEERS, SUITES, installed

if TYPE_CHECKING:
    import torch

RECORD, TABLE = "record.json", "table.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command.

    Args:
        parser: that of `isometry bench`.
    """
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help=f"{', '.join(SUITES)} (default: all, about two minutes)",
    )
    parser.add_argument(
        "--sizes", nargs="+", type=int, metavar="N", help="of the n x n matrices"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, help="of torch (default: its own)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="samples of each (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of table, figure and record, which must not exist (default: a new "
        "one under the user's data directory)",
    )


def main(options: argparse.Namespace) -> int:
    """Measure, print the tables and the folder, and write both into it.

    Args:
        options: of the command line.

    Returns:
        The exit code: 2 if the options make no sense, 130 if it was interrupted.
    """
    try:
        _check(options)
        record = _measured(options)
        out = _write(record, options.out or _default_folder())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"isometry bench: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nisometry bench: interrupted; nothing was written.\n")
        return 130
    from isometry.lab.bench._table import tables

    sys.stdout.write(f"{tables(record)}\n\n{out}\n")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raise before minutes are spent."""
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        raise ValueError(
            f"a suite must be one of {', '.join(SUITES)}; got {unknown[0]}. Name none "
            f"for all."
        )
    least = {"--sizes": 2, "--threads": 1, "--rounds": 1}
    given = {"--sizes": min(options.sizes or [2])}
    given |= {"--threads": options.threads or 1, "--rounds": options.rounds}
    for name, value in given.items():
        if value < least[name]:
            raise ValueError(
                f"`{name}` must be at least {least[name]}; got {value}. Leave it out "
                f"for the usual one."
            )
    if options.out is not None and options.out.exists():
        raise ValueError(
            f"`--out` must not exist, as nothing is overwritten; got {options.out}. "
            f"Choose another folder."
        )
    if find_spec("matplotlib") is None:
        raise ValueError(
            "matplotlib must be installed to draw; got none. "
            'Run: pip install "isometry[lab]"'
        )


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """What `record.json` holds."""
    from isometry.lab.bench._measure import measure, sizes_of
    from isometry.lab.bench._progress import Steps
    from isometry.lab.bench._table import left_out

    device = _device(options)
    missing = [peer for peer in PEERS if not installed(peer)]
    for peer in missing:
        sys.stderr.write(f"{left_out(peer)}\n")
    names = list(dict.fromkeys(options.suites)) or SUITES
    sizes = {name: sizes_of(name, options.sizes) for name in names}
    say = Steps(sum(map(len, sizes.values())))
    return {
        "environment": _environment(),
        "device": _device_name(device),
        "rounds": options.rounds,
        "missing": missing,
        "suites": [
            measure(name, sizes[name], device=device, rounds=options.rounds, say=say)
            for name in names
        ],
    }


def _device(options: argparse.Namespace) -> "torch.device":
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "`--device` must be one that torch can use; got cuda, and torch finds no "
            "card. Leave it out for cpu."
        )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return torch.device(options.device)


def _device_name(device: "torch.device") -> str:
    import torch

    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


def _environment() -> dict[str, Any]:
    """That of a run, with the versions of the peers."""
    from importlib.metadata import version

    from isometry.lab.train._environment import environment

    found = environment(ranks=1)
    peers = {peer: version(peer) for peer in PEERS if installed(peer)}
    return found | {"versions": found["versions"] | peers}


def _write(record: dict[str, Any], out: Path) -> Path:
    """The folder, which is there with all its files or not."""
    from isometry.lab.bench._figure import draw
    from isometry.lab.bench._table import page
    from isometry.lab.train._folder import as_json, create

    files = {RECORD: as_json(record), TABLE: page(record).encode()} | draw(record)
    create(out, files)
    return out


def _default_folder() -> Path:
    from platformdirs import user_data_path

    now = datetime.now().astimezone()
    return user_data_path("isometry") / "bench" / f"{now:%Y-%m-%d-%H%M%S}"
