"""Two backends, one in torch and one in C; `backend_for` chooses between them.

`TorchBackend` computes with torch's operations, on any device. `NativeBackend` computes
in C, for real numbers on the CPU; its results differ only by rounding. Code outside of
this folder does not know which of the two it uses. The C library is optional: it comes
with a wheel, or is built when it is first needed. Where it cannot be built or used, and
with `ISOMETRY_NATIVE=0`, `TorchBackend` computes everything, which is slower.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from isometry._backend.memory import address
from isometry._backend.native import NativeBackend as NativeBackend
from isometry._backend.native import kernels_origin as kernels_origin
from isometry._backend.native import native_backend
from isometry._backend.operations import Polynomial as Polynomial
from isometry._backend.operations import PowerSums as PowerSums
from isometry._backend.operations import Stage as Stage
from isometry._backend.operations import TorchBackend as TorchBackend
from isometry._backend.operations import plain_skew as plain_skew
from isometry._backend.recurrence import Cell as Cell
from isometry._backend.recurrence import TimeSteps as TimeSteps
from isometry._torch import dispatch_modes

# the type of both backends, for annotations outside of this folder
Backend = TorchBackend

_torch = TorchBackend()
# the backend for each dtype that `backend_for` has seen
_backends: dict[object, Backend] = {}
# how many `only_torch` contexts are active
_switched_off = 0


def backend_for(*tensors: Tensor | None) -> Backend:
    """The backend for these tensors: C if it can read all of them, otherwise torch.

    C reads plain contiguous tensors on the CPU, all float32 or all float64. Inside a
    dispatch mode, such as FakeTensorMode or a FLOP counter, torch computes everything:
    the mode cannot see what C does, and tensors made in the mode may have no memory.
    """
    first = tensors[0]
    assert first is not None
    dtype = first.dtype
    backend = _backends.get(dtype)
    if backend is None:
        backend = _backends[dtype] = native_backend(dtype) or _torch
    if backend is _torch or _switched_off or dispatch_modes():
        return _torch
    for X in tensors:
        if X is not None and address(X, dtype) is None:
            return _torch
    return backend


@contextmanager
def only_torch() -> Iterator[None]:
    """A context in which `backend_for` always chooses torch, in all threads.

    This is for tests and benchmarks, and for a profiler that should see every product.
    """
    global _switched_off  # noqa: PLW0603 - a switch for the whole process
    _switched_off += 1
    try:
        yield
    finally:
        _switched_off -= 1
