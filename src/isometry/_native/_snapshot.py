"""Private copies of tensors, to tell whether anybody has written to them.

torch counts the writes that it makes, but it does not see a write through `.data`, a
numpy view or another process. Comparing every byte sees all of them.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


class _Span(ctypes.Structure):
    """As in bytes.c."""

    _fields_ = (
        ("live", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
        ("size", ctypes.c_long),
    )


class Copy:
    """A tensor as it was: where its numbers lie, and their bytes.

    Args:
        tensor: a tensor for which `copyable` is true.
    """

    __slots__ = ("alias", "bytes", "place", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        pointer, size = tensor.data_ptr(), tensor.nbytes
        self.tensor = tensor
        # the memory must outlive an assignment to `tensor.data`, for C reads it
        self.alias = tensor.detach()
        self.place = (tensor, pointer, tensor.shape, tensor.stride())
        self.bytes = ctypes.string_at(pointer, size) if size else b""


class Snapshot:
    """Copies of several tensors, which are compared in one call.

    Args:
        copies: what the tensors were.
        compare: `same_bytes` in C; None to compare without it.
    """

    __slots__ = ("_arguments", "_compare", "_places", "_spans", "copies", "tensors")

    def __init__(self, copies: Sequence[Copy], compare: Any) -> None:
        self.copies = tuple(copies)
        self.tensors = tuple(copy.tensor for copy in copies)
        self._places = tuple(copy.place for copy in copies)
        self._spans = (_Span * len(copies))(
            *(_Span(c.place[1], _address(c.bytes), len(c.bytes)) for c in copies)
        )
        self._compare = compare or _compare_in_python
        self._arguments = (ctypes.addressof(self._spans), len(copies))

    def unchanged(self) -> bool:
        """Whether every tensor has its old shape, and every byte its old value."""
        for tensor, pointer, shape, stride in self._places:
            # an assignment to `tensor.data` may leave the memory and change its shape
            if (
                tensor.data_ptr() != pointer
                or tensor.stride() != stride
                or tensor.shape != shape
                or tensor.is_conj()
            ):
                return False
        return self._compare(*self._arguments)


def copyable(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor are one block of memory that we can read."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and _dense(tensor)
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


def _dense(tensor: Tensor) -> bool:
    """Whether the entries fill a block without gaps, in whatever order."""
    if tensor.numel() == 0:
        return True
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != size:
            return False
        size *= length
    return True


def _address(value: bytes) -> int | None:
    return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value


def _compare_in_python(spans: int, count: int) -> bool:
    """What `same_bytes` in C does."""
    array = (_Span * count).from_address(spans)
    return all(
        ctypes.string_at(span.live, span.size) == ctypes.string_at(span.copy, span.size)
        for span in array
        if span.size
    )
