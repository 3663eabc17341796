"""Logarithm in a group of which only the Lie algebra is known."""

import math
from typing import Protocol

import torch
from torch import Tensor

from isometry.groups._basis import Algebra, basis, matrices
from isometry.groups._nearest import newton_schulz
from isometry.linalg import expm_skew, expm_skew_frechet, logm_unitary

# starts that are compared, those that are followed from each point, and how far
_STARTS, _FOLLOWED, _STEPS = 512, 8, 12


class Projected(Algebra, Protocol):
    """An algebra and the projection to it."""

    def algebra_projection(self, X: Tensor) -> Tensor: ...


def derived_log(group: Projected, Q: Tensor) -> Tensor:
    r"""An element $A$ of the Lie algebra with $\exp A = Q$, for a unitary `Q`.

    The principal logarithm, if it is one. In a representation of high weight it need
    not be: SO(3) on traceless symmetric matrices turns them by twice the angle, up to
    $2\pi$. Then Newton's method in the algebra, from starts spread over the group;
    the shortest result is taken. If `Q` is not in the group, $\exp A$ is the point that
    Gauss and Newton's method finds close to it.
    """
    A = group.algebra_projection(logm_unitary(Q))
    with torch.no_grad():
        rest = torch.linalg.matrix_norm(expm_skew(A) - Q)
        # twice what `tolerance` grants to points; NaN is not above it
        missed = rest > 20 * max(group.size, 1) * torch.finfo(Q.dtype).eps
        if not missed.any():
            return A
        found = _search(group, Q[missed], A[missed]).to(A)
    return A.masked_scatter(missed[..., None, None], found)


def _search(group: Projected, Q: Tensor, A: Tensor) -> Tensor:
    """Newton's method for matrices `(m, n, n)`, from `A` and else from many starts."""
    dtype = torch.promote_types(Q.dtype, torch.float64)
    # as unitary as that precision allows
    Q, A = newton_schulz(newton_schulz(Q.to(dtype))), A.to(dtype)
    A = _newton(group, A, Q, steps=4)
    # two points of the group this close have a small logarithm, which is in the
    # algebra: if Q is a point, then Newton's method has found it
    far = torch.linalg.matrix_norm(expm_skew(A) - Q) > 0.3
    if far.any():
        A[far] = _search_from_many(group, Q[far], A[far])
    return A


def _search_from_many(group: Projected, Q: Tensor, A: Tensor) -> Tensor:
    starts = _starts(group, Q)
    overlap = torch.einsum("sij,mij->ms", expm_skew(starts).conj(), Q).real
    # of two that are as close the shorter one
    merit = overlap - 0.1 * torch.linalg.matrix_norm(starts, 2)
    best = merit.topk(_FOLLOWED, -1).indices
    A = torch.cat([A[:, None], starts[best]], 1)
    Q = Q[:, None].expand_as(A)
    A = _newton(group, A, Q, steps=_STEPS)
    rest = torch.linalg.matrix_norm(expm_skew(A) - Q)
    # the shortest of those that are as close as any, up to rounding
    near = rest <= rest.amin(-1, keepdim=True) + 1e-9
    length = torch.where(near, torch.linalg.matrix_norm(A), math.inf)
    return A.take_along_dim(length.argmin(-1)[:, None, None, None], 1)[:, 0]


def _newton(group: Projected, A: Tensor, Q: Tensor, *, steps: int) -> Tensor:
    for _ in range(steps):
        step = _newton_step(group, A, Q)
        A = A + step
        if not float(step.abs().max()) > 1e-13:
            break
    return A


def _newton_step(group: Projected, A: Tensor, Q: Tensor) -> Tensor:
    r"""$W$ in the algebra with $e^{-A} D\exp(A)[W] = \log(e^{-A} Q)$, projected."""
    n, rows = group.size, basis(group)[0].to(A.device)
    units = matrices(rows, n, group.is_complex)
    P = expm_skew(A)
    delta = logm_unitary(P.mH @ Q)
    pairs = torch.broadcast_tensors(A[..., None, :, :], units)
    moved = (
        P.mH[..., None, :, :] @ expm_skew_frechet(*(x.contiguous() for x in pairs))[1]
    )
    # entries of the derivative and of the goal in the orthonormal basis
    J = torch.einsum("aij,...bij->...ab", units.conj(), moved).real
    goal = torch.einsum("aij,...ij->...a", units.conj(), delta).real
    # no step across a fold of the exponential
    step = (torch.linalg.pinv(J, rtol=1e-6) @ goal[..., None])[..., 0]
    return torch.einsum("...a,aij->...ij", step.to(units.dtype), units)


def _starts(group: Projected, like: Tensor) -> Tensor:
    """Elements of the algebra, of every length up to a few turns."""
    n = group.size
    rng = torch.Generator().manual_seed(1)
    X = torch.randn(_STARTS, n, n, dtype=like.dtype, generator=rng).to(like.device)
    A = group.algebra_projection(X)
    # irreducible representations of dimension n have weights up to (n - 1) / 2, so that
    # they turn by that many half turns; circles may turn faster
    radius = math.pi * (n + 2) * torch.rand(_STARTS, dtype=torch.float64, generator=rng)
    norm = torch.linalg.matrix_norm(A, 2).clamp(min=torch.finfo(like.dtype).tiny)
    return A * (radius.to(like.device) / norm)[..., None, None]
