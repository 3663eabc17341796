"""The images of MNIST and of what took its format."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from isometry.lab.data._catalogue import CATALOGUE
from isometry.lab.data._files import find, read
from isometry.lab.data._get import get
from isometry.lab.data._idx import parse_idx

if TYPE_CHECKING:
    from torch import Tensor


class Images(NamedTuple):
    """Images (number, pixels) of bytes, and their classes (number,)."""

    pixels: "Tensor"
    labels: "Tensor"


def load_images(name: str, folder: str | Path | None = None) -> tuple[Images, Images]:
    """The training and the test images of a dataset.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: with its files; if None, they are found or fetched by `get`.

    Returns:
        60,000 and 10,000 of them.
    """
    place = get(name, folder)
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
