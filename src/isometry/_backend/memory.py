"""Memory of CPU tensors: what C can read, what has changed, and what can be reused.

`address` and `is_block` tell whether C can read a tensor, and `refusal` tells why not.

`watch_bytes` makes a check that tells whether tensors have changed, down to the last
bit. Torch counts its own writes, but it does not see a write through `.data`, a numpy
view or another process. The check reads every byte, so it finds these writes too.

Getting fresh pages from the operating system is slow, and torch caches memory only on
accelerators. So `recycled` reuses memory on the CPU. It returns an uninitialized tensor
and, unless the tensor is small or huge, remembers its storage. Once nothing else refers
to the storage, a later call of `recycled` may use it again. A temporary tensor, which
its caller drops before returning, may also use a storage that is larger than the
tensor.

All threads share the storages in `_pool`. A call of `recycled` takes all of them out
while it searches, so that no other call can find the same free storage. Another call
may begin in the meantime: in another thread, or in a signal handler, a finalizer or one
of torch's modes that runs during the search.
"""

import math
import sys
from collections.abc import Sequence
from operator import attrgetter
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from isometry._backend.constants import MOST_AXES
from isometry._backend.watch import ContentsCheck, c_watch, watch_in_python
from isometry._torch import dispatch_modes, storage_owners

# The only types of tensors that C may read. Wrapper subclasses, such as sharded, fake
# and logging tensors, have no memory of their own.
PLAIN = (Tensor, torch.nn.Parameter)

# Sizes in bytes. Storages smaller than 512 KB are not recycled, since malloc itself
# reuses their pages. All storages that `recycled` remembers have at most 256 MB
# together.
_SMALLEST, _MOST_BYTES = 2**19, 2**28

# The largest number of storages that `recycled` remembers, whether in use or not. If
# sequences have a different length in every training step, no storage ever fits again,
# and without a limit the list would grow.
_MOST_STORAGES = 16

_NOTHING = bytearray()
_number_of_bytes = attrgetter("nbytes")

# The storages that `recycled` remembers, in a list inside this list. The pool is empty
# at first, after `release_memory()`, and while a call of `recycled` has taken the inner
# list out. Calls that overlap may leave several lists, which `_take_storages` joins.
_pool: list[list[Any]] = []


def address(X: Any, dtype: torch.dtype) -> int | None:
    """The address of a tensor's numbers; None if C cannot read them as an array.

    C expects numbers of this dtype, in the order of a contiguous tensor.
    """
    if (
        type(X) in PLAIN
        and X.dtype is dtype
        and X.is_cpu
        and X.is_contiguous()
        # torch negates lazily: a tensor with the negative bit set still holds the old
        # signs in memory
        and not X.is_neg()
    ):
        pointer = X.data_ptr()
        # A tensor without memory has the address 0. FSDP leaves such tensors behind
        # when it frees storages, and some of torch's tensors of zeros have no memory
        # either. The address 0 is accepted only for an empty tensor, because C reads
        # nothing from it.
        if pointer or X.numel() == 0:
            return pointer
    return None


def refusal(name: str, X: Any, size: int, dtype: torch.dtype) -> Exception:
    """The error that says why C cannot read `size` numbers at the address of `X`."""
    if type(X) not in PLAIN:
        return TypeError(
            f"`{name}` must be a plain torch.Tensor; got {type(X).__name__}. C cannot "
            f"read a tensor without memory of its own."
        )
    if X.dtype is not dtype:
        return TypeError(f"`{name}` must be of {dtype}; got {X.dtype}.")
    if X.numel() != size:
        return ValueError(f"`{name}` must have {size} numbers; got {X.numel()}.")
    return ValueError(
        f"`{name}` must be contiguous memory on the CPU, without a lazy negation; got "
        f"strides {X.stride()} on {X.device}, is_neg={X.is_neg()}."
    )


