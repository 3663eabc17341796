"""The tasks of the paper, and the adding problem."""

from isometry.lab.task import AbstractTask
from isometry.lab.tasks.adding import AddingTask
from isometry.lab.tasks.copying import CopyingTask
from isometry.lab.tasks.mnist import MnistTask
from isometry.lab.tasks.timit import TimitTask

TASKS: dict[str, type[AbstractTask]] = {
    "copying": CopyingTask,
    "adding": AddingTask,
    "mnist": MnistTask,
    "timit": TimitTask,
}

__all__ = ["AddingTask", "CopyingTask", "MnistTask", "TimitTask", "TASKS"]
