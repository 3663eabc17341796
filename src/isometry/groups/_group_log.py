"""Logarithm in a group of which only the Lie algebra is known."""

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from isometry._torch import in_front
from isometry.groups._basis import Algebra, basis, matrices
from isometry.groups._nearest import newton_schulz
from isometry.groups._torus_log import torus_log
from isometry.linalg import expm_skew, logm_unitary
from isometry.linalg._expm.autograd import frechet
from isometry.linalg._logm import Dlogm, Logm

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
    units = _units(group, like=A)
    found = _InAlgebra.apply(Q[missed], found, units)
    return A.masked_scatter(missed[..., None, None], found)


def with_derivative(Q: Tensor, A: Tensor) -> Tensor:
    r"""The logarithm `A` of a unitary `Q`, principal or not, as a function of `Q`.

    The derivative is that of `logm_unitary`, which follows from $\exp A = Q$ alone.

    Args:
        Q: unitary.
        A: a skew matrix with $\exp A = Q$, found by any means.
    """
    return _Known.apply(Q, A.detach())


class _Known(Logm):
    """The logarithm, where its value is known."""

    @staticmethod
    def forward(_Q: Tensor, A: Tensor) -> Tensor:
        return A.clone()

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> tuple[Tensor, int]:
        return _Known.apply(*in_front(info, in_dims, inputs)), 0


class _InAlgebra(torch.autograd.Function):
    r"""The known solution `A` in an algebra of: $\log(e^{-A} Q)$ is normal to it.

    If `Q` is in the group, that is its logarithm; else it leads to a point nearby. The
    derivative of $\exp$ is inverted in the algebra only. On all skew matrices it may be
    singular: a quarter turn of quadrupoles has angles that differ by $2 \pi$.
    """

    @staticmethod
    def forward(_Q: Tensor, A: Tensor, _units: Tensor) -> Tensor:
        return A.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output, inputs[2])
        ctx.save_for_forward(inputs[0], output, inputs[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        Q, A, units = ctx.saved_tensors
        J, N = _linearized(Q, A, units)
        c = _components(units, grad_outputs[0])
        c = torch.linalg.solve(J.mT, c[..., None])[..., 0]
        return Q @ Dlogm.apply(-N, _combined(c, units)), None, None

    @staticmethod
    def jvp(ctx: Any, dQ: Tensor, *_: Any) -> Tensor:
        Q, A, units = ctx.saved_tensors
        J, N = _linearized(Q, A, units)
        c = _components(units, Dlogm.apply(N, Q.mH @ dQ))
        return _combined(torch.linalg.solve(J, c[..., None])[..., 0], units)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> tuple[Tensor, int]:
        Q, A = in_front(info, in_dims[:2], inputs[:2])
        return _InAlgebra.apply(Q, A, inputs[2]), 0


def _linearized(Q: Tensor, A: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    r"""The derivative of $-\log(e^{-A} Q)$ in `A`, in the algebra, and that log."""
    D = newton_schulz(expm_skew(A).mH @ Q)
    N = logm_unitary(D)
    D, wide_N = D[..., None, :, :], N[..., None, :, :]
    turned = D.mH @ _moved(A, units) @ D
    return _components(units, Dlogm.apply(wide_N.expand_as(turned), turned)).mT, N


def _units(group: Algebra, *, like: Tensor) -> Tensor:
    """Orthonormal basis of the algebra."""
    rows = basis(group)[0].to(device=like.device, dtype=like.dtype.to_real())
    return matrices(rows, group.size, group.is_complex)


def _moved(A: Tensor, units: Tensor) -> Tensor:
    r"""$e^{-A} D\exp(A)$ of each of the `units`, on a new axis."""
    pairs = torch.broadcast_tensors(A[..., None, :, :], units)
    Q, L = frechet(*(x.contiguous() for x in pairs))
    return Q.mH @ L


def _components(units: Tensor, X: Tensor) -> Tensor:
    return torch.einsum("aij,...ij->...a", units.conj(), X).real


def _combined(c: Tensor, units: Tensor) -> Tensor:
    return torch.einsum("...a,aij->...ij", c.to(units.dtype), units)


def _search(group: Projected, Q: Tensor, A: Tensor) -> Tensor:
    """For matrices `(m, n, n)`: from `A`, from a torus, and else from many starts."""
    dtype = torch.promote_types(Q.dtype, torch.float64)
    # as unitary as that precision allows
    Q, A = newton_schulz(newton_schulz(Q.to(dtype))), A.to(dtype)
    A = _newton(group, A, Q, steps=4)
    units = _units(group, like=Q)
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
    units = _units(group, like=A)
    J = _components(units, _moved(A, units)).mT
    goal = _components(units, logm_unitary(expm_skew(A).mH @ Q))
    # small singular values are folds of the exponential: no step across them
    step = (torch.linalg.pinv(J, rtol=1e-6) @ goal[..., None])[..., 0]
    step = step / torch.linalg.vector_norm(step, dim=-1, keepdim=True).clamp(min=1)
    return _combined(step, units)


def _starts(group: Projected, like: Tensor) -> Tensor:
    """Elements of the algebra, of every length up to a turn."""
    n = group.size
    rng = torch.Generator().manual_seed(1)
    X = torch.randn(_STARTS, n, n, dtype=like.dtype, generator=rng).to(like.device)
    A = group.algebra_projection(X)
    radius = 2 * math.pi * torch.rand(_STARTS, dtype=torch.float64, generator=rng)
    norm = torch.linalg.matrix_norm(A, 2).clamp(min=torch.finfo(like.dtype).tiny)
    return A * (radius.to(like.device) / norm)[..., None, None]
