"""Memory for intermediate results, kept between calls on the CPU.

Fresh pages cost about as much as the arithmetic of batches of small matrices, and a
fifth of it at n = 1024. Torch caches memory on accelerators, but not on the CPU.
"""

import math
import threading

import torch
from torch import Tensor

# below, malloc has pages at hand; above, they are a small part of the work
_SMALLEST, _LARGEST = 2**19, 2**26

_local = threading.local()


def scratch(like: Tensor, slots: int) -> Tensor:
    """Room of shape (slots, *like.shape), good until this thread asks again.

    It must not leave the function that asked for it, nor be shown to autograd.
    """
    shape = (slots, *like.shape)
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not _SMALLEST <= size <= _LARGEST:
        return like.new_empty(shape)
    room: Tensor | None = getattr(_local, "room", None)
    if room is None or len(room) < size:
        # a tensor of inference mode could not be written to outside of it
        with torch.inference_mode(mode=False):
            room = _local.room = torch.empty(size, dtype=torch.uint8, device="cpu")
    return room[:size].view(like.dtype).view(shape)


def release() -> None:
    """Give this thread's memory back."""
    _local.room = None
