"""Memory of tensors on the CPU: reusing it, and telling whether it has changed.

For batches of small matrices, getting fresh pages takes about as long as the
arithmetic; at n = 1024 it takes a fifth as long. Torch caches memory on accelerators,
but not on the CPU.

`recycled` returns a tensor that lives as long as anybody refers to it. Its memory, here
called a piece, is used again afterwards.

All threads share the pieces. A call takes all of them out of the list while it looks
for one that is free, so nobody else can find that piece: neither another thread, nor a
signal handler, a finalizer or a mode of torch that calls this library in the middle of
that call.

`unchanged` tells whether tensors are as they were, down to the last bit. Torch counts
the writes that it makes, but it does not see a write through `.data`, a numpy view or
another process. Looking at every byte finds all such writes.
"""

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from isometry._backend.constants import MOST_AXES
from isometry._backend.library import c_library, torch_library
from isometry._torch import dispatch_modes, offset_of_tensor, storage_owners

# a function that tells whether tensors are still what they were
UnchangedCheck = Callable[[], bool]

# The types whose tensors have memory. Wrapper subclasses (sharded, fake and logging
# tensors) have no memory of their own.
PLAIN = (Tensor, torch.nn.Parameter)

# The least bytes of a piece, since malloc itself reuses the pages of smaller tensors;
# and the most bytes of all pieces, 256 MB.
_SMALLEST, _MOST_BYTES = 2**19, 2**28

# The most pieces that `recycled` remembers, in use or not. If sequences have another
# length in every training step, no piece ever fits again, and without a limit the list
# would grow.
_MOST_PIECES = 16

# the functions of torch that bytes.c calls, in the order of its `torch_api`
_FUNCTIONS = ("get_data_ptr", "get_dtype", "get_dim", "get_sizes", "get_strides")
_NOTHING = bytearray()


# holds one list of all pieces, which a call takes out and puts back as a whole
_shelf: list[list[Any]] = []


def _may_keep(like: Tensor) -> bool:
    """Whether a new tensor like this one would have real memory on the CPU.

    A wrapper subclass has none, and a dispatch mode may return a fake tensor.
    """
    return like.device.type == "cpu" and type(like) in PLAIN and not dispatch_modes()


def recycled(shape: Sequence[int], like: Tensor) -> Tensor:
    """An empty tensor, in memory that an earlier tensor of the same size has released.

    If no such memory is kept, or somebody still refers to it, the memory is fresh. A
    graph may keep the tensor as long as it likes. A training step that asks for the
    same sizes as the one before gets the same pages again.
    """
    size = math.prod(shape) * like.element_size()
    if not _SMALLEST <= size <= _MOST_BYTES or not _may_keep(like):
        return like.new_empty(shape)
    pieces = _take_pieces()
    try:
        for i in range(len(pieces)):
            if len(pieces[i]) == size and _is_free(pieces, i):
                pieces.append(pieces.pop(i))
                tensor: Any = like.new_empty(0)
                return tensor.set_(pieces[-1], 0, tuple(shape))
        fresh = like.new_empty(shape)
        pieces.append(fresh.untyped_storage())
        return fresh
    finally:
        # Other threads may have put pieces back in the meantime. Their pieces go to the
        # front: the first pieces are dropped first, and the piece just used is at the
        # end.
        if _shelf:
            pieces[:0] = _take_pieces()
        while len(pieces) > _MOST_PIECES or sum(map(len, pieces)) > _MOST_BYTES:
            del pieces[0]
        _shelf.append(pieces)


def _take_pieces() -> list[Any]:
    """Take all pieces; the caller puts them back."""
    pieces: list[Any] = []
    while _shelf:
        try:
            pieces += _shelf.pop()
        # another thread has taken the last list
        except IndexError:
            break
    return pieces


def _is_free(pieces: list[Any], i: int) -> bool:
    """Whether this list alone refers to its i-th storage."""
    # the list itself is one owner in C++
    if storage_owners(pieces[i]) > 1:
        return False
    # Somebody may also refer to the Python object in our list. Torch counts that object
    # as one owner, so the references to it are counted here.
    if _references(pieces, i) > _ONE_REFERENCE:
        return False
    # another process may read shared memory, as a training process reads the batches
    # that the workers of its DataLoader have made
    return not pieces[i].is_shared()


