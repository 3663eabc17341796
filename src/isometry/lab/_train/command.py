"""`isometry train`: options of a task and of its training, from line and file."""

import argparse
import json
import shlex
import sys
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from isometry.lab._options import (
    add_fields,
    add_hidden,
    as_typed,
    make,
    option_of,
    suggestion,
)
from isometry.lab._process import keep_freed_memory
from isometry.lab._train.config import Config, Training
from isometry.lab._train.folder import RunError, last_good

# what a shell sees, by the status of the run; 130 is what Ctrl-C usually gives
_CODES = {"finished": 0, "solved": 0, "diverged": 1, "interrupted": 130}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command, with one command below it for each task.

    Args:
        parser: parser of `isometry train`.
    """
    from isometry.lab.tasks import TASKS

    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with the run in a folder"
    )
    _add_places(parser)
    add_hidden(parser, [*TASKS.values(), Training])
    tasks = parser.add_subparsers(dest="task", metavar="TASK")
    for name, task in TASKS.items():
        first = (task.__doc__ or "").splitlines()[0]
        command = tasks.add_parser(name, help=first, description=first)
        add_fields(command, task, f"options of {name}")
        add_fields(command, Training, "options of training")
        _add_places(command)


def main(options: argparse.Namespace) -> int:
    """Train, and print the folder of the run.

    Args:
        options: options of the command line.

    Returns:
        The exit code.
    """
    from isometry.lab._train.run import resume, start

    keep_freed_memory()
    values = vars(options)
    folder = values.pop("resume", None)
    typed = values.keys() - {"command", "task"}
    try:
        if folder is not None:
            _check_alone(values)
            outcome = resume(folder)
        else:
            config, out = read(values)
            outcome = start(config, out)
    except (RunError, ValueError, TypeError, FileNotFoundError) as error:
        message = as_typed(str(error), typed)
        print(f"isometry: {message}", file=sys.stderr)  # noqa: T201 - it reports
        return 2
    if outcome.folder is None:
        return 0
    summary = outcome.summary
    print(_verdict(outcome.folder, summary), file=sys.stderr)  # noqa: T201 - it reports
    # the result alone, so that commands compose
    print(outcome.folder)  # noqa: T201 - it reports
    return _CODES[summary["status"]]


def read(given: dict[str, Any]) -> tuple[Config, Path | None]:
    """The config that options stand for; the line wins over the file.

    Args:
        given: by name: `task`, `config`, `out`, and fields of the two dataclasses.

    Returns:
        The config, and the folder if one is given.

    Raises:
        ValueError: if no task is named, the file cannot be read, or a name of it is
            unknown.
    """
    from isometry.lab.tasks import TASKS

    given = {k: v for k, v in given.items() if k != "command"}
    out, file = given.pop("out", None), given.pop("config", None)
    if isinstance(given.get("model_options"), list):
        given["model_options"] = dict(given["model_options"])
    from_file = {} if file is None else read_file(file)
    task = given.pop("task", None) or from_file.get("task")
    if not isinstance(task, str) or task not in TASKS:
        raise ValueError(
            f"`task` must be one of {', '.join(TASKS)}; got {task!r}."
            f"{suggestion(str(task), TASKS)} Name it after `isometry train`, or as "
            f"`task` in the file."
        )
    values = {k: v for k, v in from_file.items() if k != "task"} | given
    task_names = {f.name for f in fields(TASKS[task])}
    names = {f.name for f in fields(Training)}
    if unknown := sorted(values.keys() - task_names - names):
        close = suggestion(unknown[0], task_names | names)
        raise ValueError(
            f"options must be fields of {task} or of training; got "
            f"{', '.join(unknown)}.{close} `isometry train {task} --help` lists them."
        )
    task_object = make(
        TASKS[task], {k: v for k, v in values.items() if k in task_names}
    )
    training = make(Training, {k: v for k, v in values.items() if k in names})
    task_options = asdict(task_object)
    if task_options.get("root") is not None:
        # the run may go on where another folder is the current one
        values["root"] = str(Path(task_options["root"]).expanduser().absolute())
        task_options["root"] = values["root"]
    command = shlex.join(_words(task, values))
    return Config(task, task_options, training, command), out


def read_file(path: Path) -> dict[str, Any]:
    """The options of a file.

    Args:
        path: a file of TOML.

    Returns:
        Values by name.

    Raises:
        ValueError: if it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"`--config` must be a file of TOML; got {path}: {error}. Each line of it "
            f"reads `name = value`, with texts in quotes."
        ) from error


def _words(task: str, values: dict[str, Any]) -> list[str]:
    """The command that gives these values, wherever they came from."""
    words = ["isometry", "train", task]
    for name, value in values.items():
        option = option_of(name)
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        elif isinstance(value, dict):
            for key, inner in value.items():
                text = inner if isinstance(inner, str) else json.dumps(inner)
                words += [option, f"{key}={text}"]
        else:
            words += [option, str(value)]
    return words


def _check_alone(given: dict[str, Any]) -> None:
    """Raise if a run that goes on is given options, which would do nothing."""
    if extra := words_of(given):
        raise ValueError(
            f"`--resume` must stand alone, as a run keeps its options; got "
            f"{', '.join(extra)}. Leave them out, or begin another run."
        )


def words_of(given: dict[str, Any]) -> list[str]:
    """The task and the names of the options that a line has, as they are typed.

    Args:
        given: values by name, None for what was left out.

    Returns:
        Such as "copying" and "--hidden-size".
    """
    names = [k for k, v in given.items() if k != "command" and v is not None]
    return [given[k] if k == "task" else option_of(k) for k in names]


def _add_places(parser: argparse.ArgumentParser) -> None:
    usual: Any = argparse.SUPPRESS
    parser.add_argument(
        "--config",
        type=Path,
        default=usual,
        metavar="FILE",
        help="options as a TOML file, with underscores; those of the line win",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=usual,
        metavar="DIR",
        help="the folder of the run, which must not exist; by default a new one under "
        "the user's data directory",
    )


def _verdict(folder: Path, summary: dict[str, Any]) -> str:
    """How it ended, in a line or two."""
    status, steps = summary["status"], summary["steps"]
    if status == "diverged":
        return (
            f"isometry: the loss diverged at step {steps + 1}. {last_good(folder)}; "
            f"try a smaller `--lr`."
        )
    if status == "interrupted":
        return (
            f"isometry: interrupted after step {steps}. Go on with: "
            f"isometry train --resume {folder}"
        )
    metric = summary["metric"]
    ends = [f"{status} after {steps} steps, {summary['seconds']:.0f} s"]
    for name, place in (
        ("best", "validation"),
        ("best_by_test", "test, as the paper does"),
    ):
        if "test" in summary[name]:
            value = summary[name]["test"][metric]
            ends.append(f"test {metric} {value:.4g} at the best {place}")
    heard = summary.get("scores", {}).get("test", {})
    if heard:
        listed = ", ".join(f"{name} {value:.3g}" for name, value in heard.items())
        ends.append(f"test {listed} at the end")
    return "; ".join(ends)
