r"""Nonlinearities of a recurrence, in differentiable operations.

A complex state is a row of pairs, with real and imaginary part side by side.
"""

import torch
from torch import Tensor

from isometry._backend.constants import LEAKY_SLOPE, Sigma


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    r"""$\operatorname{sign}(z) \max(|z| + b, 0)$, differentiable; zero at zero."""
    return torch.sign(z) * torch.relu(z.abs() + b)


def complex_modrelu(z: Tensor, b: Tensor) -> Tensor:
    r"""$\frac{z}{|z|} \max(|z| + b, 0)$ for a complex z; zero at zero."""
    m = z.abs()
    here = m > 0
    # a division by zero that `where` hides would still poison the gradient
    scale = torch.relu(m + b) / torch.where(here, m, 1.0)
    return torch.where(here, z, 0.0) * scale


def apply(z: Tensor, b: Tensor | None, sigma: Sigma) -> Tensor:
    """The nonlinearity of rows, in differentiable operations."""
    if sigma == "tanh":
        return torch.tanh(z)
    if sigma == "relu":
        return torch.relu(z)
    if sigma == "leaky_relu":
        return torch.nn.functional.leaky_relu(z, LEAKY_SLOPE)
    if sigma == "identity":
        return z
    assert b is not None
    if sigma == "modrelu":
        return modrelu(z, b)
    pairs = torch.view_as_complex(z.unflatten(-1, (-1, 2)))
    return torch.view_as_real(complex_modrelu(pairs, b)).flatten(-2)
