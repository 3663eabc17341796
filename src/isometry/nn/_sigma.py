r"""Nonlinearities of a recurrence, whose derivative can be read from their value.

So the states are all that a backward pass needs. A complex state is a row of pairs,
real and imaginary part side by side.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

Sigma = Literal["identity", "tanh", "relu", "modrelu", "complex_modrelu", "leaky_relu"]

# their numbers in C
KINDS = {name: kind for kind, name in enumerate(get_args(Sigma))}

# of the leaky rectifier, as in scan.c [MHRB17]
SLOPE = 0.1


def takes_bias(sigma: Sigma) -> bool:
    """Whether the bias is the threshold of modReLU, rather than a summand."""
    return sigma in ("modrelu", "complex_modrelu")


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
        return torch.nn.functional.leaky_relu(z, SLOPE)
    if sigma == "identity":
        return z
    assert b is not None
    if sigma == "modrelu":
        return modrelu(z, b)
    pairs = torch.view_as_complex(z.unflatten(-1, (-1, 2)))
    return torch.view_as_real(complex_modrelu(pairs, b)).flatten(-2)


def activate(z: Tensor, b: Tensor | None, sigma: Sigma) -> None:
    """The same in place, without a graph."""
    if sigma == "tanh":
        z.tanh_()
    elif sigma == "relu":
        z.relu_()
    elif sigma == "leaky_relu":
        torch.nn.functional.leaky_relu_(z, SLOPE)
    elif sigma == "modrelu":
        assert b is not None
        sign = z.sign()
        z.abs_().add_(b).relu_().mul_(sign)
    elif sigma == "complex_modrelu":
        z.copy_(apply(z, b, sigma))


def pull_back(d: Tensor, h: Tensor, b: Tensor | None, sigma: Sigma) -> Tensor | None:
    """Make of d, the gradient at h, that at z; returns that at b, if sigma has one."""
    if sigma == "tanh":
        # 1 - h^2, in two passes
        d.addcmul_(d * h, h, value=-1)
    elif sigma == "relu":
        d.mul_(h != 0)
    elif sigma == "leaky_relu":
        d.copy_(torch.where(h > 0, d, SLOPE * d))
    elif sigma == "modrelu":
        sign = h.sign()
        d.mul_(sign)
        db = d.sum(0)
        d.mul_(sign)
        return db
    elif sigma == "complex_modrelu":
        assert b is not None
        H, D = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in (h, d))
        size = H.abs()
        unit = torch.where(size == 0, 0.0, H / size)
        # |z|, as far as h still tells it: for a small z, b has rounded it away
        m = torch.maximum(size - b, torch.finfo(d.dtype).eps * size)
        # along h the slope is 1, across it |h| / |z|
        turned = D * unit.conj()
        across = torch.where(size == 0, 0.0, size / m)
        D.copy_(unit * torch.complex(turned.real, turned.imag * across))
        return turned.real.sum(0)
    return None
