"""The output of a run: metrics, checkpoints, TensorBoard events and a progress bar."""

import hashlib
import io
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor, nn
from torch.optim import Optimizer

from isometry.lab._errors import RunError
from isometry.lab._files import CHECKPOINT, Metrics, write_atomically
from isometry.lab._train.experiment import Experiment

KEY = "isometry"

# losses, metrics or other measurements, keyed by name
Numbers = Mapping[str, float]


@dataclass
class RunState:
    """The progress of a run, which a checkpoint stores besides the tensors.

    Attributes:
        step: number of steps so far.
        seconds: wall time of the steps, without evaluations and checkpoints. It
            includes the time for which the process was suspended during a step.
        cpu_seconds: processor time of the steps, summed over all threads.
        first_loss: loss of the first batch.
        last: step of the last evaluation, and the means of each split.
        best: step and means of the evaluation with the best validation result.
        best_test: step and means of the evaluation with the best test result. The
            paper's table of MNIST reports this result; its other tables do not.
        solved_at: the step since which every evaluation has found the task solved; None
            if the last evaluation did not find it solved.
    """

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    first_loss: float | None = None
    last: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    best_test: dict[str, Any] = field(default_factory=dict)
    solved_at: int | None = None


def pack(
    model: nn.Module, optimizers: Iterable[Optimizer], header: dict[str, Any]
) -> bytes:
    """Serialize a model and its optimizers as the content of a checkpoint.

    Args:
        model: the model.
        optimizers: the optimizers of the model, if any. Their tensors get names such as
            `optimizer.0.3.exp_avg`; their other values go into the metadata.
        header: other values for the metadata, which must be JSON-serializable.

    Returns:
        The content of a safetensors file.
    """
    from safetensors.torch import save

    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    plain = []
    for i, optimizer in enumerate(optimizers):
        packed = optimizer.state_dict()
        # JSON turns the integer keys of `values` into strings; `unpack` turns the keys
        # back into integers
        values: dict[int, dict[str, Any]] = {}
        for index, entries in packed["state"].items():
            values[index] = {}
            for name, entry in entries.items():
                if isinstance(entry, Tensor):
                    tensors[f"optimizer.{i}.{index}.{name}"] = entry
                else:
                    values[index][name] = entry
        plain.append({"state": values, "param_groups": packed["param_groups"]})
    metadata = json.dumps({"state": header, "optimizers": plain})
    whole = {name: value.detach().contiguous() for name, value in tensors.items()}
    return save(whole, {KEY: metadata})


def unpack(
    data: bytes, model: nn.Module, optimizers: Iterable[Optimizer]
) -> dict[str, Any]:
    """Load a checkpoint, as `pack` returns it, into a model and its optimizers.

    Args:
        data: content of a safetensors file.
        model: a model with parameters of the same names and shapes.
        optimizers: the optimizers of the model; empty to load only the model.

    Returns:
        The argument `header` of `pack`.
    """
    from safetensors.torch import load

    metadata, tensors, optimizers = _metadata(data), load(data), list(optimizers)
    model.load_state_dict(_under("model.", tensors))
    # if no optimizers are passed, do not require as many as the checkpoint has
    pairs = zip(optimizers, metadata["optimizers"], strict=bool(optimizers))
    for i, (optimizer, plain) in enumerate(pairs):
        state = {int(index): dict(values) for index, values in plain["state"].items()}
        for path, value in _under(f"optimizer.{i}.", tensors).items():
            index, _, name = path.partition(".")
            state[int(index)][name] = value
        for group in plain["param_groups"]:
            # turn options such as betas, which JSON stores as lists, into tuples again
            tuples = {k: tuple(v) for k, v in group.items() if isinstance(v, list)}
            group.update(tuples, params=group["params"])
        optimizer.load_state_dict(plain | {"state": state})
    return metadata["state"]


def _metadata(data: bytes) -> dict[str, Any]:
    """The values in a checkpoint that are not tensors.

    The entry "state" is the header that was passed to `pack`. The entry "optimizers" is
    a list with the values of each optimizer.
    """
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])


def read_best(folder: Path, checkpoint: bytes) -> bytes:
    """Read the file with the weights that had the best validation result.

    Args:
        folder: folder of the run.
        checkpoint: content of the run's checkpoint, which holds the name and the hash
            of the file.

    Returns:
        The content of the file.

    Raises:
        RunError: if the run has no such file, or the file is damaged.
    """
    entry = _metadata(checkpoint)["state"].get("best_file")
    if not entry:
        raise RunError(
            f"{folder} must hold the weights of the best validation; it has none. "
            f"There was no validation, or an earlier version of isometry wrote the run."
        )
    name = entry["name"]
    # accept only names of this form, since a path could lead out of the folder
    path = folder / (name if re.fullmatch(r"best-\d+\.safetensors", name) else "best")
    data = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise RunError(
            f"{path} must be the file that the checkpoint names; got "
            f"{f'{len(data)} other bytes' if data else 'no file'}. Restore it from a "
            f"copy, or load the last weights."
        )
    return data


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)
    }


# entries of a record that are not drawn as curves
_NOT_DRAWN = ("step", "seconds", "cpu_seconds", "split")


