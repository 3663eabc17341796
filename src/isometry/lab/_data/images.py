"""Images in the format of MNIST."""

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from isometry.lab._data.catalogue import CATALOGUE, find, read
from isometry.lab._data.get import get_data

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
