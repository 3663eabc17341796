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

# as in bytes.c: the size of the span after the last
_END = -1


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

    __slots__ = ("alias", "bytes", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        # the memory must outlive an assignment to `tensor.data`, for C reads it
        self.alias = tensor.detach()
        size = tensor.nbytes
        self.bytes = ctypes.string_at(self.alias.data_ptr(), size) if size else b""


class Snapshot:
    """Copies of several tensors, which are compared in one call.

    Args:
        copies: what the tensors were.
        compare: `same_bytes` in C; None to compare without it.
    """

    __slots__ = ("_compare", "_facts", "_spans", "_where", "copies", "tensors")

    def __init__(self, copies: Sequence[Copy], compare: Any) -> None:
        self.copies = tuple(copies)
        self.tensors = tuple(copy.tensor for copy in copies)
        # methods looked up once: this is most of what reading a small weight costs.
        # Strides and size fix the shape of a block without gaps
        self._facts = tuple(
            (getattr(copy.tensor, name), getattr(copy.alias, name)())
            for name in ("data_ptr", "stride", "numel", "is_conj")
            for copy in copies
            if name != "is_conj" or copy.alias.is_complex()
        )
        spans = [
            _Span(copy.alias.data_ptr(), _address(copy.bytes), len(copy.bytes))
            for copy in copies
        ]
        self._spans = (_Span * (len(spans) + 1))(*spans, _Span(None, None, _END))
        self._where = ctypes.addressof(self._spans)
        self._compare = compare or _compare_in_python

    def unchanged(self) -> bool:
        """Whether every tensor has its old shape, and every byte its old value."""
        # an assignment to `tensor.data` may leave the memory and change the shape
        for ask, answer in self._facts:
            if ask() != answer:
                return False
        return bool(self._compare(self._where))


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


def _compare_in_python(where: int) -> bool:
    """What `same_bytes` in C does."""
    while (span := _Span.from_address(where)).size != _END:
        live, copy = (
            ctypes.string_at(p or 0, span.size) for p in (span.live, span.copy)
        )
        if live != copy:
            return False
        where += ctypes.sizeof(_Span)
    return True
