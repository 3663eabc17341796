"""Pixel-by-pixel MNIST, permuted or not."""

import functools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from isometry.lab._data.catalogue import CATALOGUE, find, read
from isometry.lab._data.get import get_data
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
    """Images (number, pixels) of bytes, and their classes (number,)."""

    pixels: "Tensor"
    labels: "Tensor"


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


def load_images(name: str, folder: str | Path | None = None) -> tuple[Images, Images]:
    """The training and the test images of a dataset.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: with its files; if None, they are found or fetched by `get_data`.

    Returns:
        60,000 and 10,000 of them.
    """
    place = get_data(name, folder)
    arrays: list[Tensor] = []
    for file in CATALOGUE[name].files:
        path = find(file, place)
        if path is None:
            raise FileNotFoundError(
                f"`{place}` must keep {file.name} while it is read; got nothing. Run "
                f"`isometry data get {name}` again."
            )
        ndim = 3 if "images" in file.name else 1
        arrays.append(parse_idx(read(file, path), ndim, name=file.name))
    train_pixels, train_labels, test_pixels, test_labels = arrays
    return (
        Images(train_pixels.flatten(1), train_labels.long()),
        Images(test_pixels.flatten(1), test_labels.long()),
    )


# third byte of the magic number: unsigned bytes, the only type in these files
UNSIGNED_BYTE = 0x08


def parse_idx(content: bytes, ndim: int, *, name: str) -> "Tensor":
    """An array of bytes in the idx format.

    Two zeros, the type, the number of axes, their lengths as big-endian 32-bit
    numbers, then the entries.

    Args:
        content: content of the whole file.
        ndim: how many axes it must have.
        name: name of the file, for the message.

    Returns:
        The entries, uint8, with those axes.

    Raises:
        ValueError: if the header is another, or the file too short or too long.
    """
    import torch

    header = 4 + 4 * ndim
    magic = bytes((0, 0, UNSIGNED_BYTE, ndim))
    if len(content) < header or content[:4] != magic:
        raise ValueError(
            f"`{name}` must begin with {magic.hex()} and {ndim} lengths; got "
            f"{content[:4].hex()!r} and {len(content)} bytes. Fetch it again with "
            f"`isometry data get`."
        )
    shape = struct.unpack(f">{ndim}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise ValueError(
            f"`{name}` must have {header} + {math.prod(shape)} bytes for {shape}; got "
            f"{len(content)}. Fetch it again with `isometry data get`."
        )
    entries = bytearray(content[header:])
    # torch refuses an empty buffer
    flat = torch.frombuffer(entries, dtype=torch.uint8) if entries else torch.empty(0)
    return flat.to(torch.uint8).reshape(shape)
