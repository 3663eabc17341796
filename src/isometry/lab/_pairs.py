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
        name, value = values
        pairs = getattr(namespace, self.dest, {})
        if name in pairs and pairs[name] != value:
            raise argparse.ArgumentError(
                self, f"{name} must have one value; got {pairs[name]!r} and {value!r}"
            )
        setattr(namespace, self.dest, pairs | {name: value})


def pair(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE into the name and the value, which is parsed by `value_of`."""
    name, equals, value = text.partition("=")
    # Refuse `a=1,b=2`, which tries to set two names at once. Inside a list, a table or
    # a quoted string, `,b=` is allowed.
    if not equals or re.match(r'[^"[{]*,\s*\w+=', value):
        raise argparse.ArgumentTypeError(
            f"must read NAME=VALUE; got {text!r}. Repeat the option for each name"
        )
    return name, value_of(value)


# what somebody who writes Python may type instead of JSON's true, false and null
_PYTHON = {"True": True, "False": False, "None": None}


def value_of(text: str) -> Any:
    """Parse JSON, or Python's True, False or None; return any other text unchanged."""
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
