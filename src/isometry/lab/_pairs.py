"""Options of the form NAME=VALUE, such as `--model-options`."""

import argparse
import json
import re
from typing import Any


class Pairs(argparse.Action):
    """Collects the NAME=VALUE pairs of a repeated option in a dictionary."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse passes it
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002 - argparse passes it
    ) -> None:
        """Add a pair to the dictionary."""
        pairs = getattr(namespace, self.dest, {})
        setattr(namespace, self.dest, pairs | dict([values]))


def pair(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE."""
    name, equals, value = text.partition("=")
    # Refuse `a=1,b=2`, which tries to set two names at once. Inside a list, a table or
    # a quoted string, `,b=` is allowed.
    if not equals or re.match(r'[^"[{]*,\s*\w+=', value):
        raise argparse.ArgumentTypeError(
            f"must read NAME=VALUE; got {text!r}. Repeat the option for each name"
        )
    return name, value_of(value)


def value_of(text: str) -> Any:
    """Parse a string as JSON. A string that is not valid JSON is returned unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text
