"""Logarithm of the Stiefel manifold with its canonical metric, and its derivative."""

import math
from typing import Any

import torch
from torch import Tensor

from isometry._checks import is_finite
from isometry._torch import in_front, refuse_nested_forward_mode
from isometry.groups._nearest import determinant, newton_schulz
from isometry.groups._stiefel_solve import (
    Linearization,
    conjugate_gradients,
    normal_part,
    pull,
    push,
    solve,
)
from isometry.linalg import expm_skew, expm_tall, logm_unitary

# steps of the first iteration, which converges from afar but slowly; of Newton's
# method; and how often both begin anew
_TURNS, _SHOTS, _STARTS = 20, 30, 20
# a geodesic that ends further than this from its point, for each column, is none
_FAR = 1e-12


def stiefel_log(Q: Tensor, P: Tensor) -> Tensor:
    r"""Velocity at `Q` of the geodesic that is at `P` after unit time.

    With $N$ an orthonormal basis of the part of $P$ across $Q$, the frame $(Q, N)$
    holds the whole geodesic. There $P$ is the first block column of an orthogonal
    $V$; the other columns may be turned freely, and are so until

    $$ \log V = \begin{pmatrix} \Omega & -C^H \\ C & 0 \end{pmatrix},
       \qquad E = Q \Omega + N C, $$

    each time by the exponential of the last block of $\log V$, which shrinks it
    linearly. After 20 such steps Newton's method solves $\exp_Q(E) = P$ itself. The
    geodesic is the shortest if $P$ is within about $0.9 \pi$. Beyond that the method
    converged on every pair that was tried, to a geodesic that need not be the shortest.

    The gradient is the tangent one, from the implicit function theorem:
    $dE = J^{-1} (dP - D_Q \exp_Q(E)[dQ])$ in the tangent space, with $J$ the derivative
    of $\exp_Q$ at $E$. It has a pole where $J$ is singular, at conjugate points.
    Derivatives nest to any order and in any modes but forward over forward. A matrix
    that is not finite has the logarithm NaN.

    Cost: up to 20 logarithms of $2k \times 2k$ matrices and, beyond a distance of about
    1, a few steps of Newton's method. Each of these, and each derivative, solves a
    linear equation by 5 to 40 steps of conjugate gradients, whose cost is that of two
    backward passes through `expm_tall` each. In double precision.

    Args:
        Q: orthonormal columns.
        P: orthonormal columns.

    Returns:
        The tangent vector.

    Raises:
        NotImplementedError: inside two levels of `torch.func.jvp`.
        ValueError: if no geodesic was found.

    References:
        [Zim17] algorithm 1 for the first steps.
    """
    refuse_nested_forward_mode("log")
    dtype = torch.promote_types(Q.dtype, torch.float64)
    # as orthonormal as that precision allows
    base, target = (newton_schulz(newton_schulz(X.to(dtype))) for X in (Q, P))
    E = _StiefelLog.apply(*torch.broadcast_tensors(base, target))
    # a copy: the derivative needs the result, and a caller may write to it
    return E.to(Q.dtype, copy=True)


