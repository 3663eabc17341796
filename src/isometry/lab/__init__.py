"""Tasks, training, records and reports. Requires `pip install isometry[lab]`.

Public names are imported on first use (PEP 562), so that the command line can print its
help without importing torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isometry.lab import bench as bench
    from isometry.lab import tasks as tasks
    from isometry.lab._data.get import get_data as get_data
    from isometry.lab._errors import RunError as RunError
    from isometry.lab._evaluation import evaluate as evaluate
    from isometry.lab._report.command import write_report as write_report
    from isometry.lab._train.config import Config as Config
    from isometry.lab._train.config import Training as Training
    from isometry.lab._train.experiment import register as register
    from isometry.lab._train.run import RunOutcome as RunOutcome
    from isometry.lab._train.run import load_model as load_model
    from isometry.lab._train.run import resume as resume
    from isometry.lab._train.run import train as train
    from isometry.lab.network import OptimizerRecipe as OptimizerRecipe
    from isometry.lab.network import Recipe as Recipe
    from isometry.lab.network import Schedule as Schedule
    from isometry.lab.network import SequenceModel as SequenceModel
    from isometry.lab.paper.networks import recipe_for as recipe_for
    from isometry.lab.task import AbstractEndlessTask as AbstractEndlessTask
    from isometry.lab.task import AbstractTask as AbstractTask
    from isometry.lab.task import Batch as Batch
    from isometry.lab.task import training_rows as training_rows

# public names, keyed by the module that defines them
_EXPORTS = {
    "task": ("AbstractTask", "AbstractEndlessTask", "Batch", "training_rows"),
    "_evaluation": ("evaluate",),
    "network": ("Recipe", "Schedule", "OptimizerRecipe", "SequenceModel"),
    "paper.networks": ("recipe_for",),
    "_train.config": ("Config", "Training"),
    "_train.run": ("RunOutcome", "train", "resume", "load_model"),
    "_errors": ("RunError",),
    "_train.experiment": ("register",),
    "_report.command": ("write_report",),
    "_data.get": ("get_data",),
}
# public modules, also imported on first use
_MODULES = ("tasks", "bench")

# Type checkers read the imports above, where `X as X` means that the name X is public.
# Hide `__getattr__` from them, since a module with this function seems to have every
# name.
if not TYPE_CHECKING:
    __all__ = [n for names in (*_EXPORTS.values(), _MODULES) for n in names]

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"isometry.lab.{name}")
        for module, names in _EXPORTS.items():
            if name in names:
                return getattr(importlib.import_module(f"isometry.lab.{module}"), name)
        raise AttributeError(f"module 'isometry.lab' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__
