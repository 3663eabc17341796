"""The command `isometry train`, whose options can also come from a TOML file."""

import argparse
import functools
import shlex
import sys
import tomllib
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from isometry.lab import _options
from isometry.lab._errors import RunError, needs_traceback
from isometry.lab._files import Status, Summary, divergence, resume_command
from isometry.lab._train.config import Config, Training, check_changes

# the exit code for each status of a run; 130 is the usual code after Ctrl-C
_CODES: dict[Status, int] = {
    "finished": 0,
    "solved": 0,
    "diverged": 1,
    "interrupted": 130,
}


def add_tasks(
    parser: argparse.ArgumentParser,
    add_own: Callable[[argparse.ArgumentParser], None],
    *,
    resume: str,
    several: bool = False,
) -> None:
    """Make a parser accept a task, and options of the command, task and training.

    Options may precede or follow the task. But the options of a user's own task must
    follow it, because they are unknown until the task is imported. Therefore the words
    after the task are parsed later, by a function that the parsed arguments contain as
    `parse_task`.

    Args:
        parser: parser of a command.
        add_own: adds options of the command itself, such as `--out`, to a parser.
        resume: help text of `--resume`.
        several: whether options may have several values. Flags and NAME=VALUE options
            never do.
    """
    from isometry.lab.tasks import TASKS

    add = functools.partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--resume", type=Path, metavar="DIR", help=resume)
    text = "with --resume: import your own classes that are named in the folder"
    add("--trust", action="store_true", help=text)
    add_own(parser)
    _options.add_hidden(parser, [Training], several=several)
    # Options that a task must not have: all options so far, but not the hidden ones of
    # tasks, which are added below. `--task` and `--command` are not options of the
    # command, but they would overwrite attributes of the parsed arguments.
    options = parser._option_string_actions  # noqa: SLF001 - there is no public name
    reserved = {*options, "--task", "--command"}
    _options.add_hidden(parser, TASKS.ours.values(), several=several)
    # `words` will hold the task and all words after it
    text = "one of the tasks below, or your own class as package.module:Class"
    words = parser.add_argument("words", nargs=argparse.PARSER, help=text)
    words.metavar = "TASK"
    # The task is not required: a file may name it, and a resumed run already has one.
    words.required = False
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    lines = [f"  {name:9}{_summary(task)}" for name, task in TASKS.ours.items()]
    parser.epilog = "\n".join(["tasks:", *lines])

    def parse_task(options: argparse.Namespace) -> argparse.Namespace:
        words = vars(options).pop("words")
        if words is None:
            return options
        name, *words = words
        task = _find_task(name, parser, reserved)
        command = type(parser)(prog=f"{parser.prog} {name}", description=_summary(task))
        _options.add_fields(command, task, f"options of {name}", several=several)
        _options.add_fields(command, Training, "options of training", several=several)
        add_own(command)
        options.task = name
        return command.parse_args(words, options)

    parser.set_defaults(parse_task=parse_task)


def _find_task(name: str, parser: argparse.ArgumentParser, reserved: set[str]) -> type:
    """The class of a task. Exits if it is unknown or one of its options is reserved."""
    from isometry.lab.tasks import TASKS

    try:
        task = TASKS.find(name, trust=True)
    except (ValueError, TypeError) as error:
        if needs_traceback(error):
            raise
        parser.error(f"argument TASK: {error}")
    names = sorted(field.name for field in fields(task))
    if clashes := [n for n in names if _options.option_of(n) in reserved]:
        parser.error(
            f"argument TASK: options of {name} must differ from those of "
            f"{parser.prog}; got {', '.join(clashes)}. Rename these fields."
        )
    return task


