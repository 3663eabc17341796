"""Speech prediction on TIMIT, or on any folder of recordings."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, ClassVar, Literal

from isometry.lab._data import speech
from isometry.lab._data.speech import BINS, Splits, log_power, read_recording
from isometry.lab.task import (
    AbstractTask,
    Batch,
    Split,
    batches_per_epoch,
    part,
    training_rows,
)
from isometry.lab.tasks.scores import check_installed, judge

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class TimitTask(AbstractTask):
    r"""Predict the next spectrum of a recording, or repeat the previous one.

    The frames $f_1, \ldots, f_F$ of a recording are log-power spectra in dB, 62.5 per
    second. With the target "next", the answer to the input $f_t$ is $f_{t+1}$: this is
    prediction. With "previous", the answer to the input $f_{t+1}$ is $f_t$: the network
    only has to repeat its previous input. The paper's published programs use
    "previous", so only results with this target can be compared with the paper's
    numbers.

    The loss is the mean squared error in dB² over valid frames. The metric "padded_mse"
    divides the same sum of squares by the number of entries of all frames, padding
    included, as [WPH16] does.

    Args:
        root: folder of the corpus.
        target: "previous" (as in the paper) or "next".
        split: "timit" for the splits of the paper; "speakers" for any folder of .wav
            files, preferably with a subfolder for each speaker.
        validation: the set for validation: "core" (as in the paper) or "development"
            (as in [WPH16]). The other of these two sets is the test set.
        scores: whether to measure SegSNR, STOI and PESQ of the predictions after
            training. This needs the packages pystoi and pesq.

    References:
        [LM19] section 5.3; [WPH16].
    """

    name: ClassVar[str] = "timit"
    metric: ClassVar[str] = "mse"
    metric_is_loss: ClassVar[bool] = True
    headings: ClassVar[Mapping[str, str]] = {
        "mse": "valid frames",
        # The error as [WPH16] defines it. The paper probably quotes this error for all
        # networks except ExpRNN.
        "padded_mse": "The same, padded frames",
        "segsnr": "SegSNR, dB",
        "stoi": "STOI",
        "pesq": "PESQ",
    }
    neutral: ClassVar[frozenset[str]] = frozenset({"root", "scores"})
    selecting: ClassVar[frozenset[str]] = frozenset({"validation"})
    paths: ClassVar[frozenset[str]] = frozenset({"root"})
    settings_of: ClassVar[str] = "timit"
    # inputs and outputs are spectra
    input_size: ClassVar[int] = BINS
    output_size: ClassVar[int] = BINS

    root: str | None = None
    target: Literal["previous", "next"] = "previous"
    split: Literal["timit", "speakers"] = "timit"
    validation: Literal["core", "development"] = "core"
    scores: bool = False

    def title(self) -> tuple[str, str, frozenset[str]]:
        """How reports name the task."""
        return "timit", "Speech prediction, TIMIT", frozenset()

    def epoch(self, size: int) -> int:
        """Number of batches in one pass over the training set, rounded up."""
        return batches_per_epoch(len(self._splits.train), size)

    def batch(
        self, step: int, *, size: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> Batch:
        """A training batch of spectra (time, batch, 129).

        Each rank pads its part to the longest recording of the whole batch.
        """
        count = len(self._splits.train)
        rows = training_rows(count, step, size=size, seed=seed, rank=0, ranks=1)
        whole = [self._train[row] for row in rows]
        longest = max(map(len, whole))
        return self._batch(whole[part(len(whole), rank, ranks)], longest)

    def evaluation(self, split: Split, size: int) -> Iterator[Batch]:
        """The recordings of a split, padded to the same length in both splits."""
        paths = self._paths(split)
        for start in range(0, len(paths), size):
            spectra = [self._spectrum(path) for path in paths[start : start + size]]
            yield self._batch(spectra, self._longest)

    def loss(self, outputs: "Tensor", batch: Batch) -> "Tensor":
        """Mean squared error over valid frames."""
        return _squares(outputs, batch) / (self.weights(batch)["loss"] * BINS)

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:
        """The loss as "mse", and "padded_mse", in which padding counts with error 0."""
        squares, weights = _squares(outputs, batch).item(), self.weights(batch)
        return {n: squares / (weights[n] * BINS) for n in ("mse", "padded_mse")}

    def weights(self, batch: Batch) -> dict[str, int]:
        """Number of valid frames in a batch; for "padded_mse", number of all frames."""
        assert batch.lengths is not None
        valid = int(batch.lengths.sum())
        steps, size = batch.y.shape[:2]
        return {"loss": valid, "mse": valid, "padded_mse": steps * size}

    def check(self) -> None:
        """Raise an error if `scores` is set and its packages are not installed."""
        if self.scores:
            check_installed()

    def final_scores(
        self, model: "Callable[[Tensor], Tensor]", split: Split, size: int
    ) -> dict[str, float]:
        """SegSNR, STOI and PESQ of the predictions, if the option `scores` is set."""
        return judge(self.predicted(model, split, size)) if self.scores else {}

    def predicted(
        self, model: "Callable[[Tensor], Tensor]", split: Split, size: int
    ) -> "Iterator[tuple[np.ndarray, np.ndarray]]":
        """Each recording together with a network's estimate of it.

        With the target "next", no output predicts the first frame, so the estimate
        begins with the true first frame.

        Args:
            model: a function that computes outputs from inputs.
            split: "validation" or "test".
            size: number of sequences in a batch.

        Yields:
            The recording and its estimate, at 8 kHz and of the same length.
        """
        import torch

        paths = iter(self._paths(split))
        for batch in self.evaluation(split, size):
            with torch.inference_mode():
                outputs = model(batch.x).cpu()
            # `zip` looks at the outputs first. So when they are used up, it does not
            # take a path that belongs to the next batch.
            for output, path in zip(outputs.unbind(1), paths, strict=False):
                samples = read_recording(self._root / path)
                frames = self._spectrum(path)
                F = len(frames)
                ahead = torch.cat((frames[:1], output[: F - 1]))
                y = output[:F] if self.target == "previous" else ahead
                estimate = speech.waveform(y, speech.spectra(samples), len(samples))
                yield samples, estimate.numpy()

    def _paths(self, split: Split) -> "Sequence[PurePath]":
        other = "development" if self.validation == "core" else "core"
        chosen = {"validation": self.validation, "test": other}[split]
        return getattr(self._splits, chosen)

    def _batch(self, spectra: "Sequence[Tensor]", steps: int) -> Batch:
        """A batch of spectra, padded with silence to `steps` frames."""
        import torch

        lengths = torch.tensor([len(spectrum) for spectrum in spectra])
        # Add a frame, because the answers are the inputs shifted by one frame. The new
        # frame is silent, like the last frame of every recording.
        frames = torch.full((steps + 1, len(spectra), BINS), speech.SILENCE)
        for index, spectrum in enumerate(spectra):
            frames[: len(spectrum), index] = spectrum
        now, after = frames[:-1], frames[1:]
        x, y = (now, after) if self.target == "next" else (after, now)
        return Batch(x.contiguous(), y.contiguous(), lengths)

    @functools.cached_property
    def _root(self) -> Path:
        if self.root is None or not Path(self.root).is_dir():
            raise ValueError(
                f"`root` must be a folder of recordings (`--root DIR`); got {self.root}"
                f". TIMIT is sold by the Linguistic Data Consortium (LDC93S1); any "
                f'folder of .wav files works with the split "speakers".'
            )
        return Path(self.root)

    @functools.cached_property
    def _splits(self) -> Splits:
        choose = speech.timit_splits if self.split == "timit" else speech.speaker_splits
        return choose(speech.recordings(self._root))

    @functools.cached_property
    def _longest(self) -> int:
        """Number of frames to which validation and test recordings are padded.

        With `split="timit"`, this is the length of the longest recording in the test
        folder of TIMIT, as in the literature.
        """
        paths = (self._root / path for path in self._splits.padding)
        return max(map(speech.recording_frames, paths))

    # A cache of the spectra of all recordings that were read, keyed by path, because
    # every epoch and every evaluation needs them again. TIMIT takes about 0.4 GB.
    @functools.cached_property
    def _spectra(self) -> "dict[PurePath, Tensor]":
        return {}

    def _spectrum(self, path: PurePath) -> "Tensor":
        if path not in self._spectra:
            self._spectra[path] = log_power(read_recording(self._root / path))
        return self._spectra[path]

    # All training recordings are read together, on first use, so that a damaged
    # recording stops a run before its first step.
    @functools.cached_property
    def _train(self) -> "list[Tensor]":
        return [self._spectrum(path) for path in self._splits.train]


def _squares(outputs: "Tensor", batch: Batch) -> "Tensor":
    """Sum of the squared errors over all entries of valid frames."""
    import torch

    assert batch.lengths is not None
    steps = torch.arange(len(batch.y), device=outputs.device)
    valid = steps[:, None] < batch.lengths.to(outputs.device)
    return ((outputs - batch.y).square().sum(-1) * valid).sum()
