"""Turns the words of a command line into options, tasks and networks.

Options are defined in one place, the fields of a dataclass: the annotations of the
fields give the types, and the docstring of the dataclass gives the help texts.
"""

import argparse
import difflib
import inspect
import json
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

from isometry.lab._errors import require_traceback
from isometry.lab._pairs import Pairs, pair, value_of

# how an option refers to a user's own class: package.module:Class
_PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
REFERENCE = re.compile(f"{_PATH}:{_PATH}")

# for each annotation, the types of TOML or JSON values that it allows, and how error
# messages describe these values
_KINDS = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "a string"),
    dict: (dict, "a table of names and values"),
    list: (list, "a list"),
    NoneType: (NoneType, "null"),
}

_UNIONS = (typing.Union, UnionType)


class FieldType(NamedTuple):
    """The values that are allowed in a field of a dataclass.

    Attributes:
        kinds: the types in the annotation, as keys of `_KINDS`.
        choices: the strings of a `Literal` in the annotation.
    """

    kinds: tuple[Any, ...] = ()
    choices: tuple[Any, ...] = ()

    def takes(self, value: object) -> bool:
        """True if a value from TOML or JSON is allowed. A boolean is not a number."""
        if isinstance(value, bool):
            return bool in self.kinds
        types = tuple(_KINDS[kind][0] for kind in self.kinds)
        return value in self.choices or isinstance(value, types)

    def __str__(self) -> str:
        """Description of the allowed values, for error messages."""
        names = [_KINDS[kind][1] for kind in self.kinds if kind is not NoneType]
        choices = [f"one of {', '.join(self.choices)}"] if self.choices else []
        return " or ".join(choices + names)


def types_of(config: type) -> dict[str, FieldType]:
    """The types of a dataclass's fields, keyed by name.

    Args:
        config: the dataclass.

    Returns:
        The types. Annotations that are written as strings are resolved.

    Raises:
        ValueError: if a field has a type that an option of a command cannot have.
    """
    hints, types = typing.get_type_hints(config), dict[str, FieldType]()
    for field in fields(config):
        hint = hints[field.name]
        parts = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
        literals = [part for part in parts if get_origin(part) is Literal]
        # reduce `dict[str, Any]` to `dict`
        kinds = [get_origin(part) or part for part in parts if part not in literals]
        choices = tuple(choice for part in literals for choice in get_args(part))
        # `list` is among the `_KINDS` because files can hold lists, but an option of a
        # command cannot be a list
        unknown = [kind for kind in kinds if kind not in _KINDS or kind is list]
        unknown += [choice for choice in choices if not isinstance(choice, str)]
        if unknown:
            raise ValueError(
                f"`{field.name}` must be annotated as bool, int, float, str, dict, "
                f"Literal of strings, or a union of these and None, so that it can be "
                f"an option of a command; got {unknown[0]} in {config.__name__}."
            )
        types[field.name] = FieldType(tuple(kinds), choices)
    return types


Instance = TypeVar("Instance")


def make(config: type[Instance], values: Mapping[str, Any]) -> Instance:
    """Make an instance of a dataclass, after checking the types of its values.

    Args:
        config: the dataclass.
        values: values keyed by name, as read from a file or a command line.

    Returns:
        The instance.

    Raises:
        ValueError: if a name is not a field, or a value is not allowed.
        TypeError: if a field without a default has no value.
    """
    check_types(config, values)
    return config(**values)


