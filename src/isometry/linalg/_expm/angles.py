"""Bounds on the angles or the norm of a matrix, for callers that choose no plan.

The bounds from which `expm_skew` chooses its plan are in `exponential.py`.
"""

import torch
from torch import Tensor

# dimension of the space in which `krylov_norm` looks for the largest angle
_KRYLOV = 12


def samuelson_bound(A: Tensor, A2: Tensor) -> float:
    r"""A bound on the angles of all matrices of a batch, by Samuelson's inequality.

    Take $n$ numbers with mean $m$ and variance $s^2$. A number that occurs $r$ times
    among them is at most $m + s \sqrt{(n - r)/r}$. Here the numbers are $\theta^2$,
    with the sum $\lVert A \rVert_F^2$ and the sum of squares $\lVert A^2 \rVert_F^2$.
    If $A$ is real, its angles come in pairs, so $r = 2$. For a random matrix the bound
    is about $(n/32)^{1/4}$ times too large.
    """
    n, r = A.shape[-1], 1 if A.is_complex() else 2
    mean = torch.linalg.matrix_norm(A).square() / n
    variance = torch.linalg.matrix_norm(A2).square() / n - mean.square()
    largest = mean + (variance.clamp(min=0) * max(n - r, 0) / r).sqrt()
    return float(largest.max()) ** 0.5


def krylov_norm(A: Tensor) -> Tensor:
    r"""$\lVert V^H A V \rVert_2$, with $V$ a basis of a Krylov space of skew $A$.

    This number is at most the norm of $A$ and close to it. It costs only matrix-vector
    products. The first vector of the Krylov space is always the same, so equal matrices
    give equal results.
    """
    n = A.shape[-1]
    rng = torch.Generator().manual_seed(0)
    v = torch.randn(n, 1, dtype=A.dtype, generator=rng, device="cpu").to(A.device)
    v = (v / torch.linalg.vector_norm(v)).expand(*A.shape[:-1], 1)
    V = v
    for _ in range(min(_KRYLOV, n) - 1):
        v = A @ v
        v = v - V @ (V.mH @ v)
        size = torch.linalg.vector_norm(v, dim=-2, keepdim=True)
        v = v / torch.where(size == 0, 1, size)
        V = torch.cat([V, v], -1)
    return torch.linalg.matrix_norm(V.mH @ (A @ V), 2)


def one_norm(A: Tensor) -> Tensor:
    """The 1-norm of each matrix, which bounds the absolute values of its eigenvalues.

    Returns:
        Shape `(*batch, 1, 1)`, without a gradient.
    """
    if A.shape[-1] == 0:
        return A.real.new_zeros(*A.shape[:-2], 1, 1)
    return A.detach().abs().sum(dim=-2, keepdim=True).amax(dim=-1, keepdim=True)
