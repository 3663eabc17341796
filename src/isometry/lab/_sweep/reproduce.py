"""`isometry reproduce WHAT`: the runs of a figure, a table or another fixed plan."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isometry.lab._options import suggestion
from isometry.lab._sweep.command import perform
from isometry.lab._sweep.engine import Engine
from isometry.lab._sweep.plan import SweepRun
from isometry.lab._train import command as train
from isometry.lab.paper.protocol import PLANS, PlannedRun, plan

_OPTIONS: dict[str, dict[str, Any]] = {
    "--models": {"nargs": "+", "metavar": "MODEL", "help": "networks (default: all)"},
    "--runs": {
        "nargs": "+",
        "metavar": "NAME",
        "help": "these runs alone, in this order; a run has the name of its folder, "
        "which `--dry-run` shows",
    },
    "--skip": {
        "nargs": "+",
        "metavar": "NAME",
        "default": (),
        "help": "all runs but these",
    },
    "--jobs": {"type": int, "default": 1, "metavar": "N", "help": "runs at a time (1)"},
    "--budget": {
        "type": float,
        "metavar": "HOURS",
        "help": "stop after so many hours; the same command resumes every run",
    },
    "--out": {
        "type": Path,
        "metavar": "DIR",
        "help": "folder of the runs and the report (default: under the user's data "
        "directory)",
    },
    "--timit": {
        "type": Path,
        "metavar": "DIR",
        "help": "folder of the TIMIT corpus; for `recorded`, of its free sample",
    },
    "--dry-run": {"action": "store_true", "help": "print the commands and run none"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `isometry reproduce` to its parser."""
    parser.add_argument(
        "what",
        choices=PLANS,
        help="a figure or table of the paper at full length; the shorter runs that are "
        "recorded in docs/reproduction.md; or a search beyond the paper",
    )
    for option, how in _OPTIONS.items():
        parser.add_argument(option, **how)


def main(options: argparse.Namespace) -> int:
    """Train what is missing, then report.

    Args:
        options: options of the command line.

    Returns:
        The exit code: 1 if a run failed or diverged, 2 for an invalid plan, 130 after
        an interruption.
    """
    out = options.out or _default_folder()

    def plan() -> tuple[list[SweepRun], Path, Engine]:
        engine = Engine(jobs=options.jobs, hours=options.budget)
        runs = _planned(options)
        cells = [cell_of(run, *_places(run, options.timit)) for run in runs]
        return cells, out, engine

    again = "The same command resumes every run."
    dry_run, typed = options.dry_run, ("models", "runs", "skip")
    return perform("reproduce", plan, again, dry_run=dry_run, typed=typed)


def cell_of(run: PlannedRun, *more: str) -> SweepRun:
    """A planned run as a cell of a sweep.

    Args:
        run: the planned run.
        *more: options that depend on the machine, such as where data is.

    Returns:
        Its name and its config.
    """
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    given = vars(parser.parse_args(run.command(*more)[1:]))
    del given["resume"]
    return SweepRun(run.name, train.read(given)[0])


def _planned(options: argparse.Namespace) -> list[PlannedRun]:
    """The runs of a plan that are wanted, in the order in which they are made."""
    runs = _chosen(plan(options.what, options.models), options.runs, options.skip)
    if options.timit is not None:
        return runs
    if options.what == "timit":
        raise ValueError(
            "`--timit` must name the folder of the TIMIT corpus; got none. The corpus "
            "is sold by the LDC as LDC93S1."
        )
    rest = [run for run in runs if not _is_speech(run)]
    if len(rest) < len(runs):
        sys.stderr.write(
            "isometry reproduce: leaving out timit; give its folder by `--timit`.\n"
        )
    return rest


def _chosen(
    runs: Sequence[PlannedRun], only: Sequence[str] | None, skip: Sequence[str]
) -> list[PlannedRun]:
    """Some runs of a plan: those that are named, in their order, and none to skip."""
    named = {run.name: run for run in runs}
    for option, names in (("runs", only or ()), ("skip", skip)):
        if unknown := [name for name in names if name not in named]:
            raise ValueError(
                f"`{option}` must name runs of the plan; got {', '.join(unknown)}."
                f"{suggestion(unknown[0], named)} `--dry-run` shows their folders."
            )
    return [named[name] for name in (only or named) if name not in skip]


def _is_speech(run: PlannedRun) -> bool:
    return run.words[0] == "timit"


def _places(run: PlannedRun, timit: Path | None) -> tuple[str, ...]:
    return ("--root", f"{timit}") if _is_speech(run) else ()


def _default_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("isometry") / "reproduce"
