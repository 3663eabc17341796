"""What a run leaves behind: metrics, checkpoints, events, and words on a terminal."""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torch import Tensor, nn
from torch.optim import Optimizer

from isometry.lab._train.experiment import Experiment
from isometry.lab._train.folder import CHECKPOINT, Metrics, RunError, write_atomically

if TYPE_CHECKING:
    from isometry.lab._train.loop import State


KEY = "isometry"


def pack(
    model: nn.Module, optimizers: Iterable[Optimizer], state: dict[str, Any]
) -> bytes:
    """The content of a checkpoint.

    Args:
        model: its `state_dict`.
        optimizers: theirs, flattened: tensors by path, other values in the header.
        state: what JSON can say.

    Returns:
        A safetensors file.
    """
    from safetensors.torch import save

    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    plain = []
    for i, optimizer in enumerate(optimizers):
        packed = optimizer.state_dict()
        values: dict[str, dict[str, Any]] = {}
        for index, entries in packed["state"].items():
            values[str(index)] = {}
            for name, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{i}.{index}.{name}"] = value
                else:
                    values[str(index)][name] = value
        plain.append({"state": values, "param_groups": packed["param_groups"]})
    header = json.dumps({"state": state, "optimizers": plain})
    whole = {name: value.detach().contiguous() for name, value in tensors.items()}
    return save(whole, {KEY: header})


def unpack(
    data: bytes, model: nn.Module, optimizers: Iterable[Optimizer]
) -> dict[str, Any]:
    """Load what `pack` made.

    Args:
        data: a safetensors file.
        model: made as that one was.
        optimizers: made as those were.

    Returns:
        The state.
    """
    from safetensors.torch import load

    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])
    tensors = load(data)
    model.load_state_dict(_under("model.", tensors))
    pairs = zip(optimizers, header["optimizers"], strict=True)
    for i, (optimizer, plain) in enumerate(pairs):
        mine = _under(f"optimizer.{i}.", tensors)
        state: dict[int, dict[str, Any]] = {
            int(index): dict(values) for index, values in plain["state"].items()
        }
        for path, value in mine.items():
            index, _, name = path.partition(".")
            state[int(index)][name] = value
        groups = [_tuples(group) for group in plain["param_groups"]]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    return header["state"]


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)
    }


def _tuples(group: dict[str, Any]) -> dict[str, Any]:
    """Options that were tuples, such as betas, which JSON makes lists."""
    return {
        name: tuple(value) if isinstance(value, list) and name != "params" else value
        for name, value in group.items()
    }


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
        # a curve has the clock of the training, across interruptions
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


class Progress:
    """One line that is renewed on a terminal; elsewhere a line for each evaluation.

    Args:
        total: steps of the whole run.
        done: steps that were made before.
        stream: where to; standard error if None.
        quiet: say nothing, as the processes do that are not the first.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        stream: TextIO | None = None,
        quiet: bool = False,
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live, self.quiet = self.stream.isatty(), quiet
        self.total, self.first = total, done
        self.begun = self.shown = time.monotonic()
        self.known: dict[str, Any] = {}

    def step(self, step: int, loss: float) -> None:
        """After each step: renew the line, a few times a second."""
        self.known |= {"step": step, "loss": loss}
        if self.live and not self.quiet and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            # \x1b[K clears what a longer line has left
            self.stream.write(f"\r{self.line()}\x1b[K")
            self.stream.flush()

    def record(self, record: Mapping[str, Any]) -> None:
        """Take note of a line of the metrics; lines of evaluations are shown."""
        is_training = record["split"] == "train"
        name = "accuracy" if is_training else "orthogonality"
        self.known |= {name: record[name]} if name in record else {}
        if not is_training:
            values = "  ".join(
                f"{key} {value:.4g}"
                for key, value in record.items()
                if key not in ("step", "seconds", "split")
            )
            self.say(f"{self.place()}  {record['split']}: {values}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            end = "\x1b[K\n" if self.live else "\n"
            self.stream.write(f"{chr(13) if self.live else ''}{text}{end}")
            self.stream.flush()

    def line(self) -> str:
        """Where the run is, and the latest numbers."""
        values = [
            f"{name} {self.known[name]:.4g}"
            for name in ("loss", "accuracy", "orthogonality")
            if name in self.known
        ]
        return "  ".join([self.place(), *values])

    def place(self) -> str:
        """The step, the rate and the time that is left."""
        step = self.known.get("step", self.first)
        steps = step - self.first
        if steps == 0:
            return f"{step}/{self.total}"
        rate = steps / max(time.monotonic() - self.begun, 1e-9)
        left = timedelta(seconds=round((self.total - step) / rate))
        return f"{step}/{self.total}  {rate:.2f} steps/s  {left} left"


class Recorder:
    """Writes into the folder of a run; without a folder, as in other processes, not.

    Args:
        folder: folder of the run, or None.
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
        header = {"state": state, "metrics": self.metrics.size()}
        data = pack(experiment.model, experiment.optimizers, header)
        write_atomically(self.folder / CHECKPOINT, data)

    def close(self) -> None:
        """Close the files."""
        if self.metrics is not None:
            self.metrics.close()
        if self.events is not None:
            self.events.close()
