r"""The exponential of a batch of skew matrices and its pull-back, in matrix products.

Each matrix gets a plan: which polynomial, and how many squarings,
$\exp A = p(A / 2^s)^{2^s}$. Matrices of equal plan are computed together, so that one
of large norm costs its neighbours nothing.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from isometry._backend.library import Kernels
from isometry.linalg._expm.angles import (
    angle_bound,
    angle_bounds,
    power_sums,
    quick_bound,
)
from isometry.linalg._expm.one_call import (
    evaluate_one,
    in_one_call,
    powers_of_one,
    pull_back_one,
)
from isometry.linalg._expm.polynomial import (
    add_fourth,
    add_identity,
    evaluate,
    powers,
    pull_back,
    push_forward,
    times,
)
from isometry.linalg._expm.scheme import Scheme
from isometry.linalg._expm.schemes import SCHEMES
from isometry.linalg._square import square

# up to these the defect of Q^H Q = I stays below about 20 eps
_FEW_SQUARINGS = 2

# every squaring doubles the defect: after so many it is removed, before it is so large
# that its square, which a Newton-Schulz step leaves, counts
_MANY_SQUARINGS = 8


def slots(dtype: torch.dtype) -> int:
    """A, A^2, A^4, P_3, ... of the longest scheme, and p(A / 2^s) - I if squared."""
    return SCHEMES[dtype.to_real()][-1].products + 1


@lru_cache
def plan_edges(dtype: torch.dtype) -> list[float]:
    """The largest angle of each plan: every polynomial, then the last with squarings.

    A plan is a position in this list. Beyond its end not one digit of the result is
    known: an angle of 1 / eps, and the rounding of A alone turns it by a radian.
    """
    edges = [scheme.theta for scheme in SCHEMES[dtype.to_real()]]
    while edges[-1] * torch.finfo(dtype).eps < 1:
        edges.append(2 * edges[-1])
    return edges


@lru_cache
def plan_costs(dtype: torch.dtype) -> list[int]:
    """Products of each plan, forward and backward; those of no plan last."""
    costs = []
    for plan in range(len(plan_edges(dtype))):
        scheme, squarings = decode(plan, dtype)
        assert scheme is not None
        costs.append(3 * scheme.products - scheme.squares + 3 * squarings)
    return [*costs, 0]


def decode(plan: int, dtype: torch.dtype) -> tuple[Scheme | None, int]:
    """Polynomial and number of squarings; no polynomial if nothing can be known."""
    schemes = SCHEMES[dtype.to_real()]
    if plan >= len(plan_edges(dtype)):
        return None, 0
    squarings = max(plan - len(schemes) + 1, 0)
    return schemes[plan - squarings], squarings


def estimate_plan(W: Tensor) -> Tensor:
    """The plan for each matrix, from bounds of its angles.

    W holds A and A^2, and gets A^4 unless all angles are tiny; it has room for A^8.
    """
    if quick_bound(W[1]) <= plan_edges(W.dtype)[0]:
        return torch.zeros(W.shape[1], dtype=torch.int64, device="cpu")
    add_fourth(W)
    if W.shape[1] == 1:
        plan = _plan_of_one(W, power_sums(W[1:3]))
        return torch.tensor([plan], device="cpu")
    edges = plan_edges(W.dtype)
    lower, upper = angle_bounds(W[1:3], power=2)
    # NaN goes to the end
    plan = np.searchsorted(edges, upper)
    # a sharper bound costs one product, a larger plan none, two or three
    costs = np.array(plan_costs(W.dtype))
    worth = costs[np.searchsorted(edges, lower)] < costs[plan]
    if worth.any():
        V = W[2:4] if worth.all() else W[2:4, torch.from_numpy(worth).to(W.device)]
        square(V[0], out=V[1])
        _, sharper = angle_bounds(V, power=4)
        plan[worth] = np.searchsorted(edges, np.fmin(upper[worth], sharper))
    return torch.from_numpy(plan)


def _plan_of_one(W: Tensor, sums: tuple[float, float, float]) -> int:
    """The same for a batch of one, in numbers: arrays would be a tenth of n = 64."""
    edges = plan_edges(W.dtype)
    lower, upper = angle_bound(sums, power=2)
    plan = bisect_left(edges, upper)
    costs = plan_costs(W.dtype)
    if costs[bisect_left(edges, lower)] < costs[plan]:
        square(W[2], out=W[3])
        _, sharper = angle_bound(power_sums(W[2:4]), power=4)
        plan = bisect_left(edges, min(upper, sharper))
    return plan


def groups(plan: Tensor) -> Iterator[tuple[int, Tensor | None]]:
    """Each plan there is and the matrices that have it, the most frequent one first.

    That one comes with None, for all: to do the others twice is cheaper than to copy
    the many out and back.
    """
    first = int(plan[0])
    if len(plan) == 1 or bool((plan == first).all()):
        yield first, None
        return
    plans, counts = plan.unique(return_counts=True)
    most = int(plans[counts.argmax()])
    yield most, None
    for which in plans.tolist():
        if which != most:
            yield which, (plan == which).nonzero()[:, 0]


def forward(A: Tensor, norm_bound: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """exp(A), and for the backward pass the slots and the plan of each matrix."""
    b = A.shape[0]
    if A.numel() == 0:
        plan = torch.zeros(b, dtype=torch.int64, device="cpu")
        return A.clone(), A.new_empty((slots(A.dtype), *A.shape)), plan
    if norm_bound is None and (native := in_one_call(A)):
        Q, W, which = forward_of_one(native, A)
        return Q, W, torch.tensor([which], device="cpu")
    W = powers(A, slots(A.dtype))
    if norm_bound is None:
        plan = estimate_plan(W)
    else:
        which = bisect_left(plan_edges(A.dtype), norm_bound)
        plan = torch.full((b,), which, device="cpu")
        if which > 0:
            add_fourth(W)
    Q = A
    for which, index in groups(plan):
        if index is None:
            Q = _value(W, which)
        else:
            V = W[:, index]
            Q[index] = _value(V, which)
            W[3:, index] = V[3:]
    return Q, W, plan


def forward_of_one(
    native: Kernels, A: Tensor, *, triangle: bool = False
) -> tuple[Tensor, Tensor, int]:
    """The same for a batch of one in C; with `triangle`, of exp(skew(A))."""
    tiny = plan_edges(A.dtype)[0]
    W, sums = powers_of_one(native, A, slots(A.dtype), tiny=tiny, triangle=triangle)
    which = 0 if sums is None else _plan_of_one(W, sums)
    scheme, squarings = decode(which, A.dtype)
    if scheme is None or squarings or A.shape[-1] == 1:
        return _value(W, which), W, which
    return evaluate_one(native, scheme, W, 0), W, which


def _value(W: Tensor, plan: int) -> Tensor:
    """exp(A) for matrices of one plan; keeps in W what the gradient needs."""
    scheme, squarings = decode(plan, W.dtype)
    if scheme is None:
        return _nan_like(W[0])
    if W.shape[-1] == 1:
        # the scalar function, whose error does not grow with the angle
        return torch.exp(W[0], out=W[-1]).clone()
    S = evaluate(scheme, W, squarings)
    if not squarings:
        return S
    W[-1].copy_(S)
    for k in range(1, squarings + 1):
        S = _squared(S, k)
    # the last squaring may have been followed by a step already
    if squarings > _FEW_SQUARINGS and squarings % _MANY_SQUARINGS:
        S = _orthogonalized(S)
    return add_identity(S)


# Powers of p are kept as Q = I + S. In a row of Q one entry may be near 1 and all else
# tiny, and what that adds to it would be rounded as numbers near 1, one by one: for a
# rotation in one plane (n = 1024, angle 1, float64) the error was 7.0e-14.


def _squared(S: Tensor, k: int) -> Tensor:
    """The k-th squaring: (I + S)^2 = I + 2 S + S^2."""
    S = _add_product(S, S, S, beta=2)
    return S if k % _MANY_SQUARINGS else _orthogonalized(S)


def _orthogonalized(S: Tensor) -> Tensor:
    """One Newton-Schulz step: each squaring has doubled the rounding error of Q^H Q.

    Q + Q D / 2 with D = I - Q^H Q = -(S + S^H + S^H S).
    """
    # conjugated now: `_add_adjoint` in _polynomial.py says why
    adjoint = S.mT.conj_physical()
    D = _add_product(S, S.mH, S, beta=1).add_(adjoint).mul_(-0.5)
    return _add_product(S, S, D, beta=1).add_(D)


def _nan_like(X: Tensor) -> Tensor:
    nan = complex(math.nan, math.nan) if X.is_complex() else math.nan
    return torch.full_like(X, nan)


def _add_product(X: Tensor, Y: Tensor, Z: Tensor, *, beta: int) -> Tensor:
    """beta X + Y Z in the dtype of these: autocast does not touch `out=`."""
    return torch.baddbmm(X, Y, Z, beta=beta, out=torch.empty_like(X))


def backward(W: Tensor, plan: Tensor, G: Tensor) -> Tensor:
    """The gradient at A in the space of skew matrices, given G at exp(A)."""
    if G.numel() == 0:
        return G.clone()
    gradient = G
    for which, index in groups(plan):
        if index is None:
            gradient = _gradient(W, which, G)
        else:
            gradient[index] = _gradient(W[:, index], which, G[index])
    return gradient


def _gradient(W: Tensor, plan: int, G: Tensor) -> Tensor:
    """The skew gradient at A for matrices of one plan."""
    scheme, squarings = decode(plan, W.dtype)
    if scheme is None:
        return _nan_like(G)
    if W.shape[-1] == 1:
        g = G * W[-1].conj()
        return (g - g.conj()) / 2
    return pull_back(scheme, W, squarings, _before_squarings(W, squarings, G))


def backward_of_one(native: Kernels, W: Tensor, plan: int, H: Tensor) -> Tensor:
    """The gradient at X, given the transpose of that at exp(skew(X))."""
    scheme, squarings = decode(plan, W.dtype)
    if scheme is None:
        return _nan_like(H).tril(-1)
    if squarings:
        H = _before_squarings(W, squarings, H.mT).mT.contiguous()
    return pull_back_one(native, scheme, W, squarings, H, triangle=True)


def _before_squarings(W: Tensor, squarings: int, G: Tensor) -> Tensor:
    """The gradient at p(A / 2^s), given G at its power 2^s."""
    # what was squared on the way is recomputed rather than kept
    squares = [W[-1]]
    for k in range(1, squarings):
        squares.append(_squared(squares[-1], k))
    for S in reversed(squares[:squarings]):
        # G Q^H + Q^H G with Q = I + S
        G = _add_product(G, G, S.mH, beta=2).baddbmm_(S.mH, G)
    return G


def frechet(
    A: Tensor, E: Tensor, plan: Tensor, longest: Tensor
) -> tuple[Tensor, Tensor]:
    """exp(A) and its derivative along E, all matrices by the longest plan.

    In ordinary torch operations: this is what second derivatives go through.
    """
    end = len(plan_edges(A.dtype))
    unknown = (plan >= end).to(A.device)
    A = A.masked_fill(unknown[..., None, None], math.nan)
    # a shorter scheme is fitted to value and gradient only: what is second here would
    # be off by up to 60 eps
    least = len(SCHEMES[A.dtype.to_real()]) - 1
    scheme, squarings = decode(min(max(int(longest), least), end - 1), A.dtype)
    assert scheme is not None
    pair = push_forward(scheme, A, E, squarings)
    for k in range(1, squarings + 1):
        pair = times(pair, pair)
        if k % _MANY_SQUARINGS == 0:
            # a constant: along a direction that is not skew the derivative of exp is
            # not tangent, and must not be made so
            H = _correction(pair[0].detach())
            pair = (pair[0] @ H, pair[1] @ H)
    return pair


def _correction(Q: Tensor) -> Tensor:
    """The right factor of a Newton-Schulz step."""
    eye = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    return 1.5 * eye - 0.5 * (Q.mH @ Q)
