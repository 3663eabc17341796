"""The command `isometry bench [exponential|layer|recurrent|optimizers ...]`."""

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from isometry.lab._errors import RunError
from isometry.lab._files import as_json, create, data_folder
from isometry.lab._options import suggestion
from isometry.lab.bench import PEERS, SUITE_NAMES, installed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `isometry bench` to its parser."""
    add = parser.add_argument
    suites = f"{', '.join(SUITE_NAMES)} (default: all, about two minutes)"
    add("suites", nargs="*", metavar="SUITE", help=suites)
    sizes = "sizes n of the n x n matrices"
    add("--sizes", nargs="+", type=int, metavar="N", help=sizes)
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--threads", type=int, help="number of torch threads (default: torch decides)")
    rounds = "samples per contender (default: %(default)s)"
    add("--rounds", type=int, default=5, help=rounds)
    out = (
        "folder for table, figure and record; it must not exist (default: a new folder "
        "in the user's data directory)"
    )
    add("--out", type=Path, metavar="DIR", help=out)


def main(options: argparse.Namespace) -> int:
    """Measure, print the tables, write the results to a folder, and print its path.

    Args:
        options: options of the command line.

    Returns:
        The exit code: 0; 2 if an option is invalid, matplotlib is missing, or the
        results cannot be written; 130 if the user interrupts the command.
    """
    from isometry.lab.bench.report import draw, page, summary

    try:
        _check(options)
        record = _make_record(options)
        # print before writing, so that the tables are not lost if the disk is full
        sys.stdout.write(f"{summary(record)}\n\n")
        name = f"{datetime.now().astimezone():%Y-%m-%d-%H%M%S}"
        out = options.out or data_folder() / "bench" / name
        files = {"record.json": as_json(record), "table.md": page(record).encode()}
        create(out, files | draw(record))
    except (OSError, RunError, ValueError) as error:
        sys.stderr.write(f"isometry bench: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nisometry bench: interrupted; nothing was written.\n")
        return 130
    sys.stdout.write(f"{out}\n")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raise for invalid options or missing matplotlib, before minutes of measuring."""
    if unknown := [name for name in options.suites if name not in SUITE_NAMES]:
        raise ValueError(
            f"a suite must be one of {', '.join(SUITE_NAMES)}; got {unknown[0]}."
            f"{suggestion(unknown[0], SUITE_NAMES)} To run all suites, give no name."
        )
    for name, least in (("sizes", 2), ("threads", 1), ("rounds", 1)):
        option = getattr(options, name)
        value = min(option) if isinstance(option, list) else option
        if value is not None and value < least:
            raise ValueError(
                f"`--{name}` must be at least {least}; got {value}. Leave it out for "
                f"the default."
            )
    if options.out is not None and options.out.exists():
        raise ValueError(
            f"`--out` must not exist, as nothing is overwritten; got {options.out}. "
            f"Choose another folder."
        )
    if not installed("matplotlib"):
        raise ValueError(
            "matplotlib must be installed to draw the figure; it is not. "
            "Run: pip install matplotlib"
        )


def _make_record(options: argparse.Namespace) -> dict[str, Any]:
    """Run the measurements, and return the content of `record.json`."""
    from isometry.lab.bench.report import left_out
    from isometry.lab.bench.suites import SUITES
    from isometry.lab.bench.timing import device_of, measure, surroundings

    device = device_of(options.device, options.threads)
    missing = [peer for peer in PEERS if not installed(peer)]
    for peer in missing:
        sys.stderr.write(f"{left_out(peer)}\n")
    suites = {name: SUITES[name] for name in options.suites or SUITE_NAMES}
    sizes = options.sizes or ()
    return {
        "environment": surroundings(device),
        "rounds": options.rounds,
        "missing": missing,
        "suites": measure(suites, sizes, device, options.rounds),
    }
