"""Logarithm of the Stiefel manifold with its canonical metric."""

import torch
from torch import Tensor

from isometry.groups._nearest import newton_schulz
from isometry.linalg import expm_skew, logm_unitary

_ITERATIONS = 1000


@torch.no_grad()
def stiefel_log(Q: Tensor, P: Tensor) -> Tensor:
    r"""Velocity at `Q` of the geodesic that is at `P` after unit time.

    With $N$ an orthonormal basis of the part of $P$ across $Q$, the frame $(Q, N)$
    holds the whole geodesic. There $P$ is the first block column of an orthogonal
    $V$; the other columns may be turned freely, and are so until

    $$ \log V = \begin{pmatrix} \Omega & -C^H \\ C & 0 \end{pmatrix},
       \qquad E = Q \Omega + N C, $$

    each time by the exponential of the last block of $\log V$, which shrinks it
    linearly. The geodesic is the shortest if $P$ is within about $0.9 \pi$. Beyond that
    the iteration converged on every pair that was tried, to one that need not be. In
    double precision, and without a gradient.

    Args:
        Q: orthonormal columns.
        P: orthonormal columns, of the same component if square.

    Returns:
        The tangent vector.

    Raises:
        ValueError: if the iteration does not converge: `P` is too far.

    References:
        [Zim17] algorithm 1.
    """
    k = Q.shape[-1]
    dtype = torch.promote_types(Q.dtype, torch.float64)
    # as orthonormal as that precision allows
    base, target = (newton_schulz(newton_schulz(X.to(dtype))) for X in (Q, P))
    # of the whole frame, since the part across may not have full rank
    N = torch.linalg.qr(torch.cat([base, target], -1)).Q[..., k:]
    V = _completed(torch.cat([base.mH @ target, N.mH @ target], -2))
    A = logm_unitary(V)
    for _ in range(_ITERATIONS):
        C = A[..., k:, k:]
        if C.numel() == 0 or float(torch.linalg.matrix_norm(C).max()) < 1e-14 * k:
            break
        V = torch.cat([V[..., :k], V[..., k:] @ expm_skew(-C)], -1)
        A = logm_unitary(V)
    _check_converged(A[..., k:, k:], like=Q)
    return (base @ A[..., :k, :k] + N @ A[..., k:, :k]).to(Q.dtype)


def _completed(V: Tensor) -> Tensor:
    """A square orthogonal matrix with the given first columns, turned towards I."""
    m, k = V.shape[-2:]
    # the given columns lie in the frame up to rounding only
    rest = torch.linalg.qr(V, mode="complete").Q[..., k:]
    U, _, Wh = torch.linalg.svd(rest[..., k:, :])
    rest = rest @ (Wh.mH @ U.mH)
    whole = torch.cat([V, rest], -1)
    if not V.is_complex() and m > k:
        sign = torch.linalg.det(whole).sgn()
        # the direction that is cheapest to turn round: of the smallest singular value
        turn = U @ torch.diag_embed(_last_sign(sign, m - k)) @ U.mT
        whole = torch.cat([V, rest @ turn], -1)
    return whole


def _last_sign(sign: Tensor, size: int) -> Tensor:
    ones = torch.ones(*sign.shape, size - 1, dtype=sign.dtype, device=sign.device)
    return torch.cat([ones, sign[..., None]], -1)


def _check_converged(C: Tensor, *, like: Tensor) -> None:
    # ten thousand times the goal: what rounding may leave after a slow convergence
    rest = float(torch.linalg.matrix_norm(C).max()) if C.numel() else 0.0
    bound = max(1e-10, 10 * torch.finfo(like.dtype).eps)
    if not rest <= bound:
        raise ValueError(
            f"`P` must be within the radius of injectivity around `Q`, about 0.9 pi, "
            f"to be sure of a logarithm; the iteration stopped at {rest:.1e}, above "
            f"{bound:.1e}. Go in steps, through a point between them."
        )
