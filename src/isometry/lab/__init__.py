"""Tasks, training, records and reports: `pip install isometry[lab]`.

Names are loaded on first use (PEP 562), so that the command line starts at once: torch
is imported when it is needed, and not before.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isometry.lab._data.get import get_data as get_data
    from isometry.lab._report.command import write_report as write_report
    from isometry.lab._train.config import Config as Config
    from isometry.lab._train.config import Training as Training
    from isometry.lab._train.experiment import register as register
    from isometry.lab._train.folder import RunError as RunError
    from isometry.lab._train.run import Outcome as Outcome
    from isometry.lab._train.run import load as load
    from isometry.lab._train.run import resume as resume
    from isometry.lab._train.run import start as start
    from isometry.lab.paper.training import OptimizerRecipe as OptimizerRecipe
    from isometry.lab.paper.training import Recipe as Recipe
    from isometry.lab.paper.training import Schedule as Schedule
    from isometry.lab.task import AbstractEndlessTask as AbstractEndlessTask
    from isometry.lab.task import AbstractTask as AbstractTask
    from isometry.lab.task import Batch as Batch
    from isometry.lab.task import evaluate as evaluate

# what is public, and the module that holds it
_PLACES = {
    "AbstractTask": "isometry.lab.task",
    "AbstractEndlessTask": "isometry.lab.task",
    "Batch": "isometry.lab.task",
    "evaluate": "isometry.lab.task",
    "Recipe": "isometry.lab.paper.training",
    "Schedule": "isometry.lab.paper.training",
    "OptimizerRecipe": "isometry.lab.paper.training",
    "Config": "isometry.lab._train.config",
    "Training": "isometry.lab._train.config",
    "Outcome": "isometry.lab._train.run",
    "RunError": "isometry.lab._train.folder",
    "start": "isometry.lab._train.run",
    "resume": "isometry.lab._train.run",
    "load": "isometry.lab._train.run",
    "register": "isometry.lab._train.experiment",
    "write_report": "isometry.lab._report.command",
    "get_data": "isometry.lab._data.get",
}
__all__ = [
    "AbstractTask",
    "AbstractEndlessTask",
    "Batch",
    "evaluate",
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


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'isometry.lab' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "paper", "tasks", "bench"]
