"""Logarithm in a group of which only the Lie algebra is known."""

import math
from typing import Protocol

import torch
from torch import Tensor

from isometry.groups._basis import Algebra, basis, matrices
from isometry.groups._nearest import newton_schulz
from isometry.groups._torus_log import torus_log
from isometry.linalg import expm_skew, expm_skew_frechet, logm_unitary

# starts that are compared, those that are followed from each point, and how far
_STARTS, _FOLLOWED, _STEPS = 128, 4, 12


class Projected(Algebra, Protocol):
    """An algebra and the projection to it."""

    def algebra_projection(self, X: Tensor) -> Tensor: ...


def derived_log(group: Projected, Q: Tensor) -> Tensor:
    r"""An element $A$ of the Lie algebra with $\exp A = Q$, for a unitary `Q`.

    The principal logarithm, if it is one. In a representation of high weight it need
    not be: SO(3) on traceless symmetric matrices turns them by twice the angle, up to
    $2\pi$. Then that of a maximal torus through `Q`, see `torus_log`. If `Q` is not in
    the group, $\exp A$ is the point that Newton's method finds close to it.
    """
    A = group.algebra_projection(logm_unitary(Q))
    with torch.no_grad():
        rest = torch.linalg.matrix_norm(expm_skew(A) - Q)
        # what `tolerance` grants to points; NaN is not above it
        missed = rest > 20 * max(group.size, 1) * torch.finfo(Q.dtype).eps
        if not missed.any():
            return A
        found = _search(group, Q[missed], A[missed]).to(A)
    return A.masked_scatter(missed[..., None, None], found)


def _search(group: Projected, Q: Tensor, A: Tensor) -> Tensor:
    """For matrices `(m, n, n)`: from `A`, from a torus, and else from many starts."""
    dtype = torch.promote_types(Q.dtype, torch.float64)
    # as unitary as that precision allows
    Q, A = newton_schulz(newton_schulz(Q.to(dtype))), A.to(dtype)
    A = _newton(group, A, Q, steps=4)
    units = matrices(basis(group)[0].to(Q.device), group.size, group.is_complex)
    # the larger ones for matrices that are near the group only
    for slack in (1e-6, 1e-2, 0.2):
        for i in _far(A, Q).nonzero().flatten().tolist():
            start = torus_log(Q[i], units, slack=slack)
            if start is not None:
                A[i] = _newton(group, start, Q[i], steps=4)
    far = _far(A, Q)
    if far.any():
        A[far] = _search_from_many(group, Q[far], A[far])
    return A


def _far(A: Tensor, Q: Tensor) -> Tensor:
    # two points of the group that are closer have a small logarithm, which is in the
    # algebra: if Q is a point, then Newton's method has found it
    return torch.linalg.matrix_norm(expm_skew(A) - Q) > 0.3


def _search_from_many(group: Projected, Q: Tensor, A: Tensor) -> Tensor:
    starts = _starts(group, Q)
    overlap = torch.einsum("sij,mij->ms", expm_skew(starts).conj(), Q).real
    best = overlap.topk(_FOLLOWED, -1).indices
    A = torch.cat([A[:, None], starts[best]], 1)
    Q = Q[:, None].expand_as(A)
    A = _newton(group, A, Q, steps=_STEPS)
    closest = torch.linalg.matrix_norm(expm_skew(A) - Q).argmin(-1)
    return A.take_along_dim(closest[:, None, None, None], 1)[:, 0]


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
    # small singular values are folds of the exponential: no step across them
    step = (torch.linalg.pinv(J, rtol=1e-6) @ goal[..., None])[..., 0]
    step = step / torch.linalg.vector_norm(step, dim=-1, keepdim=True).clamp(min=1)
    return torch.einsum("...a,aij->...ij", step.to(units.dtype), units)


def _starts(group: Projected, like: Tensor) -> Tensor:
    """Elements of the algebra, of every length up to a turn."""
    n = group.size
    rng = torch.Generator().manual_seed(1)
    X = torch.randn(_STARTS, n, n, dtype=like.dtype, generator=rng).to(like.device)
    A = group.algebra_projection(X)
    radius = 2 * math.pi * torch.rand(_STARTS, dtype=torch.float64, generator=rng)
    norm = torch.linalg.matrix_norm(A, 2).clamp(min=torch.finfo(like.dtype).tiny)
    return A * (radius.to(like.device) / norm)[..., None, None]
