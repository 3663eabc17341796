"""Finds tasks and networks by their names."""

import importlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from isometry.lab._options import suggestion

# the name by which options refer to a user's own class: package.module:Class
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Tasks or networks by name: from isometry, from other packages and from the user.

    A class that is not registered is named package.module:Class.

    Args:
        what: "task" or "model": the field of a config that holds the name.
        group: the group of entry points in which other packages list their classes.
        ours: the tasks or networks of this package, by name.
        accept: turns a class into an entry of the registry, or raises `TypeError` or
            `ValueError`.
    """

    def __init__(
        self,
        what: str,
        group: str,
        ours: Mapping[str, Thing],
        accept: Callable[[Any], Thing],
    ) -> None:
        self.what, self.group, self.ours, self.accept = what, group, ours, accept
        self.known = dict(ours)

    def add(self, name: str, value: Any) -> Thing:
        """Register a class under a name that is not one of ours."""
        if name in self.ours:
            raise ValueError(
                f"`name` must differ from ours, {', '.join(self.ours)}; got {name!r}."
            )
        self.known[name] = self.accept(value)
        return self.known[name]

    def find(self, name: object, *, trust: bool | Collection[str] = False) -> Thing:
        """The task or network with this name; its class is imported if necessary.

        Args:
            name: the name.
            trust: True if any class that is not registered may be imported, or the
                names of the classes that may. Do not trust names from a file.

        Returns:
            The entry.

        Raises:
            ValueError: if nothing has this name, or the class must not be imported.
        """
        if isinstance(name, str):
            if name in self.known:
                return self.known[name]
            if name in self:
                return self.add(name, self._entries()[name].load())
            if REFERENCE.fullmatch(name):
                if trust is True or (trust and name in trust):
                    return self.add(name, self._imported(name))
                raise ValueError(
                    f"`{self.what}` must be registered, or a class that you trust; got "
                    f"{name}, which a file names. To import its code, add `--trust` "
                    f"(in Python, `trust=True`)."
                )
        raise ValueError(
            f"`{self.what}` must be one of {', '.join(self)}, or a class as "
            f"package.module:Class; got {name!r}.{suggestion(str(name), self)}"
        )

    def _imported(self, name: str) -> Any:
        module, _, path = name.partition(":")
        # find modules in the current folder, as `python -m` does
        if not {"", here := str(Path.cwd())} & set(sys.path):
            sys.path.append(here)
        try:
            value = importlib.import_module(module)
            for part in path.split("."):
                value = getattr(value, part)
        except (ValueError, TypeError) as error:
            # The user's module itself is wrong. Because of this note, the command line
            # prints the traceback.
            error.add_note(f"isometry: raised by the import of {module}")
            raise
        except (ModuleNotFoundError, AttributeError) as error:
            # if an import fails inside the user's own module, show that error unchanged
            if isinstance(error, ModuleNotFoundError) and not (
                error.name and module.startswith(error.name)
            ):
                raise
            raise ValueError(
                f"`{self.what}` must name a class that can be imported; got {name}: "
                f"{error}. Install its package, or change to the folder of its module."
            ) from error
        return value

    def _entries(self) -> dict[str, Any]:
        return {entry.name: entry for entry in entry_points(group=self.group)}

    def __contains__(self, name: object) -> bool:
        return name in self.known or name in self._entries()

    def __iter__(self) -> Iterator[str]:
        short = (name for name in self.known if ":" not in name)
        return iter(dict.fromkeys((*short, *self._entries())))
