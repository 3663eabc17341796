"""Pixel-by-pixel MNIST, permuted or not."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from isometry.lab._data.images import Images, load_images
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


# seed of the permutation that the literature shares, drawn by NumPy's `RandomState`
PERMUTATION_SEED = 92916


@dataclass(frozen=True)
class MnistTask(AbstractTask):
    """Name the digit whose pixels come one at a time.

    Pixels are divided by 255, and not normalized otherwise. The answer is due after the
    last of 784. The best constant answer has the cross-entropy ln 10, nearly.

    Args:
        permute: whether the pixels come in the fixed random order of the literature.
        dataset: "mnist", or "fashion-mnist" in its place.
        validation: the first training images, which are kept for validation. The paper
            keeps none, trains on all 60,000 and reports the best test accuracy.
        root: folder with the files; found or fetched if None.

    References:
        [LM19] section 5.2; [WPH16] for the permutation and the validation images.
    """

    name: ClassVar[str] = "mnist"
    last_only: ClassVar[bool] = True
    metric: ClassVar[str] = "accuracy"
    neutral: ClassVar[frozenset[str]] = frozenset({"root"})
    selecting: ClassVar[frozenset[str]] = frozenset({"validation"})

    permute: bool = False
    dataset: Literal["mnist", "fashion-mnist"] = "mnist"
    validation: int = 5000
    root: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 60000:
            raise ValueError(
                f"`validation` must be in [0, 60000), to leave images to train on; got "
                f"{self.validation}. The literature has 0, 5000 and 10000."
            )

    @property
    def recipe(self) -> str:
        """The networks are trained with other rates on permuted pixels."""
        return "pmnist" if self.permute else "mnist"

    def title(self) -> tuple[str, str, frozenset[str]]:
        """A task for each data set and order of the pixels."""
        name = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}[self.dataset]
        key, name = (
            (f"p{self.dataset}", f"permuted {name}")
            if self.permute
            else (self.dataset, name)
        )
        return key, f"Pixel by pixel, {name}", frozenset({"permute", "dataset"})

    @property
    def input_size(self) -> int:
        """A pixel."""
        return 1

    @property
    def output_size(self) -> int:
        """The classes."""
        return 10

    @property
    def baseline(self) -> float:
        """Classes are equally frequent, nearly."""
        return math.log(10)

    def epoch(self, size: int) -> int:
        """Batches in one pass."""
        return batches_per_epoch(len(self._train.labels), size)

    def batch(
        self, step: int, *, size: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> Batch:
        """Pixels (784, batch, 1) and classes (batch,)."""
        import torch

        rows = training_rows(
            len(self._train.labels),
            step,
            size=size,
            seed=seed,
            rank=rank,
            ranks=ranks,
        )
        return _batch(self._train, torch.from_numpy(rows))

    def evaluation(self, split: Split, size: int) -> Iterator[Batch]:
        """The validation or the test images, in their order."""
        images = {"validation": self._validation, "test": self._test}[split]
        for start in range(0, len(images.labels), size):
            yield _batch(images, slice(start, start + size))

    def loss(self, outputs: "Tensor", batch: Batch) -> "Tensor":
        """Mean cross-entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(last(outputs), batch.y)

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:
        """Fraction of the images that are named rightly."""
        right = last(outputs).argmax(-1) == batch.y
        return {"accuracy": right.float().mean().item()}

    @functools.cached_property
    def _images(self) -> tuple[Images, Images]:
        if self.root is not None and not Path(self.root).is_dir():
            raise ValueError(
                f"`root` must be a folder; got {self.root}. Leave it out to fetch "
                f"{self.dataset}."
            )
        train, test = load_images(self.dataset, self.root)
        if not self.permute:
            return train, test
        order = permutation()
        return (
            Images(train.pixels[:, order], train.labels),
            Images(test.pixels[:, order], test.labels),
        )

    @property
    def _train(self) -> Images:
        pixels, labels = self._images[0]
        return Images(pixels[self.validation :], labels[self.validation :])

    @property
    def _validation(self) -> Images:
        pixels, labels = self._images[0]
        return Images(pixels[: self.validation], labels[: self.validation])

    @property
    def _test(self) -> Images:
        return self._images[1]


def permutation() -> "Tensor":
    """The order of the pixels in permuted MNIST."""
    import numpy as np
    import torch

    # the old generator: NumPy promises to keep its numbers, and the literature uses it
    random = np.random.RandomState(PERMUTATION_SEED)
    return torch.from_numpy(random.permutation(784))


def _batch(images: Images, rows: "Tensor | slice") -> Batch:
    pixels = images.pixels[rows].float() / 255
    return Batch(pixels.T.contiguous()[..., None], images.labels[rows])
