"""The command `isometry reproduce WHAT`, which trains the runs of a fixed plan."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isometry.lab._files import data_folder
from isometry.lab._options import add_fields, suggestion
from isometry.lab._sweep.command import DRY_RUN, perform
from isometry.lab._sweep.engine import Engine
from isometry.lab._sweep.plan import Plan
from isometry.lab._train import command as train
from isometry.lab._train.config import Config
from isometry.lab.paper.protocol import PLANS, PlannedRun, plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `isometry reproduce` to its parser."""
    add = parser.add_argument
    text = (
        "a figure or table of the paper at full length; the shorter runs that are "
        "recorded in docs/reproduction.md; or a search beyond the paper"
    )
    add("what", choices=PLANS, help=text)
    add("--models", nargs="+", metavar="MODEL", help="networks (default: all)")
    text = "only these runs, in this order; `--dry-run` shows the names of all runs"
    add("--runs", nargs="+", metavar="NAME", help=text)
    add("--skip", nargs="+", metavar="NAME", default=(), help="all runs except these")
    usual = data_folder() / "reproduce"
    text = "folder of runs and report (%(default)s)"
    add("--out", type=Path, metavar="DIR", default=usual, help=text)
    text = "folder of the TIMIT corpus; for `recorded`, of its free sample"
    add("--timit", type=Path, metavar="DIR", help=text)
    add("--dry-run", action="store_true", help=DRY_RUN)
    add_fields(parser, Engine, "limits", only=("jobs", "budget"))
    # by default one run at a time, so that the measured times are comparable
    parser.set_defaults(jobs=1)


def main(options: argparse.Namespace) -> int:
    """Train the unfinished runs of a plan, and write a report about all results.

    With `--dry-run`, print the command line of each run instead, and train nothing.

    Args:
        options: options of the command line.

    Returns:
        The exit code: 0; 1 if a run failed, diverged or ran out of time; 2 if an option
        is invalid or a file cannot be used; 130 after an interruption.
    """
    again = "The same command resumes every run."
    return perform("reproduce", vars(options), _planned, lambda _: again)


def config_of(run: PlannedRun, timit: Path | None = None) -> Config:
    """The config of a planned run.

    Args:
        run: the planned run.
        timit: folder of the recordings; only runs on TIMIT need it.

    Returns:
        The config.
    """
    options = run.all_options() | ({"root": f"{timit}"} if _is_speech(run) else {})
    return train.read(options)[0]


def _planned(values: Mapping[str, Any]) -> Plan:
    """The chosen runs of a plan, in the order in which they are trained.

    Without `--timit`, the runs on TIMIT are left out. The plan "timit" requires the
    option.
    """
    what, timit = values["what"], values["timit"]
    runs = _chosen(plan(what, values["models"]), values["runs"], values["skip"])
    if timit is None and what == "timit":
        raise ValueError(
            "`--timit` must name the folder of the TIMIT corpus; got none. The corpus "
            "is sold by the LDC as LDC93S1."
        )
    if timit is None and any(map(_is_speech, runs)):
        sys.stderr.write(
            "isometry reproduce: leaving out the runs on TIMIT; pass its folder with "
            "`--timit`.\n"
        )
        runs = [run for run in runs if not _is_speech(run)]
    return {run.name: config_of(run, timit) for run in runs}


def _chosen(
    runs: Sequence[PlannedRun], only: Sequence[str] | None, skip: Sequence[str]
) -> list[PlannedRun]:
    """The runs named in `only`, in that order, without the runs named in `skip`.

    If `only` is None, it stands for all runs.
    """
    by_name = {run.name: run for run in runs}
    for option, names in (("runs", only or ()), ("skip", skip)):
        if unknown := [name for name in names if name not in by_name]:
            raise ValueError(
                f"`{option}` must name runs of the plan; got {', '.join(unknown)}."
                f"{suggestion(unknown[0], by_name)} `--dry-run` lists them."
            )
    return [by_name[name] for name in (only or by_name) if name not in skip]


def _is_speech(run: PlannedRun) -> bool:
    return run.options["task"] == "timit"
