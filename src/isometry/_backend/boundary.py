"""The boundary to C: kernels that take tensors, and check them first.

This is the only place where memory of a tensor is handed to C, which believes what it
is told. A wrong call raises here; without the checks it would read or write whatever
lies beside the tensor.
"""

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from isometry._backend.constants import MOST_SLOTS, NONLINEARITIES, takes_threshold
from isometry._dtypes import PRECISIONS

# what each C function takes: p a pointer, l a long
_SIGNATURES = {
    "gemm": "ppppl",
    "square": "pppll",
    "multiply": "pplppl",
    "skew": "ppll",
    "skew_adjoint": "ppll",
    "powers": "pppppll",
    "evaluate": "pppppllll",
    "pull_back": "pppppplllll",
    "scan": "p" * 7 + "llll",
    "scan_adjoint": "p" * 14 + "lllll",
}
_TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_long}

# wrapper subclasses (sharded, fake, logging tensors) have no memory of their own
_PLAIN = (Tensor, torch.nn.Parameter)


def readable(X: Tensor, dtype: torch.dtype) -> bool:
    """Whether C can read this tensor as an array of numbers of one dtype."""
    return (
        type(X) in _PLAIN
        and X.dtype is dtype
        and X.is_cpu
        and X.is_contiguous()
        # torch negates lazily: a tensor with the negative bit set still holds the old
        # signs in memory
        and not X.is_neg()
        # a storage that was freed (FSDP does so), or torch's zeros without memory
        and (X.data_ptr() != 0 or X.numel() == 0)
    )


class PolynomialTable:
    """The numbers of a scheme as C reads them; see polynomial.h.

    Args:
        numbers: stage after stage, the final combination, and the multiple of I.
        dtype: the type of the numbers.
        powers: how many of A, A^2 and A^4 there are.
        stages: how many products follow.
        squares: a mask of the stages that are squares.

    Raises:
        ValueError: if C would read or write beyond what a scheme of these sizes has.
    """

    def __init__(
        self,
        numbers: Sequence[float],
        dtype: torch.dtype,
        *,
        powers: int,
        stages: int,
        squares: int,
    ) -> None:
        # what the last stage knows, which is also how many slots are read
        self.slots = powers + stages - 1
        _require(powers in (2, 3), "powers", powers, "be 2 or 3")
        fits = stages >= 1 and self.slots <= MOST_SLOTS
        _require(fits, "stages", stages, f"be from 1 to {MOST_SLOTS + 1 - powers}")
        last_is_product = 0 <= squares < 2 ** (stages - 1)
        _require(last_is_product, "squares", squares, "leave out the last stage")
        # 1 + k numbers for L and k for R of each stage, k of the final combination, and
        # the multiple of I
        size = stages * (2 * powers + stages) + self.slots + 1
        _require(len(numbers) == size, "numbers", len(numbers), f"be {size} numbers")
        self.dtype = dtype
        self.counts = (powers, stages, squares)
        self._numbers = (PRECISIONS[dtype].c_type * size)(*numbers)
        self.pointer = ctypes.addressof(self._numbers)


