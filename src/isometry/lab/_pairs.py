"""Options of the form NAME=VALUE, such as `--model-options`."""

import argparse
import json
import re
from typing import Any


class Pairs(argparse.Action):
    """Collects the names and values of an option that is repeated for each pair."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse gives it
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002 - argparse gives it
    ) -> None:
        """Add a pair to those before it."""
        pairs = getattr(namespace, self.dest, {})
        setattr(namespace, self.dest, pairs | dict([values]))


def pair(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE."""
    name, equals, value = text.partition("=")
    # a list, a table or a text in quotes may have commas
    if not equals or re.match(r'[^"[{]*,\s*\w+=', value):
        raise argparse.ArgumentTypeError(
            f"must read NAME=VALUE; got {text!r}. Repeat the option for each name"
        )
    return name, value_of(value)


def value_of(text: str) -> Any:
    """The value of a text that is JSON, such as a number; any other text unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text
