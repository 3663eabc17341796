"""The C backend, for real matrices on the CPU, and the choice between the backends.

For a small matrix, calling torch takes longer than the arithmetic, so the polynomial of
a single matrix is one call to C. For a large matrix, C makes fewer passes over memory
than torch's operations. For a batch of matrices, torch computes the products of the
polynomial, with one exception: C computes the squares of matrices with `HALVED_FROM`
rows or more.

The kernels do not check their arguments. So this file checks each tensor that it is
given before it passes the address to a kernel: a wrong call raises an error, instead of
reading or writing memory beyond the tensor.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from isometry._backend.constants import FEWEST_ROWS, HALVED_FROM, MOST_SLOTS, SIGMAS
from isometry._backend.library import (
    c_library,
    loaded,
    matrix_product,
    raw,
    reasons,
    torch_library,
    warn,
)
from isometry._backend.memory import address, recycled, refusal
from isometry._backend.nonlinearities import NONLINEARITIES
from isometry._backend.operations import Backend, PowerSums
from isometry._backend.polynomial import Polynomial
from isometry._backend.recurrence import Gradients, Recurrence
from isometry._backend.store import BuildError
from isometry._dtypes import PRECISIONS
from isometry._torch import dispatch_modes

# In the recurrence h_t = sigma(W h_{t-1} + u_t), let d_t be the gradient with respect
# to u_t. Both d_t and h_{t-1} have one row for each sequence, and the gradient with
# respect to W is the sum of d_t^T h_{t-1} over all time steps. Each thread computes
# this sum for its own sequences. It gathers rows of several time steps for one product:
# up to this many rows, or all rows of one time step if it has more.
_ROWS_TOGETHER = 512


class CRecurrence(ctypes.Structure):
    """The struct `recurrence_t` of scan.h, which `NativeBackend` fills."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("W", "b", "h0", "moduli")),
        *((name, ctypes.c_void_p) for name in ("starts", "sizes")),
        *((name, ctypes.c_long) for name in ("length", "n", "sigma", "threads")),
        ("epsilon", ctypes.c_double),
    ]


