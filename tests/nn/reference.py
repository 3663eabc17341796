"""The comparators as their papers write them: dense matrices, one state at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def states(
    x: Tensor, W: Tensor, T: Tensor, sigma: Callable[[Tensor], Tensor], h: Tensor
) -> Tensor:
    """All states of one sequence x, (time, inputs), by h' = sigma(W h + T x)."""
    history = []
    for x_t in x:
        h = sigma(torch.mv(W, h) + torch.mv(T, x_t.to(T.dtype)))
        history.append(h)
    return torch.stack(history)


def skew(X: Tensor) -> Tensor:
    """The skew matrix with the entries of X below the diagonal, entry by entry."""
    A = torch.zeros_like(X)
    for j in range(len(X)):
        for k in range(j):
            A = A + X[j, k] * unit(j, k, X) - X[j, k].conj() * unit(k, j, X)
        if X.is_complex():
            A = A + 1j * X[j, j].real * unit(j, j, X)
    return A


def unit(j: int, k: int, like: Tensor) -> Tensor:
    E = torch.zeros_like(like)
    E[j, k] = 1
    return E


def scaled_cayley(A: Tensor, D: Tensor) -> Tensor:
    """(I + A)^-1 (I - A) D."""
    eye = torch.eye(len(A), dtype=A.dtype)
    return torch.linalg.inv(eye + A) @ (eye - A) @ torch.diag(D.to(A.dtype))


def fourier(n: int) -> Tensor:
    """The unitary matrix of the discrete Fourier transform."""
    j = torch.arange(n, dtype=torch.float64)
    angles = -2 * torch.pi * j[:, None] * j / n
    return torch.polar(torch.full_like(angles, n**-0.5), angles)


def urnn_weight(cell: Any) -> Tensor:
    """D3 R2 F^-1 D2 P R1 F D1."""
    n = cell.hidden_size
    D = [torch.diag(torch.exp(1j * theta)) for theta in cell.theta]
    eye = torch.eye(n, dtype=torch.complex128)
    R = [eye - 2 * torch.outer(v.conj(), v) / (v.abs() ** 2).sum() for v in cell.v]
    F = fourier(n)
    P = eye[cell.permutation]
    return D[2] @ R[1] @ F.mH @ D[1] @ P @ R[0] @ F @ D[0]


def rotation(n: int, a: int, b: int, theta: Tensor, phi: Tensor) -> Tensor:
    """The rotation of coordinates a and b alone."""
    c, s, e = torch.cos(theta), torch.sin(theta), torch.exp(1j * phi)
    like = torch.zeros(n, n, dtype=torch.complex128)
    Q = torch.eye(n, dtype=torch.complex128)
    Q = Q + (c - 1) * unit(a, a, like) - e * s * unit(a, b, like)
    return Q + s * unit(b, a, like) + (e * c - 1) * unit(b, b, like)


def eurnn_weight(cell: Any, style: str) -> Tensor:
    """A product of single rotations, in the order in which they turn a state."""
    n, theta = cell.hidden_size, cell.theta
    phi = torch.zeros_like(theta) if cell.phi is None else cell.phi
    W = torch.eye(n, dtype=torch.complex128)
    for level in range(len(theta)):
        if style == "tunable":
            pairs = [(j, j + 1) for j in range(0, n - 1, 2)]
            pairs += [(j, j + 1) for j in range(1, n - 2, 2)]
        else:
            d = n // 2 ** (level + 1)
            pairs = [(j, j + d) for j in range(n) if (j // d) % 2 == 0]
        for i, (a, b) in enumerate(pairs):
            W = rotation(n, a, b, theta[level, i], phi[level, i]) @ W
    if cell.omega is None:
        return W.real
    return torch.diag(torch.exp(1j * cell.omega)) @ W


def reflections(V: Tensor) -> Tensor:
    """H_1 H_2 ... H_m, one after the other."""
    n, m = V.shape
    W = torch.eye(n, dtype=V.dtype)
    for j in range(m):
        # column j is zero above row j
        v = torch.where(torch.arange(n) >= j, V[:, j], 0.0)
        W = W @ (torch.eye(n, dtype=V.dtype) - 2 * torch.outer(v, v) / (v @ v))
    return W


def spectral_weight(cell: Any) -> Tensor:
    """U S V^T with s = 2 m sigmoid(p) + (1 - m)."""
    m = cell.margin
    s = 2 * m / (1 + torch.exp(-cell.p)) + (1 - m)
    return cell.U @ torch.diag(s) @ cell.V.mT


def lie_weight(cell: Any) -> Tensor:
    """The exponential of a sum over the basis of u(n), times the gain."""
    X, n = cell.X, cell.hidden_size
    A = torch.zeros(n, n, dtype=X.dtype)
    for j in range(n):
        A = A + X[j, j].real * 1j * unit(j, j, A)
        for k in range(j):
            A = A + X[j, k].real * (unit(j, k, A) - unit(k, j, A))
            A = A + X[j, k].imag * 1j * (unit(j, k, A) + unit(k, j, A))
    return cell.gain * torch.matrix_exp(A)


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    """sign(z) max(|z| + b, 0)."""
    return torch.sign(z) * torch.clamp(z.abs() + b, min=0)


def exact_modrelu(z: Tensor, b: Tensor) -> Tensor:
    """z / |z| max(|z| + b, 0), for z other than zero."""
    m = (z.real**2 + z.imag**2).sqrt()
    return z / m * torch.clamp(m + b, min=0)


def wisdom_modrelu(z: Tensor, b: Tensor, epsilon: float = 1e-5) -> Tensor:
    """z max(m + b, 0) / (m + epsilon), m = sqrt(|z|^2 + epsilon)."""
    m = (z.real**2 + z.imag**2 + epsilon).sqrt()
    return z * torch.clamp(m + b, min=0) / (m + epsilon)


def jing_modrelu(z: Tensor, b: Tensor) -> Tensor:
    """max(m + b, 0) z / m with m = |z| + 0.01; for a real z, z / |z| replaces z / m."""
    if not z.is_complex():
        return torch.clamp(z.abs() + 0.01 + b, min=0) * torch.sign(z)
    m = (z.real**2 + z.imag**2).sqrt() + 0.01
    return torch.clamp(m + b, min=0) * z / m


def leaky_relu(z: Tensor) -> Tensor:
    """z if it is positive, else a tenth of it."""
    return torch.maximum(z, 0.1 * z)


def by_parts(sigma: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Apply a real function to the real and to the imaginary part."""
    return torch.complex(sigma(z.real), sigma(z.imag))
