"""The tasks of the paper, and the adding problem."""

from isometry.lab.tasks._adding import AddingTask
from isometry.lab.tasks._copying import CopyingTask

TASKS: dict[str, type] = {
    "copying": CopyingTask,
    "adding": AddingTask,
}

__all__ = ["AddingTask", "CopyingTask", "TASKS"]
