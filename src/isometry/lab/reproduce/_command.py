"""`isometry reproduce figure1-left|figure1-right|mnist|pmnist|timit|all`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from isometry.lab.reproduce._carry_out import (
    DONE,
    carry_out,
    launch,
    next_command,
    status_of,
)
from isometry.lab.reproduce._plan import PROTOCOLS, PlannedRun, plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command.

    Args:
        parser: that of `isometry reproduce`.
    """
    parser.add_argument("what", choices=[*PROTOCOLS, "all"], help="figure or table")
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help="networks (default: the paper's)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="HOURS",
        help="stop after so many hours; the same command goes on from there",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the runs and the report (default: under the user's data "
        "directory)",
    )
    parser.add_argument(
        "--timit", type=Path, metavar="DIR", help="folder of the TIMIT corpus"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands and run none"
    )


def main(options: argparse.Namespace) -> int:
    """Train what is missing, then report.

    Args:
        options: of the command line.

    Returns:
        The exit code: 1 if a run failed, 2 if the plan makes no sense, 130 if it was
        interrupted.
    """
    out = options.out or _default_folder()
    try:
        runs = _planned(options)
        commands = _commands(runs, out, options.timit)
    except ValueError as error:
        sys.stderr.write(f"isometry reproduce: {error}\n")
        return 2
    if options.dry_run:
        lines = [shlex.join(["isometry", *words]) for _, words in commands]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return 0
    try:
        failed = carry_out(commands, hours=options.budget, launch=launch)
    except KeyboardInterrupt:
        sys.stderr.write("isometry reproduce: interrupted; the same command goes on.\n")
        return 130
    _report([out / run.name for run in runs], out / "report" / options.what)
    for folder in failed:
        sys.stderr.write(
            f"isometry reproduce: {folder} failed; its message is above. The same "
            f"command tries again.\n"
        )
    return 1 if failed else 0


def _planned(options: argparse.Namespace) -> list[PlannedRun]:
    """The plan; of `all`, speech is left out where there is none."""
    if options.budget is not None and not options.budget > 0:
        raise ValueError(
            f"`--budget` must be a positive number of hours; got {options.budget}. "
            f"Leave it out to run to the end."
        )
    runs = plan(options.what, options.models)
    if options.timit is not None:
        return runs
    if options.what == "timit":
        raise ValueError(
            "`--timit` must name the folder of the TIMIT corpus; got none. The corpus "
            "is sold by the LDC as LDC93S1."
        )
    rest = [run for run in runs if run.experiment != "timit"]
    if len(rest) < len(runs):
        sys.stderr.write(
            "isometry reproduce: leaving out timit; give its folder by `--timit`.\n"
        )
    return rest


def _commands(
    runs: Sequence[PlannedRun], out: Path, timit: Path | None
) -> list[tuple[Path, list[str]]]:
    found = []
    for run in runs:
        more = ("--root", f"{timit}") if run.experiment == "timit" else ()
        words = next_command(run, out / run.name, *more)
        if words is not None:
            found.append((out / run.name, words))
    return found


def _report(folders: Sequence[Path], out: Path) -> None:
    """Report what there is, and say how much that is."""
    from isometry.lab.report import write

    begun = [folder for folder in folders if status_of(folder) != "missing"]
    done = [folder for folder in begun if status_of(folder) in DONE]
    sys.stderr.write(f"{len(done)} of {len(folders)} runs are done.\n")
    if begun:
        sys.stdout.write(f"{write(begun, out)}\n")


def _default_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("isometry") / "reproduce"
