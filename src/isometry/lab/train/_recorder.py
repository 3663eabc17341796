"""What a run leaves behind: lines of metrics, checkpoints and a word on a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isometry.lab.train._build import Experiment
from isometry.lab.train._checkpoint import pack
from isometry.lab.train._events import Events
from isometry.lab.train._folder import CHECKPOINT, Metrics, write_atomically
from isometry.lab.train._progress import Progress

if TYPE_CHECKING:
    from isometry.lab.train._loop import State


class Recorder:
    """Writes into the folder of a run; without a folder, as in other processes, not.

    Args:
        folder: of the run, or None.
        progress: what the user sees.
        size: bytes of metrics that the checkpoint knows.
        tensorboard: whether to write events, too.
    """

    def __init__(
        self,
        folder: Path | None,
        progress: Progress,
        *,
        size: int = 0,
        tensorboard: bool = False,
    ) -> None:
        self.folder, self.progress = folder, progress
        self.metrics = None if folder is None else Metrics(folder, size)
        self.events: Events | None = None
        if folder is not None and self.metrics is not None and tensorboard:
            self.events = Events(folder / "tensorboard", self.metrics.records())

    def write(self, state: "State", split: str, values: Mapping[str, float]) -> None:
        """A line of metrics."""
        place = {"step": state.step, "seconds": round(state.seconds, 3)}
        record = place | dict(values) | {"split": split}
        if self.metrics is not None:
            self.metrics.write(record)
        if self.events is not None:
            self.events.write(record)
        self.progress.record(record)

    def checkpoint(self, experiment: Experiment, state: dict[str, Any]) -> None:
        """Replace the checkpoint, which remembers how long the metrics are."""
        if self.folder is None or self.metrics is None:
            return
        known = {"state": state, "metrics": self.metrics.size()}
        data = pack(experiment.model, experiment.optimizers, known)
        write_atomically(self.folder / CHECKPOINT, data)

    def close(self) -> None:
        """Close the files."""
        if self.metrics is not None:
            self.metrics.close()
        if self.events is not None:
            self.events.close()
