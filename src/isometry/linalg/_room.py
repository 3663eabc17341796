"""Memory for what a step computes, kept between steps on the CPU.

Fresh pages cost as much as a product of 4096 x 64 by 64 x 64: a half of the step.
"""

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

# below, malloc has pages at hand; above, they are a small part of the work
_SMALLEST, _LARGEST = 2**18, 2**26

_local = threading.local()


def room(name: str, shape: Sequence[int], like: Tensor) -> Tensor:
    """An empty tensor, good until this thread asks for one of that name again."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not _SMALLEST <= size <= _LARGEST:
        return like.new_empty(shape)
    kept: dict[str, Tensor] = _local.__dict__.setdefault("kept", {})
    if name not in kept or len(kept[name]) < size:
        # a tensor of inference mode could not be written to outside of it
        with torch.inference_mode(mode=False):
            kept[name] = torch.empty(size, dtype=torch.uint8, device="cpu")
    return kept[name][:size].view(like.dtype).view(*shape)
