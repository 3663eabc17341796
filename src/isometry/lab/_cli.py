"""The command `isometry`.

Each command is a module with `add_arguments(parser)` and `main(options)`. Only the
command that is called is imported, so that the help appears at once.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import isometry
from isometry.lab._options import suggestion

# where each command is, and what `isometry --help` says about it
COMMANDS = {
    "train": ("isometry.lab._train.command", "train a network on a task"),
    "sweep": ("isometry.lab._sweep.command", "train the product of options"),
    "report": ("isometry.lab._report.command", "make a page from runs"),
    "reproduce": (
        "isometry.lab._sweep.reproduce",
        "run what a figure or table of the paper needs",
    ),
    "bench": ("isometry.lab.bench.command", "time isometry and its peers here"),
    "config": ("isometry._config", "print what isometry uses on this machine"),
    "data": ("isometry.lab._data.get", "get the data of a task"),
}


class Parser(argparse.ArgumentParser):
    """A parser whose error names the unknown word and the closest known one.

    argparse would leave the error to the outermost parser, which does not know the
    options of a command.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and end the program if a word is left over."""
        self._check_options(sys.argv[1:] if args is None else args)
        values, rest = super().parse_known_args(args, namespace)
        if rest:
            self._refuse(rest)
        return values, rest

    def _check_options(self, words: Sequence[str]) -> None:
        """Refuse an unknown option before its value is taken for a command."""
        below = [
            action
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - no other name
        ]
        for position, word in enumerate(words if below else ()):
            if any(word in a.choices or _knows(a, word) for a in below):
                return
            # argparse also accepts the beginning of an option
            name = word.partition("=")[0]
            known = any(o.startswith(name) for o in self._option_string_actions)
            if word.startswith("--") and not known:
                self._refuse(words[position:])

    def _refuse(self, words: Sequence[str]) -> None:
        close = suggestion(words[0].partition("=")[0], self._option_string_actions)
        self.error(f"unrecognized arguments: {' '.join(words)}.{close}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a choice, and name the closest one if it is wrong."""
        # a task of the user's own is added to the choices when it is named
        if prepare := getattr(action, "prepare", None):
            prepare(value)
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            close = suggestion(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, error.message + close) from None


def _knows(action: Any, word: str) -> bool:
    """True if a word names a task whose command can still be added."""
    return hasattr(action, "knows") and action.knows(word)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: words after the name of the program; those of this process if None.

    Returns:
        The exit code: 0; 1 if a run failed or diverged; 2 for an invalid command line;
        130 after Ctrl-C; 141 if the reader of the output has stopped reading.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(
        prog="isometry",
        description="Experiments with orthogonal and unitary networks.",
    )
    parser.add_argument(
        "--version", action="version", version=f"isometry {isometry.__version__}"
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = words[0] if words else None
    for name, (place, text) in COMMANDS.items():
        command = subparsers.add_parser(name, help=text, description=text)
        if name == called:
            importlib.import_module(place).add_arguments(command)
    options = parser.parse_args(words)
    try:
        code = importlib.import_module(COMMANDS[options.command][0]).main(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        # Training catches the signal itself and saves its state. What is
        # interrupted here has nothing to save.
        sys.stderr.write("isometry: interrupted\n")
        return 130
    except BrokenPipeError:
        # as in `| head`; Python would complain when it flushes the stream at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code
