r"""A polynomial of a skew matrix, and its derivative, in few matrix products.

A scheme computes $A^2$ and $A^4 = A^2 A^2$, then products of linear combinations of
everything there is so far, and ends with a linear combination:

$$ P_3 = L_3 R_3, \quad P_4 = L_4 R_4, \quad \ldots, \quad
   p(A) = P_m + f_0 I + f_1 A + f_2 A^2 + f_3 A^4 + \cdots, \qquad
   L_j, R_j \in \operatorname{span}(I, A, A^2, A^4, P_3, \ldots, P_{j-1}). $$

For tiny angles there is no $A^4$. All of it lives in one tensor `W` of shape (slots,
batch, n, n), so that a linear combination of any number of matrices is one thin product
with the table's rows.

$A^2$ and $A^4$ are Hermitian: pulling a gradient back through either square costs one
product, not two. The same holds of a $P_3$ with $L_3 = R_3 = A^2 + a A^4$. A scheme of
$m$ products, $h$ of them such squares, costs $2 m - h$ in the backward pass.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from isometry._native import Kernels, fits, kernels
from isometry.linalg._scratch import recycled, scratch
from isometry.linalg._square import square


# compared by identity: hashing the coefficients would be work at every call
@dataclass(frozen=True, eq=False)
class Scheme:
    r"""Coefficients for angles up to `theta`, in the variable $A / \theta$.

    `rows` holds $L_3, R_3, L_4, R_4, \ldots$ and last the final combination, each
    over $(I, A, A^2, A^4, P_3, \ldots)$, or without $A^4$. No $R_j$ has a multiple of
    $I$, so every product vanishes with $A$, and the final combination has exactly $I$:
    near 0 the result is not built by cancellation. `value_error` and `gradient_error`
    bound $|p(ix) - e^{ix}|$ and $|\frac{d}{dx}(p(ix) - e^{ix})|$ over $|x| \le \theta$.
    """

    theta: float
    value_error: float
    gradient_error: float
    rows: tuple[tuple[float, ...], ...]

    @property
    def powers(self) -> int:
        """How many of $A$, $A^2$ and $A^4$ there are."""
        return len(self.rows[0]) - 1

    @property
    def products(self) -> int:
        """Matrix products of one evaluation, $A^2$ and $A^4$ included."""
        return self.powers - 1 + len(self.rows) // 2

    @property
    def squares(self) -> int:
        """How many of them are squares of Hermitian or skew matrices."""
        stages = map(_is_square, self.rows[:-1:2], self.rows[1::2])
        return self.powers - 1 + sum(stages)


def _is_square(L: tuple[float, ...], R: tuple[float, ...]) -> bool:
    """Whether L R is the square of a Hermitian combination, of A^2 and A^4."""
    return L == R and L[:2] == (0.0, 0.0)


class _Stage(NamedTuple):
    """One product L R; the last one comes with the final combination F.

    Each is a row of coefficients over the slots of W; L has a multiple of I besides. A
    square has one row.
    """

    factors: Tensor
    final: Tensor
    transposed: Tensor
    identity: float
    is_square: bool


# up to here a polynomial is one call to C; larger matrices are worth a call each step
_ONE_CALL = 256


class _Numbers(NamedTuple):
    """A scheme as C reads it; see polynomial.h."""

    table: Tensor
    powers: int
    stages: int
    squares: int


@lru_cache(maxsize=256)
def _numbers(scheme: Scheme, squarings: int, dtype: torch.dtype) -> _Numbers:
    stages = _stages(scheme, squarings, dtype, torch.device("cpu"))
    numbers: list[float] = []
    for stage in stages:
        L, R = stage.factors.expand(2, -1).tolist()
        numbers += [stage.identity, *L, *R, *stage.final.flatten().tolist()]
    mask = sum(stage.is_square << s for s, stage in enumerate(stages))
    table = torch.tensor(numbers, dtype=dtype, device="cpu")
    return _Numbers(table, scheme.powers, len(stages), mask)


def in_one_call(*tensors: Tensor) -> Kernels | None:
    """The kernels in C, if these matrices are single and so small that it pays."""
    X = tensors[-1]
    if len(X) != 1 or X.shape[-1] > _ONE_CALL or not fits(*tensors):
        return None
    return kernels(X.dtype)


@lru_cache(maxsize=256)
def _stages(
    scheme: Scheme, squarings: int, dtype: torch.dtype, device: torch.device
) -> tuple[_Stage, ...]:
    """The table for the powers of A itself, when p(A / 2^squarings) is wanted."""
    unit, p = scheme.theta * 2.0**squarings, scheme.powers
    units = (unit, unit**2, unit**4)[:p]
    stages = []
    for start in range(0, len(scheme.rows) - 1, 2):
        last = start + 3 == len(scheme.rows)
        rows = scheme.rows[start : start + (3 if last else 2)]
        scaled = [
            (*(c / u for c, u in zip(r[1:], units, strict=False)), *r[p + 1 :])
            for r in rows
        ]
        table = torch.tensor(scaled, dtype=dtype, device=device)
        if _is_square(*rows[:2]):
            stages.append(_Stage(table[:1], table[2:], table[:1].T, 0.0, True))
            continue
        # R before L in the backward pass, where the gradient of R takes its place
        order = [1, 0, 2] if last else [1, 0]
        stages.append(_Stage(table[:2], table[2:], table[order].T, rows[0][0], False))
    return tuple(stages)


def _table(scheme: Scheme, squarings: int, W: Tensor) -> tuple[_Stage, ...]:
    return _stages(scheme, squarings, W.dtype.to_real(), W.device)


def flat(W: Tensor) -> Tensor:
    """(slots, ...) as a real matrix with one row a slot, sharing memory."""
    return (torch.view_as_real(W) if W.is_complex() else W).view(W.shape[0], -1)


def powers(A: Tensor, slots: int) -> Tensor:
    """Room for a scheme's slots, with A and A^2 in the first two."""
    W = recycled((slots, *A.shape), A)
    square(W[0].copy_(A), out=W[1])
    return W


