"""The tasks of the paper [LM19], and the adding problem."""

import inspect
from dataclasses import is_dataclass
from typing import Any

from isometry.lab._options import Registry, types_of
from isometry.lab.task import AbstractEndlessTask, AbstractTask
from isometry.lab.tasks.adding import AddingTask
from isometry.lab.tasks.copying import CopyingTask
from isometry.lab.tasks.mnist import MnistTask
from isometry.lab.tasks.timit import TimitTask


def _accept(value: Any) -> type[AbstractTask]:
    """Check a user's own task, and return it."""
    is_task = isinstance(value, type) and issubclass(value, AbstractTask)
    if not is_task or inspect.isabstract(value) or not is_dataclass(value):
        missing = sorted(getattr(value, "__abstractmethods__", ()))
        lacks = f", which does not define {', '.join(missing)}" if missing else ""
        raise TypeError(
            f"`task` must be a dataclass that derives from isometry.lab.AbstractTask "
            f"and defines its abstract methods and properties; got {value!r}{lacks}."
        )
    kind: Any = value
    types = types_of(kind)
    if bad := [n for n in kind.paths if n not in types or str not in types[n].kinds]:
        raise TypeError(
            f"`paths` must name options of type str; got {', '.join(sorted(bad))} in "
            f"{value!r}."
        )
    endless = issubclass(kind, AbstractEndlessTask)
    if endless and "held_out" not in types and not hasattr(kind, "held_out"):
        raise TypeError(
            f"`task` must have `held_out`, the number of sequences for validation and "
            f"for test, since its data is endless; got {value!r} without it. Add a "
            f"field, such as `held_out: int = 1000`."
        )
    return kind


_BY_NAME = {t.name: t for t in (CopyingTask, AddingTask, MnistTask, TimitTask)}
TASKS = Registry[type[AbstractTask]]("task", "isometry.tasks", _BY_NAME, _accept)

__all__ = ["AddingTask", "CopyingTask", "MnistTask", "TimitTask", "TASKS"]
