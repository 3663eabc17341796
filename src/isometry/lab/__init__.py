"""Tasks, training, records and reports. Requires `pip install isometry[lab]`.

Public names are imported on first use (PEP 562), so that the command line can print its
help without importing torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isometry.lab._data.get import get_data
    from isometry.lab._errors import RunError
    from isometry.lab._evaluation import evaluate
    from isometry.lab._report.command import write_report
    from isometry.lab._train.config import Config, Training
    from isometry.lab._train.experiment import register
    from isometry.lab._train.run import RunOutcome, load_model, resume, train
    from isometry.lab.network import OptimizerRecipe, Recipe, Schedule, SequenceModel
    from isometry.lab.task import (
        AbstractEndlessTask,
        AbstractTask,
        Batch,
        training_rows,
    )

__all__ = ["AbstractTask", "AbstractEndlessTask", "Batch", "evaluate", "training_rows"]
__all__ += ["Recipe", "Schedule", "OptimizerRecipe", "SequenceModel"]
__all__ += ["Config", "Training"]
__all__ += ["RunOutcome", "RunError", "train", "resume", "load_model", "register"]
__all__ += ["write_report", "get_data"]

# public names, keyed by the module that defines them
_EXPORTS = {
    "task": ("AbstractTask", "AbstractEndlessTask", "Batch", "training_rows"),
    "_evaluation": ("evaluate",),
    "network": ("Recipe", "Schedule", "OptimizerRecipe", "SequenceModel"),
    "_train.config": ("Config", "Training"),
    "_train.run": ("RunOutcome", "train", "resume", "load_model"),
    "_errors": ("RunError",),
    "_train.experiment": ("register",),
    "_report.command": ("write_report",),
    "_data.get": ("get_data",),
}
# public modules, also imported on first use
_MODULES = ("paper", "tasks", "bench")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"isometry.lab.{name}")
    for module, names in _EXPORTS.items():
        if name in names:
            return getattr(importlib.import_module(f"isometry.lab.{module}"), name)
    raise AttributeError(f"module 'isometry.lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]
