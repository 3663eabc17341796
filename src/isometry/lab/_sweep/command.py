"""The command `isometry sweep`: `isometry train` with several values per option."""

import argparse
import functools
import shlex
import sys
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from isometry.lab._files import RunError
from isometry.lab._options import add_fields, as_typed, make, option_of
from isometry.lab._sweep.engine import Engine, sweep
from isometry.lab._sweep.plan import (
    SweepRun,
    check_trust,
    expand,
    read_plan,
    with_known_names,
)
from isometry.lab._train.command import add_tasks, add_trust, read_file

# plural names of options that often have several values; the singular works as well
PLURALS = {"models": "model", "hidden_sizes": "hidden_size", "seeds": "seed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `isometry sweep` to its parser."""
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="resume the sweep in this folder"
    )
    add_trust(parser)
    add_tasks(parser, _add_own, several=True)


def main(options: argparse.Namespace) -> int:
    """Train the unfinished runs of a sweep and print the tables, or list the commands.

    Args:
        options: options of the command line.

    Returns:
        The exit code: 0; 1 if a run failed, diverged or ran out of time; 2 if an option
        is invalid, or a file or the engine cannot be used; 130 after an interruption.
    """
    values = {k: v for k, v in vars(options).items() if k != "command"}
    resume, trust = values.pop("resume", None), values.pop("trust", False)
    out, dry_run = resume or values.pop("out", None), values.pop("dry_run", False)
    typed = values.keys() - {"task"}
    engine = {k: values.pop(k) for k in [f.name for f in fields(Engine)] if k in values}

    def prepare() -> tuple[list[SweepRun], Path, Engine]:
        machine = make(Engine, engine)
        if out is None:
            raise ValueError(
                "`--out` must name the folder of the sweep; got none. To resume a "
                "sweep, repeat its command."
            )
        runs = _planned(values, out, resume=resume is not None, trust=trust)
        return (with_known_names(out, runs) if dry_run else runs), out, machine

    own = trust or any(":" in str(values.get(key)) for key in ("task", "model"))
    again = f"Resume with: isometry sweep --resume {out}{' --trust' if own else ''}"
    return perform("sweep", prepare, again, dry_run=dry_run, typed=typed)


def perform(
    command: str,
    prepare: Callable[[], tuple[list[SweepRun], Path, Engine]],
    again: str,
    *,
    dry_run: bool,
    typed: Collection[str],
) -> int:
    """Train the runs of a plan, or print their commands. Errors go to stderr.

    Args:
        command: name of the command, for messages.
        prepare: returns the runs, their folder and the engine. If it raises a
            `RunError`, `ValueError`, `TypeError` or `OSError`, the message is printed.
        again: a sentence that tells the user how to resume after an interruption.
        dry_run: whether to print the commands without running them.
        typed: names of the options on the command line. Error messages spell these as
            `--hidden-size`, not `hidden_size`.

    Returns:
        The exit code.
    """
    try:
        runs, out, engine = prepare()
        if dry_run:
            for run in runs:
                folder = shlex.quote(f"{out / run.name}")
                sys.stdout.write(f"{run.config.command} --out {folder}\n")
            return 0
        bad = sweep(runs, out, engine)
    except BrokenPipeError:
        raise
    except (RunError, ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"isometry {command}: {as_typed(str(error), typed)}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"isometry {command}: interrupted. {again}\n")
        return 130
    for name, message in bad.items():
        sys.stderr.write(f"isometry {command}: {name}: {message}\n")
    return 1 if bad else 0


def _planned(
    values: dict[str, Any], out: Path, *, resume: bool, trust: bool
) -> list[SweepRun]:
    """The runs that the options ask for. The command line overrides the TOML file."""
    if resume:
        names = [name for name, value in values.items() if value is not None]
        if names:
            words = [values[n] if n == "task" else option_of(n) for n in names]
            raise ValueError(
                f"`--resume` cannot be combined with options of the runs; got "
                f"{', '.join(words)}. To add runs, give `--out {out}` instead."
            )
        runs = read_plan(out)
        check_trust(runs, trust=trust)
        return runs
    file = values.pop("config", None)
    from_file = {} if file is None else read_file(file)
    from_file = {PLURALS.get(name, name): value for name, value in from_file.items()}
    task = values.pop("task", None) or from_file.get("task")
    return expand(task, {k: v for k, v in from_file.items() if k != "task"} | values)


def _add_own(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sweep itself, which may precede or follow the task."""
    group = parser.add_argument_group("options of the sweep")
    add = functools.partial(group.add_argument, default=argparse.SUPPRESS)
    add("--out", type=Path, metavar="DIR", help="folder for all runs of the sweep")
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with options, spelled with underscores, and with lists for "
        "several values; options on the command line take precedence",
    )
    add(
        "--dry-run", action="store_true", help="print the commands without running them"
    )
    for plural, field in PLURALS.items():
        add(
            option_of(plural),
            dest=field,
            nargs="+",
            type=str if field == "model" else int,
            metavar=field.upper(),
            help=f"the same as {option_of(field)}",
        )
    add_fields(parser, Engine, "engine and limits")
