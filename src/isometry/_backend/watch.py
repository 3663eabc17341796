"""Functions that tell whether tensors have changed, in C (bytes.c) and in Python.

`watch_bytes` in memory.py chooses between the two. The C library is not linked to
torch. So Python looks up the functions of torch's C interface that the library calls,
and passes their addresses to it.
"""

import ctypes
from collections.abc import Callable
from functools import cache

from torch import Tensor

from isometry._backend.library import c_library, torch_library
from isometry._torch import offset_of_tensor

# a function without arguments that tells whether certain tensors are unchanged
ContentsCheck = Callable[[], bool]

# the functions of torch that bytes.c calls, in the order of `torch_api` in that file
_FUNCTIONS = ("get_data_ptr", "get_dtype", "get_dim", "get_sizes", "get_strides")


def watch_in_python(tensors: tuple[Tensor, ...]) -> ContentsCheck:
    """A function that returns True as long as these tensors are unchanged, in Python.

    `watch_bytes` calls `watch_in_python` only if `c_watch` returns None, because the
    function in C is faster.
    """
    facts = [*map(_facts, tensors)]
    contents = [*map(_bytes, tensors)]

    def same() -> bool:
        # The bytes are compared only if the address is unchanged: a tensor with another
        # address may be on another device, where its bytes cannot be read.
        return facts == [*map(_facts, tensors)] and contents == [*map(_bytes, tensors)]

    return same


def _facts(tensor: Tensor) -> tuple[object, ...]:
    block = (tensor.data_ptr(), tensor.shape, tensor.stride())
    return *block, tensor.dtype, tensor.is_conj()


def _bytes(tensor: Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


@cache
def c_watch() -> Callable[..., ContentsCheck] | None:
    """The C function `watch`, which `watch_bytes` calls; None if it is unavailable."""
    c = c_library()
    offset = offset_of_tensor()
    if c is None or offset is None:
        return None
    library = torch_library()
    try:
        functions = [getattr(library, f"aoti_torch_{f}") for f in _FUNCTIONS]
    except AttributeError:
        return None
    pointers = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_long)
    connect = prototype(("isometry_connect", c))
    return connect((ctypes.c_void_p * len(pointers))(*pointers), offset)
