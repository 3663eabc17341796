"""Slow, obvious twins of the exponential of skew matrices and its derivative."""

import math
from typing import Any

import mpmath
import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from tests.helpers import double_dtype, skew_with_angles


def frechet(A: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """exp(A) and its derivative L(A, E) along E, without rounding A or E, in double."""
    single = A.dtype != double_dtype(A.dtype)
    return _by_eigenvalues(A, E) if single else _by_series(A, E)


def expm(A: Tensor) -> Tensor:
    return frechet(A, A)[0]


def gradient(A: Tensor, G: Tensor) -> Tensor:
    """The skew part of L(A^H, G), the gradient of exp at A for the cotangent G."""
    g = frechet(A.mH, G)[1]
    return (g - g.mH) / 2


def _by_eigenvalues(A: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """V e^{i theta} V^H and V (Phi o V^H E V) V^H, with divided differences Phi."""
    theta, V = torch.linalg.eigh(-1j * A.to(torch.complex128))
    gap = theta[..., :, None] - theta[..., None, :]
    mean = (theta[..., :, None] + theta[..., None, :]) / 2
    Phi = torch.exp(1j * mean) * torch.sinc(gap / (2 * torch.pi))
    Q = (V * torch.exp(1j * theta)[..., None, :]) @ V.mH
    L = V @ (Phi * (V.mH @ E.to(V.dtype) @ V)) @ V.mH
    return (Q, L) if A.is_complex() else (Q.real, L.real)


def _by_series(A: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """exp(A) and L(A, E) by Taylor's series and squarings, in extended precision.

    With eigenvectors in double precision, the reference would have the larger error.
    """
    kind = np.clongdouble if A.is_complex() else np.longdouble
    size = float(torch.linalg.matrix_norm(A).amax()) if A.numel() else 0.0
    squarings = max(0, math.ceil(math.log2(max(size, 1.0)))) + 1
    X = A.resolve_conj().resolve_neg().numpy().astype(kind) / 2**squarings
    dX = E.resolve_conj().resolve_neg().numpy().astype(kind) / 2**squarings
    Q, L = np.eye(A.shape[-1]) + X, dX
    term, slope = X, dX
    # the norm of X is at most 1/2, so the first omitted term is below (1/2)^20 / 20!,
    # which is 4e-25
    for k in range(2, 20):
        term, slope = term @ X / k, (slope @ X + term @ dX) / k
        Q, L = Q + term, L + slope
    for _ in range(squarings):
        Q, L = Q @ Q, Q @ L + L @ Q
    kind = complex if A.is_complex() else float
    return torch.from_numpy(Q.astype(kind)), torch.from_numpy(L.astype(kind))


def frechet_scipy(A: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """exp(A) and its derivative along E, by SciPy, for one matrix."""
    A, E = A.to(double_dtype(A.dtype)), E.to(double_dtype(A.dtype))
    # L is linear in E, and a large E would cost digits in SciPy's block matrix.
    size = max(float(torch.linalg.matrix_norm(E)), 1e-300)
    Q, L = scipy.linalg.expm_frechet(A.numpy(), E.numpy() / size, method="blockEnlarge")
    return torch.from_numpy(Q), torch.from_numpy(L) * size


def expm_digits(A: Tensor) -> Tensor:
    """exp(A) of one small matrix, computed in 40 digits and rounded to double."""
    with mpmath.workdps(40):
        return _rounded(mpmath.expm(_exact(A)), A)


def gradient_digits(A: Tensor, G: Tensor) -> Tensor:
    """The skew part of the corner of exp [[A^H, G], [0, A^H]], in 40 digits."""
    n = A.shape[-1]
    with mpmath.workdps(40):
        block = mpmath.zeros(2 * n)
        block[:n, :n] = block[n:, n:] = _exact(A.mH)
        block[:n, n:] = _exact(G)
        g = mpmath.expm(block)[:n, n:]
        return _rounded((g - g.H) / 2, A)


def _exact(A: Tensor) -> Any:
    return mpmath.matrix(A.to(double_dtype(A.dtype)).resolve_conj().tolist())


def _rounded(M: Any, like: Tensor) -> Tensor:
    kind = complex if like.is_complex() else float
    values = np.array([kind(x) for x in M], dtype=kind)
    return torch.from_numpy(values.reshape(like.shape))


def edge_skew(
    n: int, *, norm: float, dtype: torch.dtype, rng: torch.Generator
) -> Tensor:
    """A skew matrix whose angles are all +-norm, with one 0 if it is real and n odd."""
    if dtype.is_complex:
        signs = torch.randint(0, 2, (n,), generator=rng) * 2 - 1
        return skew_with_angles(norm * signs, dtype=dtype, rng=rng)
    V = torch.linalg.qr(torch.randn(n, n, dtype=double_dtype(dtype), generator=rng)).Q
    angles = torch.full((n // 2,), norm, dtype=torch.float64)
    J = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    D = torch.zeros(n, n, dtype=torch.float64)
    D[: 2 * (n // 2), : 2 * (n // 2)] = torch.kron(torch.diag(angles), J)
    A = V @ D @ V.mT
    return ((A - A.mT) / 2).to(dtype)