class NativeBackend(Backend):
    """The backend that computes in C, for one dtype.

    The methods of this class leave to the inherited methods what torch computes faster
    than C: squares of small matrices, and polynomials of batches, since torch's batched
    product uses all threads. The inherited methods call `square` of this class, so C
    computes the squares in the polynomials of a batch if its matrices are large.

    Apart from autograd functions, this is the only class of the library that overrides
    methods of a class that is not abstract. Each backend needs the other: C leaves
    batches to torch, and torch's operations on these batches need squares from C. If
    the classes were independent, each would need an object of the other, and an
    abstract class would have to declare every method a third time.

    Args:
        library: our C library.
        gemm: the BLAS function that multiplies matrices.
        dtype: the dtype of all tensors.

    Raises:
        BuildError: if `gemm` gives a wrong product of two small matrices.
    """

    def __init__(self, library: ctypes.CDLL, gemm: Any, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.gemm = ctypes.cast(gemm, ctypes.c_void_p)
        self._c = raw(library, dtype)
        # `gemm` is tested without tensors: a backend may be created while a model is
        # exported, and then new tensors are fake and have no memory.
        number = PRECISIONS[dtype].c_type
        X = (number * 6)(*range(6))
        product = (number * 4)()
        x = ctypes.addressof(X)
        self._c.probe(self.gemm, x, x, ctypes.addressof(product), 2)
        if [*product] != [5, 14, 14, 50]:
            raise BuildError("torch's BLAS gives a wrong result for a small product.")

    def skew(self, X: Tensor, out: Tensor) -> None:
        batch, n, x = self._matrices("X", X)
        self._c.skew(x, self._pointer("out", out, X.numel()), batch, n)

    def skew_adjoint(self, G: Tensor) -> Tensor:
        batch, n, g = self._matrices("G", G)
        X = torch.empty_like(G)
        self._c.skew_adjoint(g, X.data_ptr(), batch, n)
        return X

    def square(self, A: Tensor, out: Tensor) -> None:
        # from `HALVED_FROM` rows on, C computes the lower half of A^2 and mirrors it
        if A.shape[-1] < HALVED_FROM:
            super().square(A, out)
            return
        batch, n, a = self._matrices("A", A)
        c = self._pointer("out", out, batch * n * n)
        self._c.square(self.gemm, a, c, batch, n)

    def multiply(self, X: Tensor, Y: Tensor, *, transposed: bool = False) -> Tensor:
        n = X.shape[-1]
        x, y = self._pointer("X", X, n * n), self._pointer("Y", Y, n * n)
        out = torch.empty_like(Y)
        self._c.multiply(self.gemm, x, transposed, y, out.data_ptr(), n)
        return out

    def powers(self, W: Tensor, skip_up_to: float) -> PowerSums | None:
        if W.shape[1] > 1:
            return super().powers(W, skip_up_to)
        n = W.shape[-1]
        sums = (ctypes.c_double * 3)()
        self._c.powers(self.gemm, self._slots(W, 3, n), sums, skip_up_to, n)
        s2, s3, s4 = sums
        return None if s2 <= skip_up_to else (s2, s3, s4)

    def evaluate(self, W: Tensor, polynomial: Polynomial) -> Tensor:
        if W.shape[1] > 1:
            return super().evaluate(W, polynomial)
        table = polynomial_table(polynomial, self.dtype)
        n = W.shape[-1]
        w = self._slots(W, polynomial.products, n)
        Q = W.new_empty(W.shape[1:])
        # memory for the factors L and R of a stage
        scratch = recycled((2, n, n), Q, temporary=True)
        self._c.evaluate(self.gemm, w, Q.data_ptr(), scratch.data_ptr(), *table, n)
        return Q

    def pull_back(self, W: Tensor, polynomial: Polynomial, G: Tensor) -> Tensor:
        if W.shape[1] > 1:
            return super().pull_back(W, polynomial, G)
        table = polynomial_table(polynomial, self.dtype)
        n = W.shape[-1]
        w = self._slots(W, polynomial.products, n)
        # C expects the transpose of G in contiguous memory. If G is a transposed view
        # of a contiguous matrix, `contiguous` copies nothing.
        Gt = G.mT.contiguous()
        g = self._pointer("G", Gt, n * n)
        X = torch.empty_like(Gt)
        # memory for L, R, and the gradients with respect to L and to each slot
        scratch = recycled((3 + polynomial.products, n, n), X, temporary=True)
        self._c.pull_back(self.gemm, w, g, X.data_ptr(), scratch.data_ptr(), *table, n)
        return X

    def scan(self, H: Tensor, r: Recurrence) -> None:
        c = self._recurrence(r)
        h = self._pointer("H", H, r.time_steps.rows * c.n)
        self._c.scan(self.gemm, ctypes.byref(c), h)

    def scan_adjoint(
        self,
        D: Tensor,
        H: Tensor,
        r: Recurrence,
        dH: Tensor | None,
        dh_last: Tensor | None,
    ) -> Gradients:
        c = self._recurrence(r)
        n, threads = c.n, c.threads
        batch = r.time_steps.batch
        size = r.time_steps.rows * n
        # each thread adds up its own gradients with respect to W and b
        dW, db = r.W.new_zeros(threads, n, n), r.W.new_zeros(threads, n)
        dh0 = torch.empty_like(r.h0)
        # a thread can gather this many rows d_t, and as many rows h_{t-1}
        capacity = max(_ROWS_TOGETHER, -(-batch // threads))
        scratch = r.W.new_empty(threads * 2 * capacity, n)
        self._c.scan_adjoint(
            self.gemm,
            ctypes.byref(c),
            self._pointer("D", D, size),
            self._pointer("H", H, size),
            None if dH is None else self._pointer("dH", dH, size),
            None if dh_last is None else self._pointer("dh_last", dh_last, batch * n),
            dW.data_ptr(),
            db.data_ptr(),
            dh0.data_ptr(),
            scratch.data_ptr(),
            capacity,
        )
        b = None if r.b is None else db.sum(0)[: len(r.b)]
        return Gradients(dW.sum(0), b, dh0)

    def _pointer(self, name: str, X: Any, size: int) -> int:
        """The address of X, which must be a tensor with `size` entries."""
        pointer = address(X, self.dtype)
        if pointer is None or X.numel() != size:
            raise refusal(name, X, size, self.dtype)
        return pointer

    def _matrices(self, name: str, X: Tensor) -> tuple[int, int, int]:
        """The batch size (0 if n is 0), n, and the address of the n x n matrices X."""
        n = X.shape[-1]
        batch = X.numel() // (n * n) if n else 0
        return batch, n, self._pointer(name, X, batch * n * n)

    def _slots(self, W: Tensor, least: int, n: int) -> int:
        """The address of W, which must have `least` slots or more of n x n numbers."""
        slots = W.shape[0]
        if slots < least:
            raise ValueError(f"`W` must have {least} slots or more; got {slots}.")
        return self._pointer("W", W, slots * n * n)

    def _recurrence(self, r: Recurrence) -> CRecurrence:
        """The recurrence as C reads it; the caller must keep its tensors alive."""
        n, batch = len(r.W), r.time_steps.batch
        starts, sizes, length = r.time_steps.arguments
        name, epsilon = r.sigma
        sigma = NONLINEARITIES[name]
        b = None
        if sigma.threshold is not None:
            b = self._pointer("b", r.b, int(sigma.threshold * n))
        moduli = None
        if sigma.keeps_moduli:
            moduli = self._pointer("m", r.m, r.time_steps.rows * (n // 2))
        return CRecurrence(
            W=self._pointer("W", r.W, n * n),
            b=b,
            h0=self._pointer("h0", r.h0, batch * n),
            moduli=moduli,
            starts=ctypes.addressof(starts),
            sizes=ctypes.addressof(sizes),
            length=length,
            n=n,
            sigma=SIGMAS[name],
            threads=max(1, min(torch.get_num_threads(), batch)),
            epsilon=epsilon,
        )


class PolynomialTable(NamedTuple):
    """A polynomial in the form that C reads; see polynomial.h.

    The fields are arguments of `evaluate` and `pull_back` in C, in this order.

    Attributes:
        numbers: the coefficients of all stages, then the coefficients of the final
            combination, in which the multiple of I comes last.
        powers: the number of powers.
        stages: the number of stages.
        squares: a bit mask, in which bit s is set if stage s is a square.
    """

    numbers: ctypes.Array[Any]
    powers: int
    stages: int
    squares: int


@lru_cache(maxsize=256)
def polynomial_table(polynomial: Polynomial, dtype: torch.dtype) -> PolynomialTable:
    """The `PolynomialTable` of a polynomial, with coefficients of this dtype.

    Raises:
        ValueError: if C cannot evaluate polynomials with these powers and stages.
    """
    powers, stages = polynomial.powers, polynomial.stages
    slots = polynomial.products
    _require(powers in (2, 3), "powers", powers, "be 2 or 3")
    fits = len(stages) >= 1 and slots <= MOST_SLOTS
    most = MOST_SLOTS + 1 - powers
    _require(fits, "stages", len(stages), f"be from 1 to {most}")
    # C writes every square into a slot, and the last product has no slot
    end = stages[-1]
    _require(not end.is_square, "stages", end, "end with a stage that is not a square")
    squares = sum(stage.is_square << s for s, stage in enumerate(stages))
    numbers = [number for stage in stages for number in (*stage.L, *stage.R[1:])]
    identity, *final = polynomial.rows[-1]
    numbers += [*final, identity]
    # Stage s reads k = powers + s slots. It has 1 + k numbers for L, starting with the
    # multiple of I, and k numbers for R. The sum of 1 + 2 k over all stages is the
    # product below. The final combination has one number for each slot, and one for I.
    size = len(stages) * (2 * powers + len(stages)) + slots + 1
    _require(len(numbers) == size, "stages", len(numbers), f"hold {size} numbers")
    array = (PRECISIONS[dtype].c_type * size)(*numbers)
    return PolynomialTable(array, powers, len(stages), squares)


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise ValueError(f"`{name}` must {rule}; got {value}.")


@cache
def native_backend(dtype: torch.dtype) -> NativeBackend | None:
    """The C backend for a dtype, or None if there is none."""
    library = c_library() if dtype in PRECISIONS else None
    if library is None:
        return None
    try:
        gemm = matrix_product(torch_library(), dtype)
        return NativeBackend(library, gemm, dtype)
    except (BuildError, OSError, AttributeError) as error:
        warn(str(error))
        return None


def kernels_origin() -> str:
    """Where the C kernels come from, or "none" and the reason."""
    origin = loaded().origin
    if native_backend(torch.float32) is not None:
        return origin
    # if the library is loaded but cannot use torch's BLAS, `reasons` says why
    return f"none: {' '.join(reasons) or origin}"


_torch = Backend()
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
    backend = native_backend(dtype)
    if backend is None or _switched_off or dispatch_modes():
        return _torch
    for X in tensors:
        if X is not None and address(X, dtype) is None:
            return _torch
    return backend


def is_large(X: Tensor) -> bool:
    """Whether matrices have so many rows that kernels are faster than torch.

    For smaller matrices, an autograd function that calls `backend_for` would take
    longer than it saves.
    """
    return X.shape[-1] >= FEWEST_ROWS


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
