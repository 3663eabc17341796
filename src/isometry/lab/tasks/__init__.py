"""The tasks of the paper, and the adding problem."""

from isometry.lab.tasks._adding import AddingTask
from isometry.lab.tasks._copying import CopyingTask
from isometry.lab.tasks._mnist import MnistTask

TASKS: dict[str, type] = {
    "copying": CopyingTask,
    "adding": AddingTask,
    "mnist": MnistTask,
}

__all__ = ["AddingTask", "CopyingTask", "MnistTask", "TASKS"]
