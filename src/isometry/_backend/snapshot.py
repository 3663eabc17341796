"""Whether tensors are as they were, down to the last bit.

torch counts the writes that it makes, but it does not see a write through `.data`, a
numpy view or another process. Looking at every byte sees all of them.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from isometry._backend.library import c_library, torch_library
from isometry._torch import offset_of_tensor

Question = Callable[[], bool]

_PLAIN = (Tensor, torch.nn.Parameter)

# as in bytes.c: the most axes of a tensor, and what C asks torch, in this order
_MOST_AXES = 8
_FUNCTIONS = (
    *("get_data_ptr", "get_dtype", "get_dim", "get_sizes", "get_strides"),
    "dtype_element_size",
)
_NOTHING = bytearray()


def readable(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor are one block of memory that we can read."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.ndim <= _MOST_AXES
        and (tensor.is_contiguous() or _dense(tensor))
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


def unchanged(*tensors: Tensor, after: Question | None = None) -> Question:
    """A question to ask later: are these tensors what they are now?

    The answer is no after any change of a byte, of the memory, the shape, the strides
    or the dtype. The question holds the tensors.

    Args:
        tensors: tensors for which `readable` is true.
        after: a question of this kind that was made earlier, to ask with the new one.
    """
    watch = _watch()
    if watch is None:
        return _both(after, _unchanged_in_python(tensors))
    numbers = [t for t in tensors if t.is_complex()]
    if numbers:
        # torch conjugates lazily, and its C interface does not tell
        same = watch(None, _NOTHING, *tensors)
        return _both(after, lambda: not any(Z.is_conj() for Z in numbers) and same())
    if isinstance(after, BuiltinFunctionType):
        # what a builtin is bound to; see bytes.c
        memory: Any = after.__self__
        return watch(after, memory[0], *tensors)
    return _both(after, watch(None, _NOTHING, *tensors))


def _both(first: Question | None, second: Question) -> Question:
    return second if first is None else lambda: first() and second()


def _dense(tensor: Tensor) -> bool:
    """Whether the entries fill a block without gaps, in whatever order."""
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != size:
            return False
        size *= length
    return True


def _unchanged_in_python(tensors: tuple[Tensor, ...]) -> Question:
    """The question without C, which takes several times as long to answer."""
    facts, contents = [*map(_facts, tensors)], [*map(_bytes, tensors)]

    def same() -> bool:
        # the bytes last: new memory may be on another device
        return facts == [*map(_facts, tensors)] and contents == [*map(_bytes, tensors)]

    return same


def _facts(tensor: Tensor) -> tuple[object, ...]:
    block = (tensor.data_ptr(), tensor.shape, tensor.stride())
    return *block, tensor.dtype, tensor.is_conj()


def _bytes(tensor: Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


@cache
def _watch() -> Callable[..., Question] | None:
    """What makes questions that C answers; None if C cannot answer them here."""
    c, offset = c_library(), offset_of_tensor()
    if c is None or offset is None:
        return None
    try:
        functions = [getattr(torch_library(), f"aoti_torch_{f}") for f in _FUNCTIONS]
    except AttributeError:
        return None
    pointers = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_long)
    connect = prototype(("isometry_connect", c))
    return connect((ctypes.c_void_p * len(pointers))(*pointers), offset)
