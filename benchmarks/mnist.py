"""MNIST from the four idx files, checked."""

import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# md5 of the files as they have been distributed since 1998
FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def default_folder() -> Path:
    """The environment variable ISOMETRY_DATA, or a folder beside the checkout."""
    beside = Path(__file__).parents[2] / "shared" / "data" / "mnist"
    return Path(os.environ.get("ISOMETRY_DATA", beside))


def missing(folder: Path) -> list[str]:
    """The files that are not there."""
    return [name for name in FILES if not (folder / name).is_file()]


def read(path: Path) -> Tensor:
    """The array of bytes in an idx file.

    Raises:
        ValueError: if the file is not the one that was distributed.
    """
    packed = path.read_bytes()
    md5 = hashlib.md5(packed, usedforsecurity=False).hexdigest()
    if md5 != FILES[path.name]:
        raise ValueError(
            f"`{path.name}` must have the md5 {FILES[path.name]}; got {md5}. "
            f"Fetch the file again."
        )
    raw = gzip.decompress(packed)
    # two zeros, the type (8: bytes), the number of axes; then their lengths
    _, kind, axes = struct.unpack_from(">HBB", raw)
    assert kind == 8
    shape = struct.unpack_from(f">{axes}I", raw, 4)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    return torch.from_numpy(values.reshape(shape).copy())


def load(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((images, labels) for training, the same for the test), images as rows.

    Pixels are standardized by mean and deviation of those for training.
    """
    images, labels, test_images, test_labels = (read(folder / name) for name in FILES)
    x, test_x = (i.flatten(1).float() / 255 for i in (images, test_images))
    mean, deviation = x.mean(), x.std()
    x, test_x = ((i - mean) / deviation for i in (x, test_x))
    return (x, labels.long()), (test_x, test_labels.long())
