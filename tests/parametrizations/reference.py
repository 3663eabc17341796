"""Slow, obvious twins of the maps, by torch.matrix_exp, solve, loops and autograd."""

import math

import torch
from torch import Tensor


def skew(X: Tensor) -> Tensor:
    """L - L^H for the strictly lower triangle L, plus i Re diag X if X is complex."""
    L = torch.tril(X, -1)
    A = L - L.mH
    if X.is_complex():
        A = A + torch.diag_embed(1j * torch.diagonal(X, dim1=-2, dim2=-1).real)
    return A


def apply_map(A: Tensor, name: str) -> Tensor:
    """exp, cayley or pade-m of a square matrix."""
    if name == "exp":
        return torch.matrix_exp(A)
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    m = 1 if name == "cayley" else int(name.removeprefix("pade-"))
    p, q, power = torch.zeros_like(A), torch.zeros_like(A), eye
    for j in range(m + 1):
        c = (
            math.factorial(2 * m - j)
            * math.factorial(m)
            / (math.factorial(2 * m) * math.factorial(j) * math.factorial(m - j))
        )
        p, q, power = p + c * power, q + (-1) ** j * c * power, power @ A
    return torch.linalg.solve(q, p)


def mover(B: Tensor, X: Tensor) -> Tensor:
    """The n x n skew matrix that moves tall B along the tangent part of X."""
    along = B.mH @ X
    Omega = (along - along.mH) / 2
    X_perp = X - B @ along
    return X_perp @ B.mH - B @ X_perp.mH + B @ Omega @ B.mH


def tall(B: Tensor, X: Tensor, name: str) -> Tensor:
    """The geodesic or its approximant for tall matrices, by n x n matrices."""
    return apply_map(mover(B, X), name) @ B


def reflected(X: Tensor, phase: Tensor) -> Tensor:
    """One reflection after the other, then a phase for each column."""
    V = torch.tril(X)
    n, k = V.shape[-2:]
    Q = torch.eye(n, dtype=X.dtype)
    for j in range(k):
        v = V[..., :, j : j + 1]
        norm = (v.mH @ v).real.to(v.dtype)
        Q = Q - 2 * (Q @ v) @ v.mH / norm
    if X.is_complex():
        phase = phase * torch.exp(1j * V.diagonal(dim1=-2, dim2=-1).imag)
    return Q[..., :k] * phase[..., None, :]


def algebra(name: str, X: Tensor) -> Tensor:
    """Elements of the Lie algebras, entry by entry."""
    if name in ("SO", "U"):
        return skew(X)
    if name == "SU":
        A = skew(X)
        return A - torch.eye(4).to(A) * torch.diagonal(A).sum() / 4
    if name == "Sp":
        P = skew(X[:2, :2])
        S = X[2:, :2].clone()
        S = torch.stack(
            [torch.stack([S[0, 0], S[1, 0]]), torch.stack([S[1, 0], S[1, 1]])]
        )
        top, bottom = torch.cat([P, -S.conj()], 1), torch.cat([S, P.conj()], 1)
        return torch.cat([top, bottom], 0)
    if name == "Torus":
        return torch.diag(1j * torch.diagonal(X).real)
    if name == "product":
        return torch.block_diag(skew(X[:2, :2]), skew(X[2:, 2:]))
    assert name == "own"
    J = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=X.dtype)
    return X[0, 0] * torch.block_diag(J, J)
