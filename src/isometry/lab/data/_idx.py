"""The idx format of MNIST."""

import math
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# third byte of the magic number; the only type that these data have
UNSIGNED_BYTE = 0x08


def parse_idx(content: bytes, ndim: int, *, name: str) -> "Tensor":
    """An array of bytes in the idx format.

    Two zeros, the type, the number of axes, their lengths as big-endian 32-bit
    numbers, then the entries.

    Args:
        content: of the whole file.
        ndim: how many axes it must have.
        name: of the file, for the message.

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
    # torch refuses to look into a buffer of no bytes
    flat = torch.frombuffer(entries, dtype=torch.uint8) if entries else torch.empty(0)
    return flat.to(torch.uint8).reshape(shape)