def _summary(task: type) -> str:
    return (task.__doc__ or task.__name__).splitlines()[0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `isometry train` to its parser."""
    resume = (
        "resume the run in this folder; to continue a finished run, add "
        "`--iterations` or `--epochs`"
    )
    add_tasks(parser, _add_own, resume=resume)


def main(options: argparse.Namespace) -> int:
    """Train a network, and print the folder of the run.

    Args:
        options: options of the command line.

    Returns:
        The exit code.
    """
    from isometry.lab._process import keep_freed_memory
    from isometry.lab._train.run import resume, train

    keep_freed_memory()
    values = vars(options)
    folder, trust = values.pop("resume", None), values.pop("trust", False)
    typed = values.keys() - {"task"}
    try:
        if folder is not None:
            # Check the names before calling `resume`: an option of a user's task may
            # have the same name as a parameter of `resume`, such as `folder`.
            check_changes(values)
            outcome = resume(folder, trust=trust, **values)
        else:
            config, out = read(values)
            outcome = train(config, out)
    except (RunError, ValueError, TypeError, FileNotFoundError) as error:
        if needs_traceback(error):
            raise
        # In the message, spell options as on the command line. With a config file, do
        # so only for options typed on the command line, since the error may be about
        # an option in the file.
        from_file = folder is None and "config" in values
        names = typed if from_file else typed | {f.name for f in fields(Training)}
        message = _options.as_typed(str(error), names)
        print(f"isometry: {message}", file=sys.stderr)  # noqa: T201 - printing is intended
        return 2
    if outcome.folder is None:
        return 0
    summary = outcome.summary
    print(_verdict(outcome.folder, summary), file=sys.stderr)  # noqa: T201 - printing is intended
    # only the result goes to standard output, so that commands can be combined
    print(outcome.folder)  # noqa: T201 - printing is intended
    return _CODES[summary["status"]]


def read(options: dict[str, Any]) -> tuple[Config, Path | None]:
    """Make a config from the options of a command line and of its `--config` file.

    The command line takes precedence over the file.

    Args:
        options: the command-line options, keyed by name: `task`, `config` (the file),
            `out`, and fields of the task and of `Training`.

    Returns:
        The config, and the folder `out` (None if it was not given).

    Raises:
        ValueError: if no task is named, the file cannot be read, or the task or an
            option is unknown or invalid.
    """
    from isometry.lab.tasks import TASKS

    values = dict(options)
    out, file = values.pop("out", None), values.pop("config", None)
    values = ({} if file is None else read_file(file)) | values
    task = values.pop("task", None)
    if task is None:
        raise ValueError(
            f"`task` must be one of {', '.join(TASKS)}, or a class as "
            f"package.module:Class; got none. Name it after `isometry train`, or as "
            f"`task` in the file."
        )
    kind = TASKS.find(task, trust=True)
    own, common = _options.select(kind, values), _options.select(Training, values)
    if unknown := sorted(values.keys() - own.keys() - common.keys()):
        known = [field.name for field in (*fields(kind), *fields(Training))]
        raise ValueError(
            f"options must be fields of {task} or of training; got "
            f"{', '.join(unknown)}.{_options.suggestion(unknown[0], known)} "
            f"`isometry train {task} --help` lists them."
        )
    task_options = asdict(_options.make(kind, own))
    # store absolute paths, since the run may be resumed from another folder
    for name in sorted(kind.paths):
        if (path := task_options[name]) is not None:
            values[name] = str(Path(path).expanduser().absolute())
            task_options[name] = values[name]
    words = [word for k, v in values.items() for word in _options.spell(k, v)]
    command = shlex.join(["isometry", "train", task, *words])
    return Config(task, task_options, Training(**common), command), out


def read_file(path: Path) -> dict[str, Any]:
    """Read the options in a TOML file.

    Args:
        path: the file.

    Returns:
        The values, keyed by name.

    Raises:
        ValueError: if the file cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"`--config` must be a TOML file; got {path}: {error}. Write each option "
            f"as `name = value`, with strings in quotes."
        ) from error


def _add_own(parser: argparse.ArgumentParser) -> None:
    add = functools.partial(parser.add_argument, type=Path, default=argparse.SUPPRESS)
    text = (
        "TOML file with options, spelled with underscores; options on the command line "
        "take precedence"
    )
    add("--config", metavar="FILE", help=text)
    text = (
        "folder of the run, which must not exist; by default a new one under the "
        "user's data directory"
    )
    add("--out", metavar="DIR", help=text)


def _verdict(folder: Path, summary: Summary) -> str:
    """One line that says how the run ended."""
    status, steps = summary["status"], summary["steps"]
    if status == "diverged":
        return f"isometry: {divergence(folder, steps)}; try a smaller `--lr`."
    if status == "interrupted":
        again = resume_command(folder)
        return f"isometry: interrupted after step {steps}. Resume with: {again}"
    metric = summary["metric"]
    ends = [f"{status} after {steps} steps, {summary['seconds']:.0f} s"]
    evaluations = {
        "at the best validation": summary["best"],
        "at the best test, as the paper does": summary["best_by_test"],
    }
    for when, evaluation in evaluations.items():
        if "test" in evaluation:
            ends.append(f"test {metric} {evaluation['test'][metric]:.4g} {when}")
    if scores := summary.get("scores", {}).get("test", {}):
        listed = ", ".join(f"{name} {value:.3g}" for name, value in scores.items())
        ends.append(f"test {listed} at the end")
    return "; ".join(ends)
