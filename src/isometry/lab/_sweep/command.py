"""`isometry sweep`: options of `isometry train`, each with one value or several."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from isometry.lab._options import add_fields, add_hidden, as_typed, option_of
from isometry.lab._sweep.engine import Engine, sweep
from isometry.lab._sweep.plan import SweepRun, expand, fit, load
from isometry.lab._train.command import read_file, words_of
from isometry.lab._train.config import Training
from isometry.lab._train.folder import RunError

# as one speaks of them; the singular serves, too
PLURALS = {"models": "model", "hidden_sizes": "hidden_size", "seeds": "seed"}

_OWN: dict[str, dict[str, Any]] = {
    "--out": {"type": Path, "metavar": "DIR", "help": "folder of all its runs"},
    "--config": {
        "type": Path,
        "metavar": "FILE",
        "help": "options as a TOML file, with underscores, lists for several values; "
        "those of the line win",
    },
    "--jobs": {
        "type": int,
        "metavar": "N",
        "help": "runs at a time (as many as there are cores for)",
    },
    "--budget": {
        "type": float,
        "metavar": "HOURS",
        "help": "stop after so many hours; the same command resumes every run",
    },
    "--engine": {
        "choices": ["local", "ray"],
        "help": "processes of this machine, or tasks of Ray (local)",
    },
    "--address": {
        "metavar": "HOST:PORT",
        "help": "of a Ray cluster (that of RAY_ADDRESS, else this machine)",
    },
    "--dry-run": {"action": "store_true", "help": "print the commands and run none"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command, with one command below it for each task.

    Args:
        parser: parser of `isometry sweep`.
    """
    from isometry.lab.tasks import TASKS

    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with the sweep in a folder"
    )
    _add_own(parser)
    add_hidden(parser, [*TASKS.values(), Training], several=True)
    _add_plurals(parser, hidden=True)
    tasks = parser.add_subparsers(dest="task", metavar="TASK")
    for name, task in TASKS.items():
        first = (task.__doc__ or "").splitlines()[0]
        several = f"{first} Each option takes one value or several."
        made = tasks.add_parser(name, help=first, description=several)
        _add_own(made)
        _add_plurals(made)
        add_fields(made, task, f"options of {name}", several=True)
        add_fields(made, Training, "options of training", several=True)


def _add_plurals(parser: argparse.ArgumentParser, *, hidden: bool = False) -> None:
    for plural, field in PLURALS.items():
        parser.add_argument(
            option_of(plural),
            dest=field,
            nargs="+",
            type=str if field == "model" else int,
            default=argparse.SUPPRESS,
            metavar=field.upper(),
            help=argparse.SUPPRESS if hidden else f"the same as {option_of(field)}",
        )


def main(options: argparse.Namespace) -> int:
    """Make the runs that are missing, then print the table of all.

    Args:
        options: options of the command line.

    Returns:
        The exit code: 1 if a run failed or diverged, 2 if the plan makes no sense, 130
        if it was interrupted.
    """
    given = {k: v for k, v in vars(options).items() if k != "command"}
    names = ("resume", "out", "jobs", "budget", "dry_run")
    own = {k: given.pop(k, None) for k in names}
    typed = given.keys() - {"task"}
    out: Path | None = own["resume"] or own["out"]
    try:
        engine = Engine(
            given.pop("engine", "local"),
            given.pop("address", None),
            own["jobs"],
            own["budget"],
        )
        if out is None:
            raise ValueError(  # noqa: TRY301 - told as the others are
                "`--out` must name the folder of the sweep; got none. The same command "
                "goes on with it."
            )
        cells = _planned(given, out, resume=own["resume"] is not None)
        if own["dry_run"]:
            for cell in fit(out, cells):
                folder = shlex.quote(f"{out / cell.name}")
                sys.stdout.write(f"{cell.config.command} --out {folder}\n")
            return 0
        bad = sweep(cells, out, engine)
    except (RunError, ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"isometry sweep: {as_typed(str(error), typed)}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(
            f"isometry sweep: interrupted. Go on with: isometry sweep --resume {out}\n"
        )
        return 130
    for name, message in bad.items():
        sys.stderr.write(f"isometry sweep: {name}: {message}\n")
    return 1 if bad else 0


def _planned(given: dict[str, Any], out: Path, *, resume: bool) -> list[SweepRun]:
    """The runs that options stand for; the line wins over the file."""
    if resume:
        if unwanted := words_of(given):
            raise ValueError(
                f"`--resume` must stand without options of the runs; got "
                f"{', '.join(unwanted)}. Add runs by `--out {out}` instead."
            )
        return load(out)
    file = given.pop("config", None)
    from_file = {} if file is None else read_file(file)
    from_file = {PLURALS.get(name, name): value for name, value in from_file.items()}
    task = given.pop("task", None) or from_file.get("task")
    values = {k: v for k, v in from_file.items() if k != "task"} | given
    return expand(task, values)


def _add_own(parser: argparse.ArgumentParser) -> None:
    """Options of the sweep itself, before and after the task."""
    group = parser.add_argument_group("options of the sweep")
    for option, how in _OWN.items():
        group.add_argument(option, default=argparse.SUPPRESS, **how)