class Events:
    """Writes the records of a run to TensorBoard, with a curve per number and split.

    A resumed run writes all curves again from its metrics. Otherwise the steps after
    the last checkpoint would appear twice, and events that were not yet on the disk
    when the process was killed would be missing.

    Args:
        folder: folder of the events. Earlier events in it are removed.
        records: the records so far.
    """

    def __init__(self, folder: Path, records: Sequence[Mapping[str, Any]] = ()) -> None:
        for path in folder.glob("events.out.*"):
            path.unlink()
        self.writer = event_writer()(str(folder))
        # The time of an event is `start` plus the training time so far. Thus the curves
        # of a resumed run have no gaps.
        self.start = time.time() - max((r["seconds"] for r in records), default=0.0)
        for record in records:
            self.write(record)
        self.writer.flush()

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the numbers of a record."""
        clock = self.start + record["seconds"]
        for name, value in record.items():
            if name not in _NOT_DRAWN:
                tag = f"{name}/{record['split']}"
                self.writer.add_scalar(tag, value, record["step"], walltime=clock)

    def close(self) -> None:
        """Close the file."""
        self.writer.close()


def event_writer() -> Any:
    """The class that writes events for TensorBoard.

    Raises:
        RunError: if TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RunError(
            "`tensorboard` needs the package tensorboard, which is not installed. "
            "Install it, `pip install tensorboard`, or leave the option out."
        ) from None
    return SummaryWriter


# width of the progress bar, in characters
_BAR = 20


class Progress:
    """Shows the progress of a run: a bar on a terminal, and a line per evaluation.

    Args:
        total: number of steps of the whole run.
        done: number of steps that were taken before the run was resumed.
        stream: where to write.
    """

    def __init__(self, total: int, done: int, stream: TextIO) -> None:
        self.stream, self.live = stream, stream.isatty()
        self.total, self.first, self.last = total, done, done
        self.start = self.shown = time.monotonic()

    def step(self, step: int, loss: float) -> None:
        """Redraw the bar on a terminal, at most five times a second."""
        self.last = step
        if self.live and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            filled = _BAR * step // max(self.total, 1)
            bar = "█" * filled + "░" * (_BAR - filled)
            # \x1b[K clears what is left of an earlier, longer line
            self.stream.write(f"\r{bar} {self.position()}  loss {loss:.4g}\x1b[K")
            self.stream.flush()

    def evaluation(self, means: Mapping[str, Numbers], extra: Numbers) -> None:
        """Write one line about an evaluation of all splits.

        Args:
            means: means of the loss and the metrics, keyed by split.
            extra: measurements of the network itself, such as its orthogonality error.
        """
        parts = [f"{split} {_listed(m)}" for split, m in means.items() if m]
        if extra:
            parts.append(_listed(extra))
        self.say(f"{self.position()}  {';  '.join(parts)}")

    def say(self, text: str) -> None:
        """Write a line that the bar does not overwrite."""
        self.stream.write(f"\r{text}\x1b[K\n" if self.live else f"{text}\n")
        self.stream.flush()

    def position(self) -> str:
        """The step, the number of steps per second, and the time left."""
        steps = self.last - self.first
        if steps == 0:
            return f"{self.last}/{self.total}"
        rate = steps / max(time.monotonic() - self.start, 1e-9)
        left = timedelta(seconds=round((self.total - self.last) / rate))
        return f"{self.last}/{self.total}  {rate:.2f} steps/s  {left} left"


def _listed(values: Numbers) -> str:
    pairs = [f"{name} {value:.4g}" for name, value in values.items()]
    return "  ".join(pairs).replace("_", " ")


class Recorder:
    """Writes to the folder of a run, and shows the progress of the run.

    Args:
        experiment: the task, the model and its optimizers.
        folder: folder of the run. If None, as in every process but the first, nothing
            is written or shown.
        header: the values that `unpack` returned for the run's checkpoint; empty if
            there is no checkpoint.
    """

    def __init__(
        self, experiment: Experiment, folder: Path | None, header: Mapping[str, Any]
    ) -> None:
        self.experiment, self.folder = experiment, folder
        training, done = experiment.training, header.get("state", {}).get("step", 0)
        stream = io.StringIO() if folder is None else sys.stderr
        self.progress = Progress(training.iterations, done, stream)
        self.best_file: dict[str, str] = header.get("best_file") or {}
        self.files: list[Metrics | Events] = []
        if folder is not None:
            self.metrics = Metrics(folder, int(header.get("metrics", 0)))
            self.files.append(self.metrics)
        if folder is not None and training.tensorboard:
            self.files.append(Events(folder / "tensorboard", self.metrics.records()))

    def write(self, state: RunState, split: str, values: Numbers) -> None:
        """Append a record to the metrics, and to the events if there are any."""
        seconds, cpu = round(state.seconds, 3), round(state.cpu_seconds, 3)
        record = {"step": state.step, "seconds": seconds, "cpu_seconds": cpu}
        record |= dict(values) | {"split": split}
        for file in self.files:
            file.write(record)

    def checkpoint(self, state: RunState, *, is_best: bool) -> None:
        """Replace the checkpoint, which also holds the length of the metrics file.

        The weights with the best validation result are in another file, which has the
        step in its name. The checkpoint names this file. An older file is removed only
        after the checkpoint has been replaced. Thus the run can be resumed, no matter
        when the process is killed.

        Args:
            state: the progress of the run.
            is_best: whether these weights have the best validation result so far.
        """
        if self.folder is None:
            return
        if is_best:
            data = pack(self.experiment.model, (), {"step": state.step})
            name = f"best-{state.step}.safetensors"
            write_atomically(self.folder / name, data)
            self.best_file = {"name": name, "sha256": hashlib.sha256(data).hexdigest()}
        header = {"state": asdict(state), "metrics": self.metrics.size()}
        header |= {"best_file": self.best_file or None}
        data = pack(self.experiment.model, self.experiment.optimizers, header)
        write_atomically(self.folder / CHECKPOINT, data)
        for path in self.folder.glob("best-*.safetensors"):
            if path.name != self.best_file.get("name"):
                path.unlink()

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