class StepTable:
    """Which rows belong to which step of time, also as C reads it; see scan.h.

    Args:
        sizes: the number of rows of each step.

    Raises:
        ValueError: if a size is negative or larger than the one before.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        sizes = list(sizes)
        falling = sizes == sorted(sizes, reverse=True) and min(sizes, default=0) >= 0
        _require(falling, "sizes", sizes, "not grow and not be negative")
        starts = [0, *accumulate(sizes)]
        self.batch, self.rows = max(sizes, default=0), starts[-1]
        self.starts, self.sizes = tuple(starts), tuple(sizes)
        # whether all sequences have one length
        self.is_equal = not sizes or sizes[0] == sizes[-1]
        self._starts = (ctypes.c_long * len(starts))(*starts)
        self._sizes = (ctypes.c_long * len(sizes))(*sizes)
        # what C is given
        self.arguments = (self._starts, self._sizes, len(sizes))


class Kernels:
    """The kernels for one dtype, called with tensors: `kernels.skew(X, out)`.

    Raises:
        TypeError: if an argument is not a plain tensor, or of another dtype.
        ValueError: if it is not contiguous on the CPU, or of another size.
    """

    def __init__(self, library: ctypes.CDLL, product: Any, dtype: torch.dtype) -> None:
        self.dtype = dtype
        # the BLAS's own product of matrices
        self.product = ctypes.cast(product, ctypes.c_void_p)
        self._c = raw(library, dtype)

    def multiplies(self) -> bool:
        """Whether the product is that of a BLAS as we know it, by one example."""
        # no tensors: the first call may come while a program is exported, when new
        # tensors are fake and have no memory
        number = PRECISIONS[self.dtype].c_type
        X, Y = (number * 6)(*range(6)), (number * 4)()
        pointer = ctypes.addressof(X)
        self._c.gemm(self.product, pointer, pointer, ctypes.addressof(Y), 2)
        return [*Y] == [5, 14, 14, 50]

    def square(self, A: Tensor, out: Tensor) -> None:
        """Write A^2 of symmetric or skew matrices, (batch, n, n), into `out`."""
        batch, n = _sizes(A)
        size = batch * n * n
        a, c = self._pointer("A", A, size), self._pointer("out", out, size)
        self._c.square(self.product, a, c, batch, n)

    def multiply(self, X: Tensor, Y: Tensor, out: Tensor, *, transposed: bool) -> None:
        """Write X Y, or X^T Y, of single matrices into `out`."""
        n = X.shape[-1]
        x, y = self._pointer("X", X, n * n), self._pointer("Y", Y, n * n)
        c = self._pointer("out", out, n * n)
        self._c.multiply(self.product, x, transposed, y, c, n)

    def skew(self, X: Tensor, out: Tensor) -> None:
        """Write L - L^T into `out`, with L the strictly lower triangle of X."""
        batch, n = _sizes(X)
        size = batch * n * n
        x, a = self._pointer("X", X, size), self._pointer("out", out, size)
        self._c.skew(x, a, batch, n)

    def skew_adjoint(self, G: Tensor, out: Tensor) -> None:
        """Write the strictly lower triangle of G - G^T into `out`, and zero above."""
        batch, n = _sizes(G)
        size = batch * n * n
        g, x = self._pointer("G", G, size), self._pointer("out", out, size)
        self._c.skew_adjoint(g, x, batch, n)

    def powers(
        self, A: Tensor, W: Tensor, *, tiny: float, triangle: bool
    ) -> tuple[float, float, float]:
        """Write A, A^2 and perhaps A^4 into the slots of W; returns the power sums.

        If the first sum is at most `tiny`, there is no A^4 and the others are zero.
        """
        n, slots = A.shape[-1], len(W)
        if slots < 3:
            raise ValueError(f"`W` must have 3 slots or more; got {slots}.")
        a = self._pointer("A", A, n * n)
        w = self._pointer("W", W, slots * n * n)
        numbers = (ctypes.c_double * 4)(0, 0, 0, tiny)
        sums = ctypes.addressof(numbers)
        last = sums + 3 * ctypes.sizeof(ctypes.c_double)
        self._c.powers(self.product, a, w, sums, last, triangle, n)
        return numbers[0], numbers[1], numbers[2]

    def evaluate(
        self, W: Tensor, Q: Tensor, room: Tensor, table: PolynomialTable
    ) -> None:
        """Write p(A) into Q, and the products of the scheme into the slots of W."""
        n = W.shape[-1]
        w = self._slots(W, n, table)
        q = self._pointer("Q", Q, n * n)
        r = self._pointer("room", room, 2 * n * n)
        self._c.evaluate(self.product, w, q, r, table.pointer, *table.counts, n)

    def pull_back(
        self,
        W: Tensor,
        H: Tensor,
        X: Tensor,
        room: Tensor,
        table: PolynomialTable,
        *,
        triangle: bool,
    ) -> None:
        """Write the skew gradient at A into X, given the transpose H at p(A)."""
        n = W.shape[-1]
        w = self._slots(W, n, table)
        h, x = self._pointer("H", H, n * n), self._pointer("X", X, n * n)
        r = self._pointer("room", room, (3 + table.slots) * n * n)
        counts = (*table.counts, triangle, n)
        self._c.pull_back(self.product, w, h, x, r, table.pointer, *counts)

    def scan(
        self,
        H: Tensor,
        W: Tensor,
        b: Tensor | None,
        h0: Tensor,
        table: StepTable,
        *,
        kind: int,
        threads: int,
    ) -> None:
        """Make the states of what drives them, in place: H holds u and becomes h."""
        n = len(W)
        _require(threads >= 1, "threads", threads, "be 1 or more")
        h, w = self._pointer("H", H, table.rows * n), self._pointer("W", W, n * n)
        threshold = self._threshold(b, n, kind)
        first = self._pointer("h0", h0, table.batch * n)
        steps = (*table.arguments, n, kind, threads)
        self._c.scan(self.product, h, w, threshold, first, *steps)

    def scan_adjoint(
        self,
        D: Tensor,
        H: Tensor,
        W: Tensor,
        b: Tensor | None,
        h0: Tensor,
        *,
        table: StepTable,
        every: Tensor | None,
        last: Tensor | None,
        gradients: tuple[Tensor, Tensor, Tensor],
        room: Tensor,
        kind: int,
    ) -> None:
        """Write the gradient at what drives the states into D.

        `gradients` are those of W and b, one matrix and one vector of zeros for each
        thread, and that of h0. `room` holds an even number of rows for each thread.
        """
        n, rows, batch = len(W), table.rows * len(W), table.batch * len(W)
        dW, db, dh0 = gradients
        threads = len(dW)
        _require(threads >= 1, "threads", threads, "be 1 or more")
        most = len(room) // (2 * threads)
        enough = most * threads >= table.batch
        _require(enough, "room", len(room), f"have {2 * table.batch} rows or more")
        self._c.scan_adjoint(
            *(self.product, self._pointer("D", D, rows), self._pointer("H", H, rows)),
            *(self._optional("every", every, rows),),
            *(self._optional("last", last, batch), self._pointer("W", W, n * n)),
            *(self._threshold(b, n, kind), self._pointer("h0", h0, batch)),
            self._pointer("dW", dW, threads * n * n),
            self._pointer("db", db, threads * n),
            *(self._pointer("dh0", dh0, batch),),
            self._pointer("room", room, 2 * threads * most * n),
            *(*table.arguments, n, kind, threads, most),
        )

    def _pointer(self, name: str, X: Tensor, size: int) -> int:
        """The address of a tensor with so many numbers."""
        # `readable`, written out: fifteen tensors go this way in a training step, and a
        # call more for each would show at n = 64
        if (
            type(X) in _PLAIN
            and X.dtype is self.dtype
            and X.is_cpu
            and X.is_contiguous()
            and not X.is_neg()
            and X.numel() == size
        ):
            pointer = X.data_ptr()
            if pointer or not size:
                return pointer
        raise _refusal(name, X, size, self.dtype)

    def _optional(self, name: str, X: Tensor | None, size: int) -> int | None:
        return None if X is None else self._pointer(name, X, size)

    def _slots(self, W: Tensor, n: int, table: PolynomialTable) -> int:
        """The address of the slots, if there are enough for the table."""
        slots = len(W)
        if slots < table.slots or table.dtype is not self.dtype:
            raise ValueError(
                f"`W` must have {table.slots} slots or more, and be of {table.dtype} "
                f"like `table`; got {slots} of {self.dtype}."
            )
        return self._pointer("W", W, slots * n * n)

    def _threshold(self, b: Tensor | None, n: int, kind: int) -> int | None:
        known = 0 <= kind < len(NONLINEARITIES)
        _require(known, "kind", kind, "be a nonlinearity")
        sigma = NONLINEARITIES[kind]
        if not takes_threshold(sigma):
            return None
        if b is None:
            raise TypeError("`b` must be a tensor for modReLU; got None.")
        return self._pointer("b", b, n if sigma == "modrelu" else n // 2)


def raw(library: ctypes.CDLL, dtype: torch.dtype) -> SimpleNamespace:
    """The C functions for one dtype by their short names; they check nothing."""
    functions = SimpleNamespace()
    for name, signature in _SIGNATURES.items():
        function = getattr(library, f"isometry_{name}_{PRECISIONS[dtype].suffix}")
        function.argtypes = [_TYPES[letter] for letter in signature]
        function.restype = None
        setattr(functions, name, function)
    return functions


def _sizes(X: Tensor) -> tuple[int, int]:
    """Batch and n of square matrices."""
    n = X.shape[-1]
    return (X.numel() // (n * n) if n else 0), n


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise ValueError(f"`{name}` must {rule}; got {value}.")


def _refusal(name: str, X: Any, size: int, dtype: torch.dtype) -> Exception:
    """Why C cannot take this argument."""
    if type(X) not in _PLAIN:
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