def is_block(tensor: Tensor) -> bool:
    """Whether the entries of a tensor fill one block of bytes that C can read.

    Unlike in `address`, neither the order of the axes nor the dtype matters.
    """
    return (
        type(tensor) in PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        # several quantized numbers may share a byte, so `nbytes` may be too large
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.ndim <= MOST_AXES
        and (tensor.is_contiguous() or _dense(tensor))
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


def _dense(tensor: Tensor) -> bool:
    """Whether the entries fill a block of memory without gaps, in any order."""
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != size:
            return False
        size *= length
    return True


def watch_bytes(*tensors: Tensor, after: ContentsCheck | None = None) -> ContentsCheck:
    """A function that returns True as long as these tensors are unchanged.

    The function returns False if any byte, the address, the shape, the strides or the
    dtype of a tensor has changed since this call. It keeps the tensors alive.

    Args:
        tensors: tensors for which `is_block` is true.
        after: the result of an earlier call, or None. The new function first checks the
            tensors of that call, and then its own.
    """
    watch = c_watch()
    if watch is None:
        return _both(after, watch_in_python(tensors))
    sizes = map(_number_of_bytes, tensors)
    if any(t.is_complex() for t in tensors):
        # torch conjugates lazily, and its C interface does not show the conjugate bit
        same = watch(None, _NOTHING, *tensors, *sizes)
        return _both(after, lambda: not any(t.is_conj() for t in tensors) and same())
    if isinstance(after, BuiltinFunctionType):
        # `after` is a builtin of bytes.c, bound to the pair (memory, arguments)
        memory: Any = after.__self__
        return watch(after, memory[0], *tensors, *sizes)
    return _both(after, watch(None, _NOTHING, *tensors, *sizes))


def _both(first: ContentsCheck | None, second: ContentsCheck) -> ContentsCheck:
    return second if first is None else lambda: first() and second()


def _has_memory(like: Tensor) -> bool:
    """Whether a new tensor like this one would have real memory on the CPU.

    A wrapper subclass has no memory, and a dispatch mode may return a fake tensor.
    """
    return like.device.type == "cpu" and type(like) in PLAIN and not dispatch_modes()


def recycled(shape: Sequence[int], like: Tensor, *, temporary: bool = False) -> Tensor:
    """An uninitialized tensor, if possible in the memory of an earlier tensor.

    Memory is reused only if nothing refers to it any more. So an autograd graph may
    hold the tensor for any length of time. Unless `temporary`, the memory must also
    have exactly the size of the tensor. A training step with the same sizes as the step
    before gets the same pages.

    Args:
        shape: shape of the new tensor.
        like: gives the dtype and the device.
        temporary: whether the caller drops the tensor before returning. If so, the
            memory may also be larger than the tensor. And if every free storage is too
            small, all free storages are dropped, and a new one takes their place.
    """
    size = math.prod(shape) * like.element_size()
    if not _SMALLEST <= size <= _MOST_BYTES or not _has_memory(like):
        return like.new_empty(shape)
    storages = _take_storages()
    try:
        for i in range(len(storages)):
            length = len(storages[i])
            fits = length >= size if temporary else length == size
            if fits and _is_free(storages, i):
                storages.append(storages.pop(i))
                tensor: Any = like.new_empty(0)
                return tensor.set_(storages[-1], 0, tuple(shape))
        for i in reversed(range(len(storages))):
            if temporary and len(storages[i]) < size and _is_free(storages, i):
                del storages[i]
        fresh = like.new_empty(shape)
        storages.append(fresh.untyped_storage())
        return fresh
    finally:
        # Other threads may have put storages back in the meantime. These go to the
        # front, where storages are dropped first; the storage just used is at the end.
        storages[:0] = _take_storages()
        while len(storages) > _MOST_STORAGES or sum(map(len, storages)) > _MOST_BYTES:
            del storages[0]
        _pool.append(storages)


def _take_storages() -> list[Any]:
    """Take all storages out of `_pool`; the caller puts them back."""
    storages: list[Any] = []
    while _pool:
        try:
            storages += _pool.pop()
        # another thread has taken the last list
        except IndexError:
            break
    return storages


def _is_free(storages: list[Any], i: int) -> bool:
    """Whether only this list refers to its i-th storage."""
    # the Python object in our list is one owner in C++
    if storage_owners(storages[i]) > 1:
        return False
    # other code may refer to the same Python object, which is still one owner in C++
    if _references(storages, i) > _ONE_REFERENCE:
        return False
    # Another process may still read the storage if it is shared. For example, a worker
    # of a DataLoader shares the storages of its batches with the training process.
    return not storages[i].is_shared()


def _references(objects: list[Any], i: int) -> int:
    """Number of Python references to the i-th object, including this call's own."""
    return sys.getrefcount(objects[i])


# what `_references` returns if only the list refers to the object
_ONE_REFERENCE = _references([object()], 0)


def release_memory() -> None:
    """Free the memory that the library keeps on the CPU between calls.

    The exponential and its gradient, the recurrent layers and the optimizers keep up to
    256 MB for the intermediate results of their next call. All threads share this
    memory. Memory that a running call or a graph still uses is not freed. It is never
    necessary to call this function.
    """
    _pool.clear()