def powers_of_one(
    native: Kernels, A: Tensor, slots: int, *, tiny: float
) -> tuple[Tensor, tuple[float, float, float] | None]:
    """The same in one call, with A^4 and the power sums unless all angles are tiny."""
    W = recycled((slots, *A.shape), A)
    # s2, s3, s4, and the largest s2 of angles that are tiny
    numbers = (ctypes.c_double * 4)(0, 0, 0, tiny**4)
    sums = ctypes.addressof(numbers)
    native.powers(
        *(native.product, A.data_ptr(), W.data_ptr()),
        *(sums, sums + 3 * ctypes.sizeof(ctypes.c_double), A.shape[-1]),
    )
    s2, s3, s4, least = numbers
    return W, None if s2 <= least else (s2, s3, s4)


def add_fourth(W: Tensor) -> None:
    """Write A^4 into the third slot."""
    square(W[1], out=W[2])


# Below, every product writes into memory that is there, and autocast spares `out=` and
# in-place calls.


def evaluate(scheme: Scheme, W: Tensor, squarings: int) -> Tensor:
    """p(A / 2^squarings); writes the products P_3, ... into the slots of W."""
    factors = scratch(W[0], 2)
    if native := in_one_call(W, W[0]):
        Q, numbers = torch.empty_like(W[0]), _numbers(scheme, squarings, W.dtype)
        table, *counts = numbers
        pointers = (X.data_ptr() for X in (W, Q, factors, table))
        native.evaluate(native.product, *pointers, *counts, W.shape[-1])
        return Q
    stages = _table(scheme, squarings, W)
    L, R = factors.unbind()
    W_rows, factor_rows = flat(W), flat(factors)
    diagonal = L.diagonal(dim1=-2, dim2=-1)
    for k, stage in enumerate(stages, start=scheme.powers):
        known = W_rows[:k]
        if stage.is_square:
            torch.mm(stage.factors, known, out=factor_rows[:1])
            square(L, out=W[k])
            continue
        torch.mm(stage.factors, known, out=factor_rows)
        if stage.identity:
            diagonal.add_(stage.identity)
        if stage is stages[-1]:
            Q = W.new_empty((1, *W.shape[1:]))
            torch.mm(stage.final, known, out=flat(Q))
            Q = Q[0]
            Q.diagonal(dim1=-2, dim2=-1).add_(1)
            return Q.baddbmm_(L, R)
        torch.bmm(L, R, out=W[k])
    raise AssertionError("a scheme has at least one product")