class _StiefelLog(torch.autograd.Function):
    """The logarithm, with its derivative written in terms of the result."""

    @staticmethod
    def forward(Q: Tensor, P: Tensor) -> Tensor:
        n, k = Q.shape[-2:]
        # -1 would be ambiguous for empty matrices
        flat = (math.prod(Q.shape[:-2]), n, k)
        return _logarithm(Q.reshape(flat), P.reshape(flat)).reshape(Q.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        Q, E = ctx.saved_tensors
        (G,) = grad_outputs
        # J^-* G, a tangent vector at P
        X = push(lambda E: expm_tall(E, Q), (solve(Q, E, G),), E)
        (turned,) = pull(lambda Q: expm_tall(E, Q), X, Q)
        # E stays tangent: sym(Q^H dE) = -sym(dQ^H E)
        tilted = E @ (Q.mH @ normal_part(Q, G))
        gradient = turned + tilted
        return normal_part(Q, gradient) - gradient, X

    @staticmethod
    def jvp(ctx: Any, dQ: Tensor, dP: Tensor) -> Tensor:
        Q, E = ctx.saved_tensors
        dQ = dQ - normal_part(Q, dQ)
        turned = push(lambda Q: expm_tall(E, Q), (dQ,), Q)
        S = dQ.mH @ E
        tilted = Q @ ((S + S.mH) / 2)
        (pulled,) = pull(lambda E: expm_tall(E, Q), dP - turned, E)
        return solve(Q, E, pulled) - tilted

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> tuple[Tensor, int]:
        return _StiefelLog.apply(*in_front(info, in_dims, inputs)), 0


def _logarithm(Q: Tensor, P: Tensor) -> Tensor:
    """For matrices `(m, n, k)`: in the frame of each pair."""
    n, k = Q.shape[-2:]
    if Q.numel() == 0:
        return torch.zeros_like(Q)
    finite = is_finite(Q) & is_finite(P)
    eye = torch.eye(n, k, dtype=Q.dtype, device=Q.device)
    Q, P = torch.where(finite, Q, eye), torch.where(finite, P, eye)
    # of the whole frame, since the part across may not have full rank
    N = torch.linalg.qr(torch.cat([Q, P], -1)).Q[..., k:]
    # the columns of P lie in the frame up to rounding only
    V = newton_schulz(torch.cat([Q.mH @ P, N.mH @ P], -2))
    E = _search(V)
    return torch.where(finite, Q @ E[..., :k, :] + N @ E[..., k:, :], math.nan)


def _turn(V: Tensor, k: int) -> Tensor:
    """First columns of log V, after the last columns of V were turned."""
    A = logm_unitary(V)
    for _ in range(_TURNS):
        C = A[..., k:, k:]
        if C.numel() == 0 or float(torch.linalg.matrix_norm(C).max()) < 1e-14 * k:
            break
        V = newton_schulz(torch.cat([V[..., :k], V[..., k:] @ expm_skew(-C)], -1))
        A = logm_unitary(V)
    return A[..., :k]


def _search(V: Tensor) -> Tensor:
    """Tangent vectors at the origin whose geodesics end at `V`, from several starts."""
    k = V.shape[-1]
    whole = _completed(V)
    E, rest = _shoot(_turn(whole, k), V)
    rng = torch.Generator().manual_seed(1)
    for _ in range(_STARTS):
        far = rest > _FAR * k
        if not far.any():
            return E
        # other last columns lead to other geodesics: next to a fold Newton's method
        # may go back and forth
        columns = whole[far][..., k:]
        shape = (len(columns), columns.shape[-1], columns.shape[-1])
        X = torch.randn(shape, dtype=V.dtype, generator=rng).to(V.device)
        turned = torch.cat([V[far], columns @ expm_skew(X - X.mH)], -1)
        E[far], rest[far] = _shoot(_turn(turned, k), V[far])
    raise ValueError(
        f"`P` must be joined to `Q` by a geodesic that can be found; got a pair whose "
        f"iteration stopped {float(rest.max()):.1e} from `P`, above {_FAR * k:.1e}. "
        f"Within a distance of about 0.9 pi there is one: go through a point between."
    )


def _shoot(E: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method, and how far from `P` the geodesics end."""
    k = P.shape[-1]
    origin = torch.eye(*P.shape[-2:], dtype=P.dtype, device=P.device).expand_as(P)
    E = E - normal_part(origin, E)
    worst = math.inf
    for _ in range(_SHOTS):
        rest = torch.linalg.matrix_norm(P - expm_tall(E, origin))
        # about the rounding error; and from `_FAR` one more step ends there
        at = (rest > 4e-15 * k).nonzero()[:, 0]
        if len(at) == 0 or worst <= _FAR * k:
            break
        worst = float(rest.max())
        start = Linearization(origin[at], E[at])
        image = start.pull(P[at] - start.point)
        # it need not be more exact than the step: 1e-2 squared is 1e-4, and so on
        rtol = min(max(worst, 1e-10), 1e-2)
        step = conjugate_gradients(start.product, image, rtol=rtol)
        length = torch.linalg.matrix_norm(step, keepdim=True)
        E = E.index_add(0, at, step / length.clamp(min=1))
    return E, torch.linalg.matrix_norm(P - expm_tall(E, origin))


def _completed(V: Tensor) -> Tensor:
    """A square orthogonal matrix with the given first columns, turned towards I."""
    m, k = V.shape[-2:]
    rest = torch.linalg.qr(V, mode="complete").Q[..., k:]
    U, _, Wh = torch.linalg.svd(rest[..., k:, :])
    rest = rest @ (Wh.mH @ U.mH)
    whole = torch.cat([V, rest], -1)
    if not V.is_complex() and m > k:
        sign = determinant(whole).sgn()
        # the direction that is cheapest to turn round: of the smallest singular value
        turn = U @ torch.diag_embed(_last_sign(sign, m - k)) @ U.mT
        whole = torch.cat([V, rest @ turn], -1)
    return whole


def _last_sign(sign: Tensor, size: int) -> Tensor:
    ones = torch.ones(*sign.shape, size - 1, dtype=sign.dtype, device=sign.device)
    return torch.cat([ones, sign[..., None]], -1)
