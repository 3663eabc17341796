"""What a run leaves behind: lines of metrics, checkpoints and a word on a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isometry.lab.train._build import Experiment
from isometry.lab.train._checkpoint import pack
from isometry.lab.train._folder import CHECKPOINT, Metrics, RunError, write_atomically
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
        self.events: Any = None
        if folder is not None and tensorboard:
            self.events = event_writer()(str(folder / "tensorboard"))

    def write(self, state: "State", split: str, values: Mapping[str, float]) -> None:
        """A line of metrics."""
        place = {"step": state.step, "seconds": round(state.seconds, 3)}
        record = place | dict(values) | {"split": split}
        if self.metrics is not None:
            self.metrics.write(record)
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(f"{name}/{split}", value, state.step)
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
