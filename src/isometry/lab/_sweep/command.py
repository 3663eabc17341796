"""The command `isometry sweep`: `isometry train` with several values per option."""

import argparse
import functools
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from isometry.lab._errors import RunError, needs_traceback
from isometry.lab._options import add_fields, as_typed, make, option_of
from isometry.lab._sweep import plan
from isometry.lab._sweep.engine import Engine, sweep
from isometry.lab._train.command import add_tasks, read_file

# plural names of options that often have several values; the singular works as well
PLURALS = {"models": "model", "hidden_sizes": "hidden_size", "seeds": "seed"}

# help of the option `--dry-run`
DRY_RUN = "print the commands without running them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `isometry sweep` to its parser."""
    text = "resume the sweep in this folder"
    add_tasks(parser, _add_own, resume=text, several=True)


def main(options: argparse.Namespace) -> int:
    """Train the unfinished runs of a sweep, and print tables of all results.

    With `--dry-run`, print the command line of each run instead, and train nothing.

    Args:
        options: options of the command line.

    Returns:
        The exit code: 0; 1 if a run failed, diverged or ran out of time; 2 if an option
        is invalid, or a file or the engine cannot be used; 130 after an interruption.
    """
    values = vars(options)
    resume, trust = values.pop("resume", None), values.pop("trust", False)
    typed_out = values.get("out")
    out = resume or typed_out
    planned = functools.partial(_planned, out=typed_out, resume=resume, trust=trust)

    def again(runs: plan.Plan) -> str:
        # if the interruption came during planning, there are no runs yet, and `own` is
        # False
        own = any(":" in f"{c.task}{c.training.model}" for c in runs.values())
        words = ["isometry", "sweep", "--resume", str(out)]
        if trust or own:
            words.append("--trust")
        return f"Resume with: {shlex.join(words)}"

    return perform("sweep", values | {"out": out}, planned, again)


def perform(
    command: str,
    options: Mapping[str, Any],
    planned: Callable[[dict[str, Any]], plan.Plan],
    again: Callable[[plan.Plan], str],
) -> int:
    """Train the runs of a plan, or print their commands. Errors go to stderr.

    Args:
        command: "sweep" or "reproduce", for messages.
        options: options of the command line, keyed by name. These are the folder `out`,
            `dry_run` if the runs must not be trained, the fields of `Engine`, and
            options for `planned`.
        planned: returns the runs that the other options ask for. If it raises a
            `RunError`, `ValueError`, `TypeError` or `OSError`, the message is printed,
            unless the error is in the user's own code, which needs a traceback.
        again: returns a sentence that says how to resume these runs after an
            interruption.

    Returns:
        The exit code.
    """
    values = dict(options)
    out, dry_run = values.pop("out"), values.pop("dry_run", False)
    machine = {f.name: values.pop(f.name) for f in fields(Engine) if f.name in values}
    runs: plan.Plan = {}
    try:
        engine, runs = make(Engine, machine), planned(values)
        if dry_run:
            for name, config in plan.with_known_names(out, runs).items():
                folder = shlex.quote(f"{out / name}")
                sys.stdout.write(f"{config.command} --out {folder}\n")
            return 0
        bad = sweep(runs, out, engine)
    except BrokenPipeError:
        raise
    except (RunError, ValueError, TypeError, OSError) as error:
        if needs_traceback(error):
            raise
        message = as_typed(str(error), options.keys() - {"task"})
        sys.stderr.write(f"isometry {command}: {message}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"isometry {command}: interrupted. {again(runs)}\n")
        return 130
    for name, message in bad.items():
        sys.stderr.write(f"isometry {command}: {name}: {message}\n")
    return 1 if bad else 0


def _planned(
    values: dict[str, Any], *, out: Path | None, resume: Path | None, trust: bool
) -> plan.Plan:
    """The runs that the options ask for. The command line overrides the TOML file."""
    if resume:
        words = [values[n] if n == "task" else option_of(n) for n in values]
        if out:
            words.append("--out")
        if words:
            raise ValueError(
                f"`--resume` cannot be combined with options of the runs; got "
                f"{', '.join(words)}. To add runs, give `--out {resume}` instead."
            )
        runs = plan.read_plan(resume)
        plan.check_trust(runs, trust=trust)
        return runs
    if out is None:
        raise ValueError(
            "`--out` must name the folder of the sweep; got none. To resume a sweep, "
            "repeat its command."
        )
    file, task = values.pop("config", None), values.pop("task", None)
    from_file = {} if file is None else read_file(file)
    from_file = {PLURALS.get(name, name): value for name, value in from_file.items()}
    usual = from_file.pop("task", None)
    return plan.expand(task or usual, from_file | values)


def _add_own(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sweep itself, which may precede or follow the task."""
    group = parser.add_argument_group("options of the sweep")
    add = functools.partial(group.add_argument, default=argparse.SUPPRESS)
    add("--out", type=Path, metavar="DIR", help="folder for all runs of the sweep")
    text = (
        "TOML file with options, spelled with underscores, and with lists for several "
        "values; options on the command line take precedence"
    )
    add("--config", type=Path, metavar="FILE", help=text)
    add("--dry-run", action="store_true", help=DRY_RUN)
    for plural, name in PLURALS.items():
        kind, word = str if name == "model" else int, name.upper()
        same = f"the same as {option_of(name)}"
        add(option_of(plural), dest=name, nargs="+", type=kind, metavar=word, help=same)
    add_fields(parser, Engine, "engine and limits")
