"""Memory for intermediate results, kept between calls on the CPU.

Fresh pages cost about as much as the arithmetic of batches of small matrices, and a
fifth of it at n = 1024. Torch caches memory on accelerators, but not on the CPU.
"""

import importlib
import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# below, malloc has pages at hand; above, they are a small part of the work
_SMALLEST, _LARGEST = 2**19, 2**26

# how many pieces `recycled` remembers, used or not, and how many bytes: lengths that
# differ from step to step find none of theirs, and must not fill the memory
_MOST_KEPT, _MOST_BYTES = 8, 2**30

# and how many views of its one piece `scratch` does
_MOST_VIEWS = 16

_local = threading.local()

# torch has no public way to count references
_use_count = importlib.import_module("torch._C")._storage_Use_Count  # noqa: SLF001


def scratch(like: Tensor, slots: int) -> Tensor:
    """Room of shape (slots, *like.shape), good until this thread asks again.

    It must not leave the function that asked for it, nor be shown to autograd.
    """
    shape = (slots, *like.shape)
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not _SMALLEST <= size <= _LARGEST:
        return like.new_empty(shape)
    # a training step asks for the same views again and again: to make them takes longer
    # than to find them
    views: dict[Any, Tensor] = _local.__dict__.setdefault("views", {})
    view = views.get((shape, like.dtype))
    if view is not None:
        return view
    room: Tensor | None = getattr(_local, "room", None)
    # a tensor of inference mode could not be written to outside of it
    with torch.inference_mode(mode=False):
        if room is None or len(room) < size:
            room = _local.room = torch.empty(size, dtype=torch.uint8, device="cpu")
            views.clear()
        elif len(views) >= _MOST_VIEWS:
            views.clear()
        view = room[:size].view(like.dtype).view(shape)
    views[shape, like.dtype] = view
    return view


def recycled(shape: Sequence[int], like: Tensor) -> Tensor:
    """Memory that a graph may keep: that of an earlier one, if nothing refers to it.

    A training step asks for the same sizes again and again, and gets the same pages.
    """
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < _SMALLEST:
        return like.new_empty(shape)
    kept: list[Any] = _local.__dict__.setdefault("kept", [])
    for i in range(len(kept)):
        if len(kept[i]) == size and _is_free(kept, i):
            kept.append(kept.pop(i))
            tensor: Any = like.new_empty(0)
            return tensor.set_(kept[-1], 0, tuple(shape))
    fresh = like.new_empty(shape)
    kept.append(fresh.untyped_storage())
    while len(kept) > _MOST_KEPT or sum(map(len, kept)) > _MOST_BYTES:
        del kept[0]
    return fresh


def _is_free(kept: list[Any], i: int) -> bool:
    """Whether this list alone refers to its i-th storage."""
    # one reference is ours
    if _use_count(kept[i]._cdata) > 1:  # noqa: SLF001 - as above
        return False
    # who asks torch for the storage itself gets our object, which it counts once
    if _references(kept, i) > _ONE_REFERENCE:
        return False
    # another process may read it, as that of a DataLoader reads what its workers made
    return not kept[i].is_shared()


def _references(objects: list[Any], i: int) -> int:
    """To the i-th, from Python, and those that asking takes."""
    return sys.getrefcount(objects[i])


_ONE_REFERENCE = _references([object()], 0)


def release() -> None:
    """Give this thread's memory back."""
    _local.room = None
    _local.views = {}
    _local.kept = []
