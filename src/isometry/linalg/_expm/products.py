r"""The exponential of a batch of skew matrices, and its pull-back, by matrix products.

Each matrix gets a plan: a polynomial $p$ and a number $s$ of squarings in
$\exp A = p(A / 2^s)^{2^s}$. Matrices with the same plan are computed together, so a
matrix of large norm does not slow down the rest of the batch.

The plan depends on bounds on the angles of the matrix; angles.py explains the bounds.
"""

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isometry._backend import Backend, PowerSums, power_sums
from isometry._backend.memory import recycled
from isometry.linalg._expm.angles import MARGIN, angle_bounds
from isometry.linalg._expm.schemes import SCHEMES, Scheme, polynomial

# Up to this many squarings, the defect |Q^H Q - I| stays below about 20 eps, so no
# Newton-Schulz step is needed.
_FEW_SQUARINGS = 2

# There is a Newton-Schulz step after every `MANY_SQUARINGS` squarings. Each squaring
# doubles the defect, and the step squares the defect. After eight doublings, the square
# of the defect is still negligible.
MANY_SQUARINGS = 8


@lru_cache
def slots(dtype: torch.dtype) -> int:
    """Number of slots of an evaluation: for A, A^2, A^4, P_3, ..., and one more.

    _backend/polynomial.py explains slots. The last slot holds p(A / 2^s) - I if there
    are squarings, or exp(A) if n = 1. There are at least four slots, since the bound on
    the angles uses the fourth for A^8.
    """
    schemes = SCHEMES[dtype.to_real()]
    return max(4, *(scheme.products + 1 for scheme in schemes))


@lru_cache
def plan_edges(dtype: torch.dtype) -> list[float]:
    """The largest angle for which each plan is accurate, in ascending order.

    A plan is an index into this list: first all schemes, then the last scheme with 1,
    2, 3, ... squarings. There is no plan for angles above the last entry, because no
    digit would be correct: at an angle of 1 / eps, rounding A alone rotates the result
    by a radian.
    """
    edges = [scheme.theta for scheme in SCHEMES[dtype.to_real()]]
    while edges[-1] * torch.finfo(dtype).eps < 1:
        edges.append(2 * edges[-1])
    return edges


@lru_cache
def plan_costs(dtype: torch.dtype) -> list[int]:
    """Approximate number of products of each plan, forward and backward together.

    The squares that the backward pass recomputes, and Newton-Schulz steps, are not
    counted. The last entry is for matrices with angles too large for every plan. It is
    0, so no plan costs less, and no product is spent on looking for a cheaper plan.
    """
    costs = []
    for plan in range(len(plan_edges(dtype))):
        scheme, squarings = decode(plan, dtype)
        assert scheme is not None
        costs.append(3 * scheme.products - scheme.squares + 3 * squarings)
    return [*costs, 0]


@lru_cache(maxsize=256)
def decode(plan: int, dtype: torch.dtype) -> tuple[Scheme | None, int]:
    """The scheme of a plan (None after the last plan) and its number of squarings."""
    schemes = SCHEMES[dtype.to_real()]
    if plan >= len(plan_edges(dtype)):
        return None, 0
    squarings = max(plan - len(schemes) + 1, 0)
    return schemes[plan - squarings], squarings


def estimate_plan(backend: Backend, W: Tensor, sums: PowerSums) -> Any:
    """The plan of each matrix, from bounds on its angles: a number or an array.

    Args:
        backend: computes A^8 if it is needed.
        W: the slots, with A, A^2 and A^4. A^8 may be written into the fourth slot,
            which is still empty.
        sums: the power sums of A^2 and A^4: numbers for one matrix, arrays for several.
    """
    dtype = W.dtype
    lower, upper = angle_bounds(sums, power=2)
    plan = _plan_for(upper, dtype)
    costs = plan_costs(dtype)
    # on an accelerator, the sharper bound would make the host wait a second time
    if not W.is_cpu:
        return plan
    # A sharper bound costs one product, and may allow a plan with fewer products. It is
    # computed only if the lower bound allows such a plan.
    if isinstance(plan, int):
        if costs[_plan_for(lower, dtype)] < costs[plan]:
            plan = min(plan, _sharper_plan(backend, W[2:4]))
        return plan
    worth = np.take(costs, _plan_for(lower, dtype)) < np.take(costs, plan)
    if worth.any():
        V = W[2:4] if worth.all() else W[2:4, torch.from_numpy(worth)]
        plan[worth] = np.minimum(plan[worth], _sharper_plan(backend, V))
    return plan


