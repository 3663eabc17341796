"""Events for TensorBoard, which say what the metrics say."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isometry.lab.train._folder import RunError

# what a record has besides its numbers
_PLACE = ("step", "seconds", "split")


class Events:
    """Writes the records of a run as curves, one for each number and split.

    A run that goes on begins them anew from its metrics. So no step is there twice, as
    those after the last checkpoint would be, and none is missing that was not on the
    disk when the process was killed.

    Args:
        folder: where the events go; those that are there are removed.
        records: lines of the metrics so far.
    """

    def __init__(self, folder: Path, records: Sequence[Mapping[str, Any]] = ()) -> None:
        made = event_writer()
        for path in folder.glob("events.out.*"):
            path.unlink()
        self.writer = made(str(folder))
        # the clock of a curve is that of the training, across interruptions
        self.begun = time.time() - max((r["seconds"] for r in records), default=0.0)
        for record in records:
            self.write(record)
        self.writer.flush()

    def write(self, record: Mapping[str, Any]) -> None:
        """The numbers of a record."""
        clock = self.begun + record["seconds"]
        for name, value in record.items():
            if name not in _PLACE:
                tag = f"{name}/{record['split']}"
                self.writer.add_scalar(tag, value, record["step"], walltime=clock)

    def close(self) -> None:
        """Close the file."""
        self.writer.close()


def event_writer() -> Any:
    """The class that writes events for TensorBoard.

    Returns:
        The class.

    Raises:
        RunError: if it is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RunError(
            "`--tensorboard` needs the package tensorboard, which is not installed. "
            "Install it, `pip install tensorboard`, or leave the option out."
        ) from None
    return SummaryWriter
