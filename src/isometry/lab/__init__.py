"""Tasks, training, records and reports, for which `".[lab]"` installs what they need.

Names are loaded on first use (PEP 562). The command line starts at once, because torch
is imported only when it is needed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isometry.lab._data.get import get_data
    from isometry.lab._evaluation import evaluate
    from isometry.lab._report.command import write_report
    from isometry.lab._train.config import Config, Training
    from isometry.lab._train.experiment import register
    from isometry.lab._train.folder import RunError
    from isometry.lab._train.run import Outcome, load, resume, start
    from isometry.lab.paper.training import OptimizerRecipe, Recipe, Schedule
    from isometry.lab.task import (
        AbstractEndlessTask,
        AbstractTask,
        Batch,
        training_rows,
    )

__all__ = [
    "AbstractTask",
    "AbstractEndlessTask",
    "Batch",
    "evaluate",
    "training_rows",
    "Recipe",
    "Schedule",
    "OptimizerRecipe",
    "Config",
    "Training",
    "Outcome",
    "RunError",
    "start",
    "resume",
    "load",
    "register",
    "write_report",
    "get_data",
]

# the module that holds each public name
_PLACES = {
    **dict.fromkeys(("AbstractTask", "AbstractEndlessTask"), "task"),
    **dict.fromkeys(("Batch", "training_rows"), "task"),
    "evaluate": "_evaluation",
    **dict.fromkeys(("Recipe", "Schedule", "OptimizerRecipe"), "paper.training"),
    **dict.fromkeys(("Config", "Training"), "_train.config"),
    **dict.fromkeys(("Outcome", "start", "resume", "load"), "_train.run"),
    "RunError": "_train.folder",
    "register": "_train.experiment",
    "write_report": "_report.command",
    "get_data": "_data.get",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'isometry.lab' has no attribute {name!r}")
    return getattr(importlib.import_module(f"isometry.lab.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "paper", "tasks", "bench"]