def _sharper_plan(backend: Backend, pair: Tensor) -> Any:
    """The plan from the sharper bound; `pair` holds A^4, and memory for A^8."""
    backend.square(pair[0], pair[1])
    upper = angle_bounds(power_sums(pair), power=4)[1]
    return _plan_for(upper, pair.dtype)


def _plan_for(bound: Any, dtype: torch.dtype) -> Any:
    """The first plan for angles up to `bound`, or the number of plans if none fits."""
    edges = plan_edges(dtype)
    if isinstance(bound, np.ndarray):
        return np.searchsorted(edges, bound)
    return len(edges) if math.isnan(bound) else bisect_left(edges, bound)


def by_plan(plans: Tensor) -> tuple[int, list[tuple[int, Tensor]]]:
    """The most frequent plan, and each other plan with the indices of its matrices.

    All matrices are computed by the most frequent plan, and then the few matrices with
    other plans once more. This is cheaper than copying most matrices out and back.
    """
    # numpy reads the numbers without an operation that torch would trace
    numbers = plans.numpy()
    # with one matrix there is nothing to compare, and numpy is slow for tiny arrays
    if numbers.size == 1 or (numbers == numbers[0]).all():
        return int(numbers[0]), []
    values, counts = np.unique(numbers, return_counts=True)
    most_frequent = int(values[counts.argmax()])
    rare_plans = [
        (plan, torch.from_numpy(np.flatnonzero(numbers == plan)))
        for plan in values.tolist()
        if plan != most_frequent
    ]
    return most_frequent, rare_plans


def new_slots(A: Tensor) -> Tensor:
    """Memory for the slots of an evaluation, for matrices `A` of shape (batch, n, n).

    The caller writes the matrices into the first slot.
    """
    return recycled((slots(A.dtype), *A.shape), A)


def forward(
    backend: Backend, W: Tensor, norm_bound: float | None = None
) -> tuple[Tensor, Tensor]:
    """exp(A), and the plan of each matrix. The backward pass needs the plans and W.

    Args:
        backend: computes all products.
        W: the slots. The first one holds the matrices A; the others are overwritten.
        norm_bound: an upper bound on all angles, if one is known.
    """
    if W.numel() == 0:
        plans = torch.zeros(W.shape[1], dtype=torch.int64, device="cpu")
        return W[0].clone(), plans
    if norm_bound is None:
        # if the sum of theta^4 is at most this, the first plan suffices
        limit = (plan_edges(W.dtype)[0] / MARGIN) ** 4
        sums = backend.powers(W, skip_up_to=limit)
        choice = 0 if sums is None else estimate_plan(backend, W, sums)
    else:
        choice = _plan_for(norm_bound, W.dtype)
        backend.square(W[0], W[1])
        if choice > 0:
            backend.square(W[1], W[2])
    if isinstance(choice, np.ndarray):
        plans = torch.from_numpy(choice)
    else:
        plans = torch.tensor([choice] * W.shape[1], device="cpu")
    plan, rare_plans = by_plan(plans)
    Q = _value_by_plan(backend, W, plan)
    for plan, index in rare_plans:
        V = W[:, index]
        Q[index] = _value_by_plan(backend, V, plan)
        W[3:, index] = V[3:]
    return Q, plans


