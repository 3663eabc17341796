"""The backend in C: real matrices and states on the CPU, of one dtype.

For small matrices most of the time would go into calls of torch, so the polynomial of a
single matrix is one call to C. For large ones C goes through memory less often than
torch's operations do: 8 percent of a layer's step at n = 1024. In a batch the products
are torch's, and only the squares are computed in C.
"""

from functools import lru_cache

import torch
from torch import Tensor

from isometry._backend import torch as operations
from isometry._backend.boundary import Kernels, PolynomialTable, StepTable
from isometry._backend.constants import HALVED_FROM, NONLINEARITIES
from isometry._backend.memory import scratch
from isometry._backend.polynomial import Polynomial
from isometry._backend.recurrence import Cell, Gradients
from isometry._backend.torch import PowerSums

_KINDS = {name: kind for kind, name in enumerate(NONLINEARITIES)}

# The gradient of W is a sum of products d_t^T h_{t-1}. Each thread gathers so many rows
# for one product.
_ROWS_TOGETHER = 512


class NativeBackend:
    """C, with the methods of `TorchBackend`; the kernels check every argument.

    Args:
        kernels: the C functions for one dtype.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def skew(self, X: Tensor) -> Tensor:
        """L - L^T, with L the strictly lower triangle of X."""
        A = torch.empty_like(X)
        self.kernels.skew(X, A)
        return A

    def skew_adjoint(self, G: Tensor) -> Tensor:
        """The strictly lower triangle of G - G^T."""
        X = torch.empty_like(G)
        self.kernels.skew_adjoint(G, X)
        return X

    def square(self, A: Tensor, out: Tensor) -> None:
        """Write A^2 of symmetric or skew matrices into `out`, by its lower half."""
        if A.shape[-1] >= HALVED_FROM:
            self.kernels.square(A, out)
        else:
            torch.bmm(A, A, out=out)

    def multiply(self, X: Tensor, Y: Tensor, *, transposed: bool = False) -> Tensor:
        """X Y, or X^T Y, of single matrices."""
        out = torch.empty_like(Y)
        self.kernels.multiply(X, Y, out, transposed=transposed)
        return out

    def powers(
        self, A: Tensor, W: Tensor, *, least: float | None, triangle: bool = False
    ) -> PowerSums | None:
        """Write A, A^2 and perhaps A^4 into W; see `operations.powers`."""
        if len(A) > 1 or least is None:
            A = self.skew(A) if triangle else A
            return operations.powers(A, W, least, self.square)
        s2, s3, s4 = self.kernels.powers(A, W, tiny=least, triangle=triangle)
        return None if s2 <= least else (s2, s3, s4)

    def power_sums(self, pair: Tensor) -> PowerSums:
        """<X, X>, <X, Y> and <Y, Y> of each X and Y, halved."""
        return operations.power_sums(pair)

    def evaluate(self, W: Tensor, polynomial: Polynomial) -> Tensor:
        """p(A). Writes the products P_3, ... into the slots of W."""
        if W.shape[1] > 1:
            return operations.evaluate(W, polynomial, self.square)
        Q = W.new_empty(W.shape[1:])
        # memory for L and R
        with scratch(Q, 2) as room:
            self.kernels.evaluate(W, Q, room, _table(polynomial, W.dtype))
        return Q

    def pull_back(
        self, W: Tensor, polynomial: Polynomial, G: Tensor, *, triangle: bool = False
    ) -> Tensor:
        """The skew gradient at A, given G at p(A); with `triangle`, through `skew`."""
        if W.shape[1] > 1:
            g = operations.pull_back(W, polynomial, G)
            return self.skew_adjoint(g) if triangle else g
        # C takes the transpose; this is no copy if G is the transpose of a contiguous
        # matrix
        H = G.mT.contiguous()
        X = torch.empty_like(H)
        # memory for L, R, the gradient of L and one gradient for each slot
        with scratch(X, 3 + polynomial.slots) as room:
            table = _table(polynomial, W.dtype)
            self.kernels.pull_back(W, H, X, room, table, triangle=triangle)
        return X

    def scan(self, H: Tensor, cell: Cell, h0: Tensor, steps: StepTable) -> None:
        """Turn the drive of each time step into its states, in place."""
        W, sigma, b = cell
        kind, threads = _KINDS[sigma], _threads(steps)
        self.kernels.scan(H, W, b, h0, steps, kind=kind, threads=threads)

    def scan_adjoint(
        self,
        D: Tensor,
        H: Tensor,
        cell: Cell,
        h0: Tensor,
        steps: StepTable,
        *,
        every: Tensor | None,
        last: Tensor | None,
    ) -> Gradients:
        """Write the gradient at the drive into D; see `recurrence.scan_adjoint`."""
        W, sigma, b = cell
        n, threads = W.shape[0], _threads(steps)
        # one matrix and one vector for each thread
        dW, db = W.new_zeros(threads, n, n), W.new_zeros(threads, n)
        most = max(_ROWS_TOGETHER, -(-steps.batch // threads))
        room, dh0 = W.new_empty(threads * 2 * most, n), torch.empty_like(h0)
        self.kernels.scan_adjoint(
            *(D, H, W, b, h0),
            table=steps,
            every=every,
            last=last,
            gradients=(dW, db, dh0),
            room=room,
            kind=_KINDS[sigma],
        )
        return Gradients(dW.sum(0), None if b is None else db.sum(0)[: len(b)], dh0)


def _threads(steps: StepTable) -> int:
    return max(1, min(torch.get_num_threads(), steps.batch))


@lru_cache(maxsize=256)
def _table(polynomial: Polynomial, dtype: torch.dtype) -> PolynomialTable:
    """The coefficients of a polynomial as C reads them."""
    numbers: list[float] = []
    for stage in polynomial.stages:
        numbers += [stage.identity, *stage.L, *stage.R, *stage.F]
    numbers.append(polynomial.identity)
    stages = polynomial.stages
    return PolynomialTable(
        numbers,
        dtype,
        powers=polynomial.powers,
        stages=len(stages),
        squares=sum(stage.is_square << s for s, stage in enumerate(stages)),
    )
