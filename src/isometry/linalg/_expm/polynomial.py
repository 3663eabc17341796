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

import torch
from torch import Tensor

from isometry._backend.memory import recycled, scratch
from isometry.linalg._expm.one_call import evaluate_one, in_one_call, pull_back_one
from isometry.linalg._expm.scheme import Scheme, Stage, stages_of
from isometry.linalg._square import square


def _table(scheme: Scheme, squarings: int, W: Tensor) -> tuple[Stage, ...]:
    return stages_of(scheme, squarings, W.dtype.to_real(), W.device)


def flat(W: Tensor) -> Tensor:
    """(slots, ...) as a real matrix with one row a slot, sharing memory."""
    return (torch.view_as_real(W) if W.is_complex() else W).view(W.shape[0], -1)


def powers(A: Tensor, slots: int) -> Tensor:
    """Room for a scheme's slots, with A and A^2 in the first two."""
    W = recycled((slots, *A.shape), A)
    square(W[0].copy_(A), out=W[1])
    return W


def add_fourth(W: Tensor) -> None:
    """Write A^4 into the third slot."""
    square(W[1], out=W[2])


# Below, every product writes into memory that is there, and autocast spares `out=` and
# in-place calls.


def evaluate(scheme: Scheme, W: Tensor, squarings: int) -> Tensor:
    """p(A / 2^squarings), less I if it is to be squared.

    Writes the products P_3, ... into the slots of W.
    """
    if native := in_one_call(W, W[0]):
        return evaluate_one(native, scheme, W, squarings)
    with scratch(W[0], 2) as factors:
        return _evaluate(scheme, W, squarings, factors)


def _evaluate(scheme: Scheme, W: Tensor, squarings: int, factors: Tensor) -> Tensor:
    """The same in torch's operations; `factors` is room for L and R."""
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
            Q = W.new_empty(W.shape[1:])
            torch.mm(stage.final, known, out=flat(Q[None]))
            Q.baddbmm_(L, R)
            # last: what is small beside I would be rounded as a number near 1
            return Q if squarings else add_identity(Q)
        torch.bmm(L, R, out=W[k])
    raise AssertionError("a scheme has at least one product")


def add_identity(X: Tensor) -> Tensor:
    """X + I, in place."""
    X.diagonal(dim1=-2, dim2=-1).add_(1)
    return X


def pull_back(scheme: Scheme, W: Tensor, squarings: int, G: Tensor) -> Tensor:
    """The skew gradient at A, given the gradient G at p(A / 2^squarings)."""
    if native := in_one_call(W, G):
        return pull_back_one(native, scheme, W, squarings, G.mT.contiguous())
    # L; R, then its gradient; those of L and of the final combination; of the slots
    with scratch(W[0], 3 + len(scheme.rows) // 2 + scheme.powers) as room:
        return _pull_back(scheme, W, squarings, G, room)


def _pull_back(
    scheme: Scheme, W: Tensor, squarings: int, G: Tensor, room: Tensor
) -> Tensor:
    """The same in torch's operations."""
    stages = _table(scheme, squarings, W)
    L, R, gL, gF, *slots = room.unbind()
    k = len(slots)
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