def select(config: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values whose names are fields of a dataclass."""
    names = {field.name for field in fields(config)}
    return {name: value for name, value in values.items() if name in names}


def check_types(config: type, values: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if a name is not a field, or a value is not allowed."""
    types = types_of(config)
    if unknown := sorted(values.keys() - types.keys()):
        raise ValueError(
            f"options must be among {', '.join(types)}; got {', '.join(unknown)}."
            f"{suggestion(unknown[0], types)}"
        )
    for name, value in values.items():
        if not (kind := types[name]).takes(value):
            close = suggestion(str(value), kind.choices)
            raise ValueError(f"`{name}` must be {kind}; got {value!r:.60}.{close}")


def add_fields(
    parser: argparse.ArgumentParser,
    config: type,
    title: str,
    *,
    several: bool = False,
    only: Collection[str] | None = None,
) -> None:
    """Add an option for each field of a dataclass.

    The parsed arguments contain only the options that are on the command line.

    Args:
        parser: parser of a command.
        config: a dataclass.
        title: heading above these options in the help.
        several: whether options take several values. Flags and NAME=VALUE options
            never do.
        only: names of the fields that become options; if None, all fields do.
    """
    group, docs = parser.add_argument_group(title), describe(config)
    types = types_of(config)
    for field in fields(config):
        name, usual = field.name, field.default
        if only is None or name in only:
            text = docs.get(name, "").replace("%", "%%")
            if isinstance(usual, int | float | str) and usual != "":
                text += f" ({usual})"
            arguments = _arguments(name, types[name], several=several)
            group.add_argument(option_of(name), help=text, **arguments)


def add_hidden(
    parser: argparse.ArgumentParser, configs: Iterable[type], *, several: bool = False
) -> None:
    """Accept the options of tasks or of training, without showing them in the help.

    The hidden options may precede the task on the command line. They may also be used
    without a task on the command line, if a file names the task. If no task is named at
    all, the error message is about the missing task, and not about unknown options.

    Args:
        parser: parser of a command that takes a task.
        configs: the dataclasses. If an option has different types in two of them, its
            value is parsed by `value_of`.
        several: whether options take several values. Flags and NAME=VALUE options
            never do.
    """
    options: dict[str, dict[str, Any]] = {}
    for config in configs:
        for name, kind in types_of(config).items():
            arguments = _arguments(name, kind, several=several)
            if options.setdefault(name, arguments) != arguments:
                options[name] = _arguments(name, FieldType(), several=several)
    for name, arguments in options.items():
        parser.add_argument(option_of(name), help=argparse.SUPPRESS, **arguments)


def option_of(name: str) -> str:
    """The command-line option for a field: `--hidden-size` for `hidden_size`."""
    return "--" + name.replace("_", "-")


def spell(name: str, value: Any) -> list[str]:
    """The command-line words that set a field, such as "--hidden-size" and "64"."""
    option = option_of(name)
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    if isinstance(value, dict):
        words = []
        for key, entry in value.items():
            # quote a string such as "3", which would otherwise be read as a number
            plain = isinstance(entry, str) and value_of(entry) is entry
            words += [option, f"{key}={entry if plain else json.dumps(entry)}"]
        return words
    text = str(value)
    # argparse would mistake a separate word that begins with a dash for an option
    return [f"{option}={text}"] if text.startswith("-") else [option, text]


def as_typed(message: str, names: Iterable[str]) -> str:
    """An error message with the names of fields spelled as on the command line.

    Args:
        message: the message, with names of fields in backquotes.
        names: the fields to replace, usually those given on the command line.

    Returns:
        The message, with `--hidden-size` for `hidden_size`.
    """
    for name in names:
        message = message.replace(f"`{name}`", f"`{option_of(name)}`")
    return message


def describe(config: type) -> dict[str, str]:
    """The description of each field in a dataclass's docstring, keyed by name."""
    doc = inspect.cleandoc(config.__doc__ or "")
    section = re.search(r"^(?:Args|Attributes):\n((?: {4}.*\n?)+)", doc, re.MULTILINE)
    entry = re.compile(r"^ {4}(\w+):(.*(?:\n {5,}.*)*)", re.MULTILINE)
    return {
        name: " ".join(text.split()).rstrip(".").replace("$", "")
        for name, text in (entry.findall(section[1]) if section else ())
    }


def _arguments(name: str, kind: FieldType, *, several: bool) -> dict[str, Any]:
    """Arguments of argparse's `add_argument` for an option with this name and type."""
    common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    if bool in kind.kinds:
        return common | {"action": argparse.BooleanOptionalAction}
    if dict in kind.kinds:
        return common | {"action": Pairs, "type": pair, "metavar": "NAME=VALUE"}
    common |= {"nargs": "+"} if several else {}
    if kind.choices:
        return common | {"choices": kind.choices}
    for part in kind.kinds:
        if part is not NoneType:
            return common | {"type": part, "metavar": part.__name__.upper()}
    return common | {"type": value_of}


def suggestion(word: str, known: Iterable[str]) -> str:
    """A question about the closest known word, such as " Did you mean lag?".

    Args:
        word: the word that was typed.
        known: the valid words.

    Returns:
        The question, with a space before it; empty if no word is close.
    """
    # compare in lower case, to recognize a word with the wrong capitalization
    by_lower_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower_case, n=1)
    return f" Did you mean {by_lower_case[close[0]]}?" if close else ""


