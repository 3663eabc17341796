"""Functions that tell whether tensors have changed, in C (bytes.c) and in Python.

`unchanged` in memory.py chooses between the two. The C library is not linked to torch,
so Python passes it the addresses of the functions that it calls in torch's C interface.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from isometry._backend.library import c_library, torch_library
from isometry._dtypes import WATCHED
from isometry._torch import offset_of_tensor

# a function without arguments that tells whether certain tensors are unchanged
UnchangedCheck = Callable[[], bool]

# The functions of torch that bytes.c calls, in the order of `torch_api` in that file.
# `c_watch` appends one more function, which depends on the version of torch.
_FUNCTIONS = ("get_data_ptr", "get_dtype", "get_dim", "get_sizes", "get_strides")


def watch_in_python(tensors: tuple[Tensor, ...]) -> UnchangedCheck:
    """A function that returns True as long as these tensors are unchanged, in Python.

    `unchanged` uses it if the function in C is not available. It is several times
    slower.
    """
    facts, contents = [*map(_facts, tensors)], [*map(_bytes, tensors)]

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


# Python functions whose addresses C has stored, so they must never be freed
_callbacks: list[Any] = []


def _element_size(get_dtype: Any, offset: int) -> Any:
    """A function that C can call to get the size of a dtype in bytes.

    Its argument is torch's number for the dtype. Torch 2.7 has no such function in its
    C interface. C calls our function once for each new tensor that it watches.
    """
    sizes, code = {}, ctypes.c_int32()
    for dtype in WATCHED:
        tensor = torch.empty(0, dtype=dtype, device="cpu")
        get_dtype(ctypes.c_void_p(id(tensor) + offset), ctypes.byref(code))
        sizes[code.value] = dtype.itemsize
    prototype = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.c_int32)
    _callbacks.append(prototype(sizes.__getitem__))
    return _callbacks[-1]


@cache
def c_watch() -> Callable[..., UnchangedCheck] | None:
    """The C function `watch`, which `unchanged` calls; None if it is unavailable."""
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