def _value_by_plan(backend: Backend, W: Tensor, plan: int) -> Tensor:
    """exp(A) for matrices of one plan; writes into W what the gradient needs."""
    scheme, squarings = decode(plan, W.dtype)
    if scheme is None:
        return W[0] * math.nan
    if W.shape[-1] == 1:
        # the matrices are 1 x 1; the error of torch.exp does not grow with the angle
        return torch.exp(W[0], out=W[-1]).clone()
    S = backend.evaluate(W, polynomial(scheme, squarings))
    if not squarings:
        return S
    W[-1].copy_(S)
    for k in range(1, squarings + 1):
        S = _squared(S, k)
    # if `squarings` is a multiple of MANY_SQUARINGS, `_squared` has already
    # orthogonalized S
    if squarings > _FEW_SQUARINGS and squarings % MANY_SQUARINGS:
        S = _orthogonalized(S)
    S.diagonal(dim1=-2, dim2=-1).add_(1)
    return S


# The squarings compute powers Q of p(A / 2^s), and store each as S = Q - I. A row of Q
# may have one entry near 1 while all others are tiny. In a product of Q with itself,
# the tiny terms would be added to a number near 1 one by one, and every sum would be
# rounded. For a rotation in one plane (n = 1024, angle 1, float64), the error is
# 3.4e-15 with S. It was 7.0e-14 when Q itself was stored.


def _squared(S: Tensor, k: int) -> Tensor:
    """S after the k-th squaring: 2 S + S^2, since (I + S)^2 = I + 2 S + S^2.

    After every `MANY_SQUARINGS` squarings, the result is orthogonalized.
    """
    S = _add_product(S, S, S, beta=2)
    return S if k % MANY_SQUARINGS else _orthogonalized(S)


def _orthogonalized(S: Tensor) -> Tensor:
    """S after a Newton-Schulz step on Q = I + S.

    The step removes the defect, which every squaring doubles. It replaces Q with
    Q + Q D, where D = (I - Q^H Q) / 2 = -(S + S^H + S^H S) / 2.
    """
    # The sum below needs a copy instead of `S.mH`, for the reason given in
    # `_add_adjoint` of _backend/operations.py.
    adjoint = S.mT.conj_physical()
    D = _add_product(S, S.mH, S, beta=1).add_(adjoint).mul_(-0.5)
    return _add_product(S, S, D, beta=1).add_(D)


def _add_product(X: Tensor, Y: Tensor, Z: Tensor, *, beta: int) -> Tensor:
    """beta X + Y Z in the dtype of X: autocast does not change calls with `out=`."""
    return torch.baddbmm(X, Y, Z, beta=beta, out=torch.empty_like(X))


def backward(backend: Backend, W: Tensor, plans: Tensor, G: Tensor) -> Tensor:
    """The skew gradient with respect to A, of a function of exp(A).

    G is the gradient of the function with respect to exp(A).
    """
    if G.numel() == 0:
        return G.clone()
    plan, rare_plans = by_plan(plans)
    gradient = _gradient_by_plan(backend, W, plan, G)
    for plan, index in rare_plans:
        gradient[index] = _gradient_by_plan(backend, W[:, index], plan, G[index])
    return gradient


def _gradient_by_plan(backend: Backend, W: Tensor, plan: int, G: Tensor) -> Tensor:
    """The skew gradient with respect to matrices A that have the same plan."""
    scheme, squarings = decode(plan, W.dtype)
    if scheme is None:
        return G * math.nan
    if W.shape[-1] == 1:
        g = G * W[-1].conj()
        return (g - g.conj()) / 2
    if squarings:
        G = _before_squarings(W, squarings, G)
    return backend.pull_back(W, polynomial(scheme, squarings), G)


def _before_squarings(W: Tensor, squarings: int, G: Tensor) -> Tensor:
    """Pull the gradient G back through the squarings.

    G is the gradient with respect to P^(2^s), where P = p(A / 2^s). The result is the
    gradient with respect to P.
    """
    # the intermediate squares are recomputed, which saves memory
    squares = [W[-1]]
    for k in range(1, squarings):
        squares.append(_squared(squares[-1], k))
    for S in reversed(squares):
        # G Q^H + Q^H G with Q = I + S
        G = _add_product(G, G, S.mH, beta=2).baddbmm_(S.mH, G)
    return G
