"""The backend that computes with torch's operations, on any device.

Products are written into existing memory, with `out=` or in place, so autocast does not
change their dtype. The exception is one product in `scan_adjoint`, and the caller of
`scan_adjoint` turns autocast off.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from isometry._backend.constants import COPIED_FROM
from isometry._backend.memory import recycled
from isometry._backend.nonlinearities import NONLINEARITIES
from isometry._backend.polynomial import Polynomial
from isometry._backend.recurrence import Gradients, Recurrence

# A power sum: a number for one matrix, an array for several matrices, or a tensor where
# the host must not wait for the device. One matrix does not get an array of length one,
# because operations on arrays take longer than operations on numbers.
Sum = float | NDArray | Tensor
PowerSums = tuple[Sum, Sum, Sum]

# `power_sums` splits the sum over a matrix into partial sums over whole rows, and adds
# these in double precision. Each partial sum covers either one row, of any length, or
# several rows with at most this many terms in total. When all n^2 terms were added in
# single precision, the bounds on the largest angle were too low, by up to 0.4 % at
# n = 127 and by 4 % at n = 2048.
_MOST_TERMS = 128

# The gradient with respect to W is a sum of products d_t^T h_{t-1} over all time steps
# t, where d_t is the gradient with respect to the drive u_t. If all sequences have the
# same length, the terms of up to this many time steps are added as one product, as soon
# as their rows d_t are known.
_TIME_STEPS_TOGETHER = 8


@lru_cache
def _pieces(n: int, terms: int) -> int:
    """The number of partial sums in `power_sums`, for n rows of `terms` terms each."""
    divisors = (p for p in range(1, n) if n % p == 0)
    return next((p for p in divisors if n // p * terms <= _MOST_TERMS), n)


def power_sums(pair: Tensor) -> PowerSums:
    """The inner products <X, X>, <X, Y> and <Y, Y>, halved if X and Y are real.

    X and Y are powers of a skew matrix. The angles of a real skew matrix come in
    pairs, and half the inner product counts each pair once.

    Args:
        pair: two batches X and Y, of shape (2, batch, n, n).
    """
    b, n = pair.shape[1:3]
    rows = torch.view_as_real(pair) if pair.is_complex() else pair
    pieces = _pieces(n, 2 * n if pair.is_complex() else n)
    rows = rows.reshape(2, b * pieces, -1).transpose(0, 1)
    gram = torch.bmm(rows, rows.mT, out=rows.new_empty((len(rows), 2, 2)))
    gram = gram.to("cpu", torch.float64).view(b, pieces, 4).sum(1)
    if not pair.is_complex():
        gram = gram / 2
    s2, s3, _, s4 = gram[0].tolist() if b == 1 else gram.numpy().T
    return s2, s3, s4


class Backend:
    """The backend that computes with torch's operations.

    Matrices have the shape (batch, n, n), with any number of batch axes in `skew` and
    `skew_adjoint`, and none in `multiply`. Slots `W` have the shape (slots, batch, n,
    n); polynomial.py explains slots. `NativeBackend` overrides these methods for
    tensors that C can read.
    """

    def skew(self, X: Tensor, out: Tensor) -> None:
        """Write L - L^T, with L the strictly lower triangle of a real X, into `out`."""
        L = X.tril(-1)
        torch.sub(L, L.mT, out=out)

    def skew_adjoint(self, G: Tensor) -> Tensor:
        """The strictly lower triangle of G - G^T, for a real G."""
        return (G - G.mT).tril(-1)

    def square(self, A: Tensor, out: Tensor) -> None:
        """Write A^2 of Hermitian or skew matrices into `out`, which must not be A."""
        torch.bmm(A, A, out=out)

    def multiply(self, X: Tensor, Y: Tensor, *, transposed: bool = False) -> Tensor:
        """The product X Y of two n x n matrices, or X^T Y if `transposed`."""
        return torch.mm(X.mT if transposed else X, Y, out=torch.empty_like(Y))

    def powers(self, W: Tensor, skip_up_to: float) -> PowerSums | None:
        r"""Write $A^2$ and perhaps $A^4$ into W, whose first slot holds $A$.

        On the CPU, $A^4$ is not computed if $\sum \theta^4$ is at most `skip_up_to` for
        every matrix. The sum is over all angles $\theta$ of a complex matrix, and over
        one angle of each pair of a real matrix.

        Returns the `power_sums` of $A^2$ and $A^4$, or None if $A^4$ was not computed.
        """
        self.square(W[0], W[1])
        # The norm of A^2 tells whether A^4 is needed. On an accelerator, the host would
        # have to wait for the norm, and then again for the power sums. So A^4 is always
        # computed there, and the host waits only once.
        if W.is_cpu:
            norm = float(torch.linalg.matrix_norm(W[1]).max())
            if norm * norm * (1.0 if W.is_complex() else 0.5) <= skip_up_to:
                return None
        self.square(W[1], W[2])
        return power_sums(W[1:3])

    def evaluate(self, W: Tensor, polynomial: Polynomial) -> Tensor:
        """Return the polynomial p(A), given the powers of A in the first slots of W.

        The products of all stages but the last are written into the slots that follow.
        """
        rows = rows_of(polynomial, W.dtype.to_real(), W.device)
        Q = W.new_empty(W.shape[1:])
        factors = recycled((2, *Q.shape), Q, temporary=True)
        L, R = factors.unbind()
        slots, both_factors = _slot_rows(W), _slot_rows(factors)
        for k, stage in enumerate(rows, polynomial.powers):
            torch.mm(stage.factors, slots[:k], out=both_factors[: len(stage.factors)])
            if stage.is_square:
                self.square(L, W[k])
                continue
            _add_identity(L, stage.identity)
            if stage.final is not None:
                torch.mm(stage.final, slots[:k], out=_slot_rows(Q[None]))
                Q.baddbmm_(L, R)
            else:
                torch.bmm(L, R, out=W[k])
        # I is added last, because small terms lose digits when they are added to a
        # number near 1.
        _add_identity(Q, polynomial.rows[-1][0])
        return Q

    def pull_back(self, W: Tensor, polynomial: Polynomial, G: Tensor) -> Tensor:
        """The skew gradient with respect to A, of a function of p(A).

        G is the gradient of the function with respect to p(A).
        """
        # "The gradient of M" is short for the gradient with respect to a matrix M.
        # `scratch` holds in this order: L; R, later replaced with the gradient of R;
        # the gradients of L and F; and the gradients of all slots. The gradients of R,
        # L and F are adjacent rows of `scratch_rows`, so one product of the transposed
        # coefficients with these rows computes what they contribute to the gradients of
        # the slots.
        rows = rows_of(polynomial, W.dtype.to_real(), W.device)
        values = _slot_rows(W)
        scratch = recycled((4 + polynomial.products, *W.shape[1:]), W, temporary=True)
        L, gR, gL, gF = scratch[:4].unbind()
        slot_gradients = scratch[4:]
        scratch_rows = _slot_rows(scratch)
        factor_gradients, sums = scratch_rows[1:4], scratch_rows[4:]
        gF.copy_(G)
        for k, stage in reversed([*enumerate(rows, polynomial.powers)]):
            torch.mm(stage.factors, values[:k], out=scratch_rows[: len(stage.factors)])
            if stage.is_square:
                # L has no term in A, and all its other terms are Hermitian, so L is
                # Hermitian. The gradient with respect to L is G L + L G, and only its
                # Hermitian part matters. (G + G^H) L has the same Hermitian part, and
                # takes one product instead of two. A square needs no R, so the product
                # is written to the place of R.
                torch.bmm(_add_adjoint(G, 1, out=gL), L, out=gR)
                sums[1:k].addmm_(stage.transposed[1:], factor_gradients[:1])
            else:
                _add_identity(L, stage.identity)
                torch.bmm(G, gR.mH, out=gL)
                torch.bmm(L.mH, G, out=gR)
                if stage.final is not None:
                    torch.mm(stage.transposed, factor_gradients, out=sums)
                else:
                    sums[:k].addmm_(stage.transposed, factor_gradients[:2])
            G = slot_gradients[k - 1]
        return _through_powers(W, slot_gradients, polynomial.powers, gL)

    def scan(self, H: Tensor, r: Recurrence) -> None:
        """Overwrite the drive u_t of every time step in H with the state h_t."""
        Wt, time_steps = r.W.mT, r.time_steps
        apply_ = NONLINEARITIES[r.sigma.name].apply_
        previous = r.h0
        for start, size in zip(time_steps.starts, time_steps.sizes, strict=False):
            h = H[start : start + size]
            h.addmm_(previous[:size], Wt)
            apply_(h, r.b, r.smoothing(start, start + size))
            previous = h

    def scan_adjoint(
        self,
        D: Tensor,
        H: Tensor,
        r: Recurrence,
        dH: Tensor | None,
        dh_last: Tensor | None,
    ) -> Gradients:
        """Write the gradient with respect to the drive into D; return `Gradients`.

        Args:
            D: memory for the gradient with respect to the drive.
            H: the states.
            r: the recurrence.
            dH: the gradient with respect to every state, or None.
            dh_last: the gradient with respect to the last state of each sequence, or
                None.
        """
        W, sigma, b, h0, time_steps, _ = r
        adjoint_ = NONLINEARITIES[sigma.name].adjoint_
        dW, db = torch.zeros_like(W), None if b is None else torch.zeros_like(b)
        starts, sizes = time_steps.starts, time_steps.sizes
        rows_after = 0
        for t in reversed(range(len(sizes))):
            begin, end = starts[t], starts[t + 1]
            d = D[begin:end]
            d.copy_(dH[begin:end]) if dH is not None else d.zero_()
            # sequences that have no time step t + 1 end here
            if dh_last is not None and sizes[t] > rows_after:
                d[rows_after:] += dh_last[rows_after : sizes[t]]
            if rows_after:
                d[:rows_after].addmm_(D[end : end + rows_after], W)
            adjoint_(d, H[begin:end], b, db, r.smoothing(begin, end))
            rows_after = sizes[t]
            if t == 0:
                break
            if not time_steps.is_equal:
                dW.addmm_(d.mT, H[starts[t - 1] :][: sizes[t]])
            elif (t - 1) % _TIME_STEPS_TOGETHER == 0:
                upto = starts[min(t + _TIME_STEPS_TOGETHER, len(sizes))]
                dW.addmm_(D[begin:upto].mT, H[starts[t - 1] :][: upto - begin])
        first = D[: time_steps.batch]
        dW.addmm_(first.mT, h0)
        return Gradients(dW, db, first @ W)


class StageTensors(NamedTuple):
    """The coefficients of one stage of a polynomial as tensors.

    `identity` is the multiple of I in L. `factors` has two rows: the coefficients of L
    without I, and those of R. `final` has one row, the coefficients of the final
    combination F without I; it is None except in the last stage. `transposed` has the
    rows of `factors` and `final` as columns, in the order in which `pull_back` stores
    the gradients: R, L, and F in the last stage. If the stage is a square, `factors`
    and `transposed` contain only L.
    """

    identity: float
    is_square: bool
    factors: Tensor
    final: Tensor | None
    transposed: Tensor


@lru_cache(maxsize=256)
def rows_of(
    polynomial: Polynomial, dtype: torch.dtype, device: torch.device
) -> list[StageTensors]:
    """The coefficients of every stage as tensors of a real dtype."""
    tensors = []
    for k, stage in enumerate(polynomial.stages, polynomial.powers):
        final = [polynomial.rows[-1]] if k == polynomial.products else []
        rows = [row[1:] for row in (stage.L, stage.R, *final)]
        table = torch.tensor(rows, dtype=dtype, device=device)
        factors = table[:1] if stage.is_square else table[:2]
        columns = [0] if stage.is_square else [1, 0, 2][: len(table)]
        tensors.append(
            StageTensors(
                identity=stage.L[0],
                is_square=stage.is_square,
                factors=factors,
                final=table[2:] if final else None,
                transposed=table[columns].T,
            )
        )
    return tensors


def _slot_rows(W: Tensor) -> Tensor:
    """`W`, of shape (slots, ...), viewed as a real matrix with one row for each slot.

    So a linear combination of slots is one product, a row of coefficients times this
    matrix.
    """
    return (torch.view_as_real(W) if W.is_complex() else W).view(W.shape[0], -1)


def _add_identity(X: Tensor, multiple: float) -> None:
    if multiple:
        X.diagonal(dim1=-2, dim2=-1).add_(multiple)


def _through_powers(W: Tensor, g: Tensor, count: int, scratch: Tensor) -> Tensor:
    """The skew gradient with respect to A, given the gradients g for its powers.

    The powers are A, A^2 and, if `count` is 3, A^4. A^2 and A^4 are Hermitian, so if G
    is the gradient with respect to one of them, only its Hermitian part S / 2 matters,
    where S = G + G^H. Pulling S / 2 back from A^4 to A^2 gives (S A^2 + A^2 S) / 2, the
    Hermitian part of S A^2. Pulling S / 2 back from A^2 to A gives -(S A + A S) / 2,
    the skew part of -S A. The last line takes twice the skew part, so the line before
    it has a factor of one half.
    """
    gA, gA2 = g[:2]
    if count == 3:
        gA2.baddbmm_(_add_adjoint(g[2], 1, out=scratch), W[1])
    gA.baddbmm_(_add_adjoint(gA2, 1, out=scratch), W[0], beta=0.5, alpha=-0.5)
    return _add_adjoint(gA, -1, out=torch.empty_like(gA))


def _add_adjoint(X: Tensor, sign: int, *, out: Tensor) -> Tensor:
    """X + X^H if `sign` is 1, X - X^H if it is -1; `out` must not be X itself."""
    if X.is_complex():
        # `X.mH` would conjugate lazily. In the first call of a compiled function, torch
        # 2.13 excludes the dispatch key of lazy conjugation, and a sum would read X^T
        # instead of X^H.
        torch.conj_physical(X.mT, out=out)
    elif len(X) == 1 and X.shape[-1] >= COPIED_FROM:
        out[0].copy_(X[0].mT)
    else:
        return torch.add(X, X.mT, alpha=sign, out=out)
    return torch.add(X, out, alpha=sign, out=out)