def pull_back(scheme: Scheme, W: Tensor, squarings: int, G: Tensor) -> Tensor:
    """The skew gradient at A, given the gradient G at p(A / 2^squarings)."""
    k = len(scheme.rows) // 2 + scheme.powers - 1
    # L; R, then its gradient; those of L and of the final combination; of the slots
    room = scratch(W[0], 4 + k)
    if native := in_one_call(W, G):
        X, numbers = torch.empty_like(G), _numbers(scheme, squarings, W.dtype)
        table, *counts = numbers
        pointers = (Y.data_ptr() for Y in (W, G, X, room, table))
        native.pull_back(native.product, *pointers, *counts, W.shape[-1])
        return X
    stages = _table(scheme, squarings, W)
    L, R, gL, gF, *slots = room.unbind()
    rows, W_rows = flat(room), flat(W)
    L_adjoint, R_adjoint, diagonal = L.mH, R.mH, L.diagonal(dim1=-2, dim2=-1)
    gF.copy_(G)
    for stage in reversed(stages):
        if stage.is_square:
            torch.mm(stage.factors, W_rows[:k], out=rows[:1])
            torch.bmm(_add_adjoint(G, 1, out=gL), L, out=R)
            # A is not in it
            rows[5 : 4 + k].addmm_(stage.transposed[1:], rows[1:2])
            k -= 1
            G = slots[k]
            continue
        torch.mm(stage.factors, W_rows[:k], out=rows[:2])
        if stage.identity:
            diagonal.add_(stage.identity)
        torch.bmm(G, R_adjoint, out=gL)
        torch.bmm(L_adjoint, G, out=R)
        if stage is stages[-1]:
            torch.mm(stage.transposed, rows[1:4], out=rows[4:])
        else:
            rows[4 : 4 + k].addmm_(stage.transposed, rows[1:3])
        k -= 1
        G = slots[k]
    gA, gA2 = slots[:2]
    # only the Hermitian part of a gradient at A^2 or A^4 counts; for a Hermitian S, the
    # gradient S A2 + A2 S is twice the Hermitian part of S A2, and with skew A
    # -(S A + A S) is twice the skew part of -S A; the skew part has a half of its own
    if scheme.powers == 3:
        gA2.baddbmm_(_add_adjoint(slots[2], 1, out=gL), W[1])
    gA.baddbmm_(_add_adjoint(gA2, 1, out=gL), W[0], beta=0.5, alpha=-0.5)
    return _add_adjoint(gA, -1, out=torch.empty_like(gA))


def _add_adjoint(X: Tensor, sign: int, *, out: Tensor) -> Tensor:
    """X + X^H or X - X^H; `out` is other memory."""
    if X.is_complex():
        # conjugated now: in the first call of a compiled function torch 2.13 excludes
        # the dispatch key of lazy conjugation, and sums take X^T for X^H
        torch.conj_physical(X.mT, out=out)
    elif len(X) == 1 and X.shape[-1] >= 1024:
        # torch copies a transposed matrix by blocks, but does not add it so: 1.3 ms
        # for the two steps against 2.3 ms
        out[0].copy_(X[0].mT)
    else:
        return torch.add(X, X.mT, alpha=sign, out=out)
    return torch.add(X, out, alpha=sign, out=out)


def push_forward(
    scheme: Scheme, A: Tensor, E: Tensor, squarings: int
) -> tuple[Tensor, Tensor]:
    """p(A / 2^squarings) and its derivative along any E, differentiable themselves.

    In ordinary torch operations, each matrix with its tangent.
    """
    unit = scheme.theta * 2.0**squarings
    first = (A / unit, E / unit)
    second = times(first, first)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    basis = [(eye, torch.zeros_like(eye)), first, second]
    if scheme.powers == 3:
        basis.append(times(second, second))
    for L, R in zip(scheme.rows[:-1:2], scheme.rows[1::2], strict=True):
        basis.append(times(_sum(L, basis), _sum(R, basis)))
    return _sum((*scheme.rows[-1], 1.0), basis)


def times(X: tuple[Tensor, Tensor], Y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The product of two matrices that carry a tangent."""
    return X[0] @ Y[0], X[1] @ Y[0] + X[0] @ Y[1]


def _sum(
    row: tuple[float, ...], basis: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    value = sum(c * matrix for c, (matrix, _) in zip(row, basis, strict=True))
    slope = sum(c * tangent for c, (_, tangent) in zip(row, basis, strict=True))
    return torch.as_tensor(value), torch.as_tensor(slope)
