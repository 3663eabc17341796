"""Errors of value, gradient and orthogonality against double precision."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isometry.lab.bench.timing import random_skew, unit_cotangent
from isometry.linalg import expm_skew

NORMS = [1e-3, 1e-2, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 3.14, 5.0, 10.0, 30.0, 100.0]


def exact(A: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """exp(A), and the skew part of its gradient for the cotangent G, in float64."""
    # -iA is Hermitian, so `eigh` can decompose it
    theta, V = torch.linalg.eigh(-1j * A.to(torch.complex128))
    mean = (theta[:, None] + theta[None, :]) / 2
    half_gap = (theta[:, None] - theta[None, :]) / 2
    Phi = torch.exp(-1j * mean) * torch.sinc(half_gap / math.pi)
    Q = (V * torch.exp(1j * theta)) @ V.mH
    g = V @ (Phi * (V.mH @ G.to(V.dtype) @ V)) @ V.mH
    if not A.is_complex():
        Q, g = Q.real, g.real
    return Q, (g - g.mH) / 2


def errors(
    expm: Callable[[Tensor], Tensor], A: Tensor, G: Tensor, truth: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Relative errors of value and gradient, and ||Q^H Q - I||_F / sqrt(n)."""
    A = A.clone().requires_grad_()
    Q = expm(A)
    (g,) = torch.autograd.grad(Q, A, G)
    Q, g = Q.detach(), (g - g.mH) / 2
    W = Q.to(truth[0].dtype)
    defect = W.mH @ W - torch.eye(len(W), dtype=W.dtype)
    return {
        "value": float(torch.dist(W, truth[0]) / truth[0].norm()),
        "gradient": float(torch.dist(g.to(W.dtype), truth[1]) / truth[1].norm()),
        "orthogonality": float(defect.norm() / math.sqrt(len(W))),
    }


def equal_angles(n: int, *, norm: float, dtype: torch.dtype) -> Tensor:
    """A random skew matrix whose angles all have the absolute value `norm`."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    theta, V = torch.linalg.eigh(-1j * random_skew(n, norm=1.0, dtype=wide))
    A = (V * (1j * theta.sign())) @ V.mH
    A = A if dtype.is_complex else A.real
    return (norm * (A - A.mH) / 2).to(dtype)


def measure(
    n: int, *, dtype: torch.dtype, say: Callable[[str], None]
) -> list[dict[str, object]]:
    """Errors of our exponential and torch's, by norm, for random and equal angles."""
    say(f"accuracy: {dtype}, n = {n}")
    rows: list[dict[str, object]] = []
    for edge in (False, True):
        for norm in NORMS:
            make = equal_angles if edge else random_skew
            A = make(n, norm=norm, dtype=dtype)
            G = unit_cotangent(A)
            truth = exact(A, G)
            row: dict[str, object] = {"n": n, "dtype": str(dtype)}
            row |= {"norm": norm, "edge": edge}
            row["ours"] = errors(expm_skew, A, G, truth)
            row["torch"] = errors(torch.linalg.matrix_exp, A, G, truth)
            rows.append(row)
    return rows