Thing = TypeVar("Thing")


@dataclass(eq=False)
class Registry(Generic[Thing]):
    """Finds tasks or networks by name: isometry's, other packages' and the user's own.

    A class that is not registered has the name package.module:Class.

    Attributes:
        what: the option that takes these names, "task" or "model", for error messages.
        group: the group of entry points in which other packages list their classes.
        ours: isometry's own tasks or networks, keyed by name.
        accept: turns a class into an entry of the registry; raises `TypeError` or
            `ValueError` if the class is unsuitable.
        known: the entries of `ours` and all entries that were added, keyed by name.
    """

    what: str
    group: str
    ours: Mapping[str, Thing]
    accept: Callable[[Any], Thing]

    def __post_init__(self) -> None:
        self.known = dict(self.ours)

    def add(self, name: str, value: Any) -> Thing:
        """Register a class. Its name must not be one of isometry's own."""
        if name in self.ours:
            raise ValueError(
                f"`name` must not be one of isometry's own, {', '.join(self.ours)}; "
                f"got {name!r}."
            )
        self.known[name] = self.accept(value)
        return self.known[name]

    def find(self, name: object, *, trust: bool | Collection[str] = False) -> Thing:
        """The task or network with this name; its class is imported if necessary.

        Args:
            name: the name.
            trust: True to import any class that is not registered, or the names of the
                classes that may be imported. Pass False for a name from the folder of a
                run or sweep, unless the user trusts that folder.

        Returns:
            The entry.

        Raises:
            ValueError: if nothing has this name, if the class cannot be imported, if
                `trust` does not allow its import, or if `accept` raises this error
                because the class is unsuitable.
            TypeError: if `accept` raises this error because the class is unsuitable.
        """
        # the name may come from a file, which may hold a value of any type
        word = str(name)
        if word in self.known:
            return self.known[word]
        if word in self:
            return self.add(word, self._entries()[word].load())
        if not REFERENCE.fullmatch(word):
            raise ValueError(
                f"`{self.what}` must be one of {', '.join(self)}, or a class as "
                f"package.module:Class; got {name!r}.{suggestion(word, self)}"
            )
        if trust is True or (trust and word in trust):
            return self.add(word, self._import(word))
        raise ValueError(
            f"`{self.what}` must be registered, or a class that you trust; got "
            f"{word}, which comes from a file. To import its code, add `--trust` (in "
            f"Python, `trust=True`)."
        )

    def _import(self, name: str) -> Any:
        module = name.partition(":")[0]
        # find modules in the current folder, as `python -m` does
        here = str(Path.cwd())
        if "" not in sys.path and here not in sys.path:
            sys.path.append(here)
        try:
            return pkgutil.resolve_name(name)
        except (AttributeError, ModuleNotFoundError, TypeError, ValueError) as error:
            if not _is_missing(module, error):
                require_traceback(error, f"raised by the import of {module}")
                raise
            raise ValueError(
                f"`{self.what}` must name a class that can be imported; got {name}: "
                f"{error}. Install its package, or change to the folder of its module."
            ) from error

    def _entries(self) -> dict[str, Any]:
        return {entry.name: entry for entry in entry_points(group=self.group)}

    def __contains__(self, name: object) -> bool:
        return name in self.known or name in self._entries()

    def __iter__(self) -> Iterator[str]:
        short = (name for name in self.known if ":" not in name)
        return iter(dict.fromkeys((*short, *self._entries())))


def _is_missing(module: str, error: Exception) -> bool:
    """True if `error` means that the module, or the class in it, does not exist."""
    if isinstance(error, AttributeError):
        # If the code of the module itself raised the error, the import has failed, and
        # the module is not in `sys.modules`.
        return module in sys.modules
    # Return True if the missing module is this one or a package that should contain it,
    # and False if it is a module that this one imports.
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and f"{module}.".startswith(f"{missing}.")
