"""`isometry reproduce figure1-left|figure1-right|mnist|pmnist|timit|all|recorded`."""

import argparse
import shlex
import sys
from pathlib import Path

from isometry.lab._options import as_typed
from isometry.lab._sweep.engine import Engine, sweep
from isometry.lab._sweep.plan import SweepRun
from isometry.lab._train import command as train
from isometry.lab._train.folder import RunError
from isometry.lab.paper.protocol import PLANS, PlannedRun, plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command.

    Args:
        parser: parser of `isometry reproduce`.
    """
    parser.add_argument(
        "what",
        choices=PLANS,
        help="a figure or table of the paper at full length, or the shorter runs that "
        "are recorded in docs/reproduction.md",
    )
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help="networks (default: all)"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at a time (1)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="HOURS",
        help="stop after so many hours; the same command resumes every run",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the runs and the report (default: under the user's data "
        "directory)",
    )
    parser.add_argument(
        "--timit",
        type=Path,
        metavar="DIR",
        help="folder of the TIMIT corpus; for `recorded`, of its free sample",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands and run none"
    )


def main(options: argparse.Namespace) -> int:
    """Train what is missing, then report.

    Args:
        options: options of the command line.

    Returns:
        The exit code: 1 if a run failed or diverged, 2 for an invalid plan, 130 after
        an interruption.
    """
    out = options.out or _default_folder()
    try:
        engine = Engine(jobs=options.jobs, hours=options.budget)
        runs = _planned(options)
        cells = [cell_of(run, *_places(run, options.timit)) for run in runs]
        if options.dry_run:
            for cell in cells:
                folder = shlex.quote(f"{out / cell.name}")
                sys.stdout.write(f"{cell.config.command} --out {folder}\n")
            return 0
        bad = sweep(cells, out, engine)
    except (RunError, ValueError, TypeError, OSError) as error:
        message = as_typed(str(error), ["models"])
        sys.stderr.write(f"isometry reproduce: {message}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(
            "isometry reproduce: interrupted. The same command resumes every run.\n"
        )
        return 130
    for name, message in bad.items():
        sys.stderr.write(f"isometry reproduce: {name}: {message}\n")
    return 1 if bad else 0


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
    """The plan; where there is no speech, `all` and `recorded` leave it out."""
    runs = plan(options.what, options.models)
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


def _is_speech(run: PlannedRun) -> bool:
    return run.words[0] == "timit"


def _places(run: PlannedRun, timit: Path | None) -> tuple[str, ...]:
    return ("--root", f"{timit}") if _is_speech(run) else ()


def _default_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("isometry") / "reproduce"
