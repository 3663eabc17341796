"""The `isometry` command.

Each subcommand, such as `isometry train`, is a module with `add_arguments(parser)` and
`main(options)`. Only the module of the subcommand that is called is imported, so that
the help appears quickly.
"""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import isometry
from isometry.lab._options import suggestion
from isometry.lab._pairs import Pairs

# for each subcommand: its module in the package isometry, and its description for help
COMMANDS = {
    "train": ("lab._train.command", "train a network on a task"),
    "sweep": ("lab._sweep.command", "train once for each combination of options"),
    "report": ("lab._report.command", "write a report about runs"),
    "reproduce": ("lab._sweep.reproduce", "train the runs behind the paper's results"),
    "bench": ("lab.bench.command", "time isometry and other libraries"),
    "config": ("_config", "print what isometry uses on this machine"),
    "data": ("lab._data.get", "fetch the data for a task"),
}


class Parser(argparse.ArgumentParser):
    """A parser that suggests the closest known word when a word is unknown.

    By default, argparse lets the top-level parser report all unknown words. The
    top-level parser does not know the options of a subcommand, so it could not suggest
    any of them. Here, each parser reports the words that are unknown to itself.

    Options cannot be abbreviated. Otherwise the parser of `isometry train`, which also
    sees the words after the task, would mistake the option `--mode` of a user's task
    for an abbreviation of `--model` or `--model-options`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words; exit with an error message if a word is unknown."""
        values, rest = super().parse_known_args(args, namespace)
        if rest:
            # `words` holds the task and the words after it. argparse may have mistaken
            # the value of an unknown option for the task, so report `words` as well.
            self.refuse([*rest, *(getattr(values, "words", None) or ())])
        return values, rest

    def refuse(self, words: Sequence[str]) -> None:
        """Exit with an error message about unknown words."""
        hint = suggestion(words[0].partition("=")[0], self._option_string_actions)
        options = self._option_string_actions.items()
        pairs = [name for name, action in options if isinstance(action, Pairs)]
        if pairs and re.match(r"\w+=", words[0]):
            hint = f" Repeat {' or '.join(pairs)} for each NAME=VALUE."
        self.error(f"unrecognized arguments: {' '.join(words)}.{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise an error if a value is not valid, and suggest a close choice."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            close = suggestion(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, error.message + close) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments after the name of the program; `sys.argv[1:]` if None.

    Returns:
        The exit code: 0; 1 if a run failed or diverged; 2 if the command cannot do what
        was asked; 130 if interrupted; 141 if the output is a pipe that was closed.

    Raises:
        SystemExit: for an invalid command line (code 2), `--help` and `--version` (0).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    about = "Experiments with orthogonal and unitary networks."
    parser = Parser(prog="isometry", description=about)
    version = f"isometry {isometry.__version__}"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        command = subparsers.add_parser(name, help=text, description=text)
        if words[:1] == [name]:
            importlib.import_module(f"isometry.{module}").add_arguments(command)
    # refuse an unknown option, before argparse mistakes its value for a subcommand
    if words and words[0].startswith("--") and words[0] not in ("--help", "--version"):
        parser.refuse(words)
    options = parser.parse_args(words)
    if parse_task := vars(options).pop("parse_task", None):
        options = parse_task(options)
    module, _ = COMMANDS[vars(options).pop("command")]
    try:
        code = importlib.import_module(f"isometry.{module}").main(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        # Training handles Ctrl-C itself and writes a checkpoint, so there is nothing to
        # save here.
        sys.stderr.write("isometry: interrupted\n")
        return 130
    except BrokenPipeError:
        # The pipe was closed, as in `isometry ... | head`. At exit, Python flushes
        # standard output, which would raise again. So redirect it to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code
