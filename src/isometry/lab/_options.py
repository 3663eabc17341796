"""The fields of a dataclass as options of a command.

The dataclass is the only list: its annotations give the types, its docstring the help.
"""

import argparse
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

_ENTRY = re.compile(r"^(\w+):\s*(.*)$")

# how TOML and JSON have values of a type, and what they are called
_KINDS = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "a text"),
    dict: (dict, "a table of names and values"),
    NoneType: (NoneType, "null"),
}

Made = TypeVar("Made")


def make(config: type[Made], values: Mapping[str, Any]) -> Made:
    """A dataclass from the values of a file, which can be anything.

    Args:
        config: the dataclass.
        values: by name.

    Returns:
        The object.

    Raises:
        ValueError: if a name is no field, or a value is not of its type.
    """
    kind: Any = config
    hints = {field.name: get_type_hints(kind)[field.name] for field in fields(kind)}
    if unknown := sorted(values.keys() - hints.keys()):
        raise ValueError(
            f"options must be among {', '.join(hints)}; got {', '.join(unknown)}."
            f"{suggestion(unknown[0], hints)}"
        )
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ValueError(
                f"`{name}` must be {_kind(hints[name])}; got {value!r:.60}. Leave it "
                f"out for the usual one."
            )
    return kind(**values)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value of TOML or JSON is of a type; true is no number."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    kind = get_origin(hint) or hint
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, _KINDS[kind][0])


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        return " or ".join(_kind(part) for part in parts)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return _KINDS[get_origin(hint) or hint][1]


def add_fields(
    parser: argparse.ArgumentParser, config: type, title: str, *, several: bool = False
) -> None:
    """An option for each field; those that are not given are left out of the result.

    Args:
        parser: of a command.
        config: a dataclass.
        title: title of the group in the help.
        several: whether an option takes one value or more, and gives their list.
    """
    group = parser.add_argument_group(title)
    hints, docs = get_type_hints(config), describe(config)
    for field in fields(config):
        text = docs.get(field.name, "").replace("%", "%%")
        usual = field.default
        if isinstance(usual, int | float | str) and usual != "":
            text += f" ({usual})"
        reading = _reading(hints[field.name])
        _add_field(group, field.name, text, reading, several=several)


def add_hidden(
    parser: argparse.ArgumentParser, configs: Iterable[type], *, several: bool = False
) -> None:
    """Take the options of all tasks where no task is named, hidden from the help.

    The task may stand in a file, or after them. If it does not, the options are known
    all the same, and can be refused by name.

    Args:
        parser: of a command that has one command below it for each task.
        configs: dataclasses; a value of a name that they read in different ways is a
            number if it looks like one.
        several: whether an option takes one value or more.
    """
    readings: dict[str, list[dict[str, Any]]] = {}
    for config in configs:
        hints = get_type_hints(config)
        for field in fields(config):
            readings.setdefault(field.name, []).append(_reading(hints[field.name]))
    for name, ways in readings.items():
        agreed = all(way == ways[0] for way in ways)
        reading = ways[0] if agreed else {"type": _value}
        _add_field(parser, name, argparse.SUPPRESS, reading, several=several)


def option_of(name: str) -> str:
    """How a field is spelled on the command line."""
    return "--" + name.replace("_", "-")


def as_typed(message: str, names: Iterable[str]) -> str:
    """An error about fields, named as they were typed on the command line.

    Args:
        message: has names of fields in backquotes.
        names: the fields that the command line gave.

    Returns:
        The message, with `--hidden-size` for `hidden_size`.
    """
    for name in names:
        message = message.replace(f"`{name}`", f"`{option_of(name)}`")
    return message


def describe(config: type) -> dict[str, str]:
    """What the docstring says about each field, in its `Args` or `Attributes`.

    Args:
        config: a dataclass.

    Returns:
        Texts by name.
    """
    _, _, section = re.sub(
        r"^ *Attributes:$", "    Args:", config.__doc__ or "", flags=re.MULTILINE
    ).partition("    Args:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        indent = len(line) - len(line.lstrip())
        entry = _ENTRY.match(line.strip())
        if not line.strip() or indent < 8:
            break
        if indent == 8 and entry:
            name = entry.group(1)
            texts[name] = entry.group(2)
        elif name:
            texts[name] += " " + line.strip()
    return {name: text.rstrip(".").replace("$", "") for name, text in texts.items()}


def _add_field(
    place: argparse._ActionsContainer,
    name: str,
    text: str,
    reading: dict[str, Any],
    *,
    several: bool,
) -> None:
    if several and "action" not in reading:
        reading = reading | {"nargs": "+"}
    place.add_argument(
        option_of(name), dest=name, default=argparse.SUPPRESS, help=text, **reading
    )


def _reading(hint: Any) -> dict[str, Any]:
    """How argparse reads a value of a type."""
    if get_origin(hint) in (Union, UnionType):
        inner = [part for part in get_args(hint) if part is not NoneType]
        hint = inner[0]
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is dict or hint is dict:
        return {"action": "append", "type": _pair, "metavar": "NAME=VALUE"}
    return {"type": hint, "metavar": getattr(hint, "__name__", "value").upper()}


def _pair(text: str) -> tuple[str, Any]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must read NAME=VALUE; got {text!r}")
    return name, _value(value)


def _value(text: str) -> Any:
    """A number, true, false or null, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def suggestion(word: str, known: Iterable[str]) -> str:
    """A question about the closest known word, with a space before it.

    Args:
        word: what was typed.
        known: the words that would have been right.

    Returns:
        Such as " Do you mean lag?"; empty if none is close.
    """
    # capitals are mistyped, too
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1)
    return f" Do you mean {folded[close[0]]}?" if close else ""
