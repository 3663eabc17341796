"""Pixel-by-pixel MNIST, permuted or not."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from isometry.lab._data.get import find_data
from isometry.lab.task import (
    AbstractTask,
    Batch,
    Split,
    batches_per_epoch,
    last,
    training_rows,
)

if TYPE_CHECKING:
    from torch import Tensor


class Images(NamedTuple):
    """Images as bytes (images, pixels), and their classes (images,)."""

    pixels: "Tensor"
    labels: "Tensor"


# the seed with which [WPH16] and later papers draw the permutation of the pixels
PERMUTATION_SEED = 92916


@dataclass(frozen=True)
class MnistTask(AbstractTask):
    """Classify an image whose pixels come one at a time.

    Pixels are divided by 255, and not otherwise normalized. The answer is due at the
    last of the 784 pixels. The best constant answer has a cross-entropy of about ln 10.

    Args:
        permute: whether the pixels come in the fixed random order that papers use.
        dataset: the images, "mnist" or "fashion-mnist".
        validation: number of images at the start of the training set that are held out
            for validation. The paper holds out none: it trains on all 60,000 images,
            and reports the best test accuracy.
        root: folder of the data files; if a file is not there, or if no folder is
            given, the cache or a download is used.

    References:
        [LM19] section 5.2; [WPH16] for the permutation and the validation images.
    """

    name: ClassVar[str] = "mnist"
    last_only: ClassVar[bool] = True
    metric: ClassVar[str] = "accuracy"
    neutral: ClassVar[frozenset[str]] = frozenset({"root"})
    selecting: ClassVar[frozenset[str]] = frozenset({"validation"})
    paths: ClassVar[frozenset[str]] = frozenset({"root"})
    # an input is one pixel; an output has a number for each class
    input_size: ClassVar[int] = 1
    output_size: ClassVar[int] = 10
    # loss of a uniform guess: all classes are about equally frequent
    baseline: ClassVar[float] = math.log(10)

    permute: bool = False
    dataset: Literal["mnist", "fashion-mnist"] = "mnist"
    validation: int = 5000
    root: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 60000:
            raise ValueError(
                f"`validation` must be in [0, 60000), to leave images to train on; got "
                f"{self.validation}. Usual numbers are 0, 5000 and 10000."
            )

    @property
    def settings_of(self) -> str:
        """The paper's task whose network settings are used: "mnist" or "pmnist"."""
        return "pmnist" if self.permute else "mnist"

    def title(self) -> tuple[str, str, frozenset[str]]:
        """How reports name the task: by its dataset and the order of the pixels."""
        key = self.dataset
        name = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}[key]
        if self.permute:
            key, name = f"p{key}", f"permuted {name}"
        return key, f"Pixel by pixel, {name}", frozenset({"permute", "dataset"})

    def epoch(self, size: int) -> int:
        """Number of batches in one pass over the training set, rounded up."""
        return batches_per_epoch(len(self._images["train"].labels), size)

    def batch(
        self, step: int, *, size: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> Batch:
        """A training batch of pixels (784, batch, 1) and classes (batch,)."""
        import torch

        images = self._images["train"]
        rows = training_rows(
            len(images.labels), step, size=size, seed=seed, rank=rank, ranks=ranks
        )
        return _batch(images, torch.from_numpy(rows))

    def evaluation(self, split: Split, size: int) -> Iterator[Batch]:
        """The validation or test images, in the order of the files."""
        images = self._images[split]
        for start in range(0, len(images.labels), size):
            yield _batch(images, slice(start, start + size))

    def loss(self, outputs: "Tensor", batch: Batch) -> "Tensor":
        """Mean cross-entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(last(outputs), batch.y)

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:
        """Accuracy: the fraction of images whose predicted class is correct."""
        right = last(outputs).argmax(-1) == batch.y
        return {"accuracy": right.float().mean().item()}

    @functools.cached_property
    def _images(self) -> dict[str, Images]:
        """The images for "train", "validation" and "test"."""
        train, test = load_images(self.dataset, self.root)
        order = permutation() if self.permute else slice(None)
        first, rest = slice(self.validation), slice(self.validation, None)
        return {
            "train": Images(train.pixels[rest, order], train.labels[rest]),
            "validation": Images(train.pixels[first, order], train.labels[first]),
            "test": Images(test.pixels[:, order], test.labels),
        }


def permutation() -> "Tensor":
    """The order of the pixels in permuted MNIST."""
    import numpy as np
    import torch

    # The usual permutation was drawn with NumPy's legacy generator. NumPy promises that
    # this generator will always draw the same numbers.
    random = np.random.RandomState(PERMUTATION_SEED)
    return torch.from_numpy(random.permutation(784))


def _batch(images: Images, rows: "Tensor | slice") -> Batch:
    pixels = images.pixels[rows].float() / 255
    return Batch(pixels.T.contiguous()[..., None], images.labels[rows])


def load_images(name: str, root: str | Path | None = None) -> tuple[Images, Images]:
    """The training and the test images of a dataset.

    Args:
        name: "mnist" or "fashion-mnist".
        root: a folder that may contain the data files; see `get_data`.

    Returns:
        60,000 training images and 10,000 test images.
    """
    import torch

    _, contents = find_data(name, root, option="root")
    arrays = [torch.frombuffer(bytearray(c), dtype=torch.uint8) for c in contents]
    train_pixels, train_labels, test_pixels, test_labels = arrays
    # A file of images begins with a header of 16 bytes, and a file of labels with one
    # of 8 bytes. Skip the headers: they hold the type and the shape, which are known,
    # since the SHA-256 of each file is right.
    return (
        Images(train_pixels[16:].view(-1, 784), train_labels[8:].long()),
        Images(test_pixels[16:].view(-1, 784), test_labels[8:].long()),
    )