def _references(objects: list[Any], i: int) -> int:
    """Number of Python references to the i-th object; this call makes some of them."""
    return sys.getrefcount(objects[i])


_ONE_REFERENCE = _references([object()], 0)


def release_memory() -> None:
    """Give back the memory that is kept between calls on the CPU.

    The exponential and its gradient, the recurrent layers and the optimizers keep up to
    256 MB for intermediate results of their next call. All threads share that memory.
    Memory that a running call or a graph still uses is not touched. You never have to
    call this.
    """
    _shelf.clear()


def is_block(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor fill one block of memory that we can read."""
    return (
        type(tensor) in PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.ndim <= MOST_AXES
        and (tensor.is_contiguous() or _dense(tensor))
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


def unchanged(*tensors: Tensor, after: UnchangedCheck | None = None) -> UnchangedCheck:
    """A function that tells later whether these tensors are still what they are now.

    The function returns False if any byte, the address, the shape, the strides or the
    dtype of a tensor has changed. It keeps the tensors alive.

    Args:
        tensors: tensors for which `is_block` is true.
        after: an earlier function of this kind, which the new one calls first.
    """
    watch = _watch()
    if watch is None:
        return _both(after, _unchanged_in_python(tensors))
    numbers = [t for t in tensors if t.is_complex()]
    if numbers:
        # torch conjugates lazily, and its C interface does not show the conjugate bit
        same = watch(None, _NOTHING, *tensors)
        return _both(after, lambda: not any(Z.is_conj() for Z in numbers) and same())
    if isinstance(after, BuiltinFunctionType):
        # bytes.c has bound the builtin `after` to the pair (memory, arguments)
        memory: Any = after.__self__
        return watch(after, memory[0], *tensors)
    return _both(after, watch(None, _NOTHING, *tensors))


def _both(first: UnchangedCheck | None, second: UnchangedCheck) -> UnchangedCheck:
    return second if first is None else lambda: first() and second()


def _dense(tensor: Tensor) -> bool:
    """Whether the entries fill a block of memory without gaps, in any order."""
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != size:
            return False
        size *= length
    return True


def _unchanged_in_python(tensors: tuple[Tensor, ...]) -> UnchangedCheck:
    """The function that `unchanged` returns without C, several times as slow."""
    facts, contents = [*map(_facts, tensors)], [*map(_bytes, tensors)]

    def same() -> bool:
        # The bytes are compared last. A tensor with new memory may be on another
        # device, where its bytes cannot be read.
        return facts == [*map(_facts, tensors)] and contents == [*map(_bytes, tensors)]

    return same


def _facts(tensor: Tensor) -> tuple[object, ...]:
    block = (tensor.data_ptr(), tensor.shape, tensor.stride())
    return *block, tensor.dtype, tensor.is_conj()


def _bytes(tensor: Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


# Python functions whose addresses C keeps, so they must never be freed
_callbacks: list[Any] = []


def _element_size(get_dtype: Any, offset: int) -> Any:
    """A function that tells C the size of a dtype; torch 2.7 has no such C function.

    C calls this function once for each new tensor that it watches.
    """
    sizes, code = {}, ctypes.c_int32()
    # the dtypes of weights and of the tensors from which they are computed
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    ):
        tensor = torch.empty(0, dtype=dtype, device="cpu")
        get_dtype(ctypes.c_void_p(id(tensor) + offset), ctypes.byref(code))
        sizes[code.value] = dtype.itemsize
    prototype = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.c_int32)
    _callbacks.append(prototype(sizes.__getitem__))
    return _callbacks[-1]


@cache
def _watch() -> Callable[..., UnchangedCheck] | None:
    """The C function `watch` on which `unchanged` relies; None without C."""
    c, offset = c_library(), offset_of_tensor()
    if c is None or offset is None:
        return None
    library = torch_library()
    try:
        functions = [getattr(library, f"aoti_torch_{f}") for f in _FUNCTIONS]
    except AttributeError:
        return None
    functions.append(
        getattr(library, "aoti_torch_dtype_element_size", None)
        or _element_size(library.aoti_torch_get_dtype, offset)
    )
    pointers = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_long)
    connect = prototype(("isometry_connect", c))
    return connect((ctypes.c_void_p * len(pointers))(*pointers), offset)
