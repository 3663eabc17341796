"""The nonlinearities of a recurrence, computed with torch operations.

A state is a row of real numbers. A complex state is a row of pairs of real and
imaginary parts.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isometry._backend.constants import LEAKY_SLOPE, SigmaName


class Pointwise(NamedTuple):
    """One nonlinearity h = sigma(z), with a threshold b unless `threshold` is None.

    Only `smooth_modrelu` uses the argument `smoothing`. It is a pair: epsilon, and
    memory for m = sqrt(|z|^2 + epsilon) of every complex entry z.
    """

    # apply_(z, b, smoothing) overwrites z with h, and writes m if `keeps_moduli`;
    # autograd must be off
    apply_: Callable[[Tensor, Any, Any], object]
    # adjoint_(d, h, b, db, smoothing) overwrites d, the gradient with respect to h,
    # with the gradient with respect to z. It adds the gradient with respect to b to db.
    adjoint_: Callable[[Tensor, Tensor, Any, Any, Any], object]
    # function(z, b, epsilon) returns h and can be differentiated
    function: Callable[[Tensor, Any, float], Tensor]
    # the length of the threshold, divided by the length of the state; None if there is
    # no threshold
    threshold: float | None = None
    # whether `apply_` writes m, because `adjoint_` needs it
    keeps_moduli: bool = False


class Sigma(NamedTuple):
    """The nonlinearity of a recurrence. Only "smooth_modrelu" uses `epsilon`."""

    name: SigmaName
    epsilon: float = 0.0

    def takes_threshold(self) -> bool:
        """Whether the bias is the threshold of modReLU, not a part of the drive."""
        return NONLINEARITIES[self.name].threshold is not None


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    r"""Real modReLU, $\operatorname{sign}(z) \max(|z| + b, 0)$; zero if z is zero."""
    return torch.sign(z) * torch.relu(z.abs() + b)


def _modrelu_(z: Tensor, b: Tensor, _smoothing: None) -> None:
    sign = z.sign()
    z.abs_().add_(b).relu_().mul_(sign)


def _modrelu_adjoint_(
    d: Tensor, h: Tensor, _b: Tensor, db: Tensor, _smoothing: None
) -> None:
    # not `d * (h != 0)`, because infinity times zero is NaN
    d.masked_fill_(h == 0, 0.0)
    db += (d * h.sign()).sum(0)


def complex_modrelu(z: Tensor, b: Tensor) -> Tensor:
    r"""Complex modReLU, $\frac{z}{|z|} \max(|z| + b, 0)$; zero if z is zero."""
    m = z.abs()
    nonzero = m > 0
    # Where m is 0, divide by 1. If 0 / 0 were computed and replaced afterwards, the
    # result would be correct, but the gradient would be NaN.
    scale = torch.relu(m + b) / torch.where(nonzero, m, 1.0)
    return torch.where(nonzero, z, 0.0) * scale


def _complex_modrelu_(z: Tensor, b: Tensor, _smoothing: None) -> None:
    Z = complex_rows(z)
    Z.copy_(complex_modrelu(Z, b))


def _complex_modrelu_adjoint_(
    d: Tensor, h: Tensor, b: Tensor, db: Tensor, _smoothing: None
) -> None:
    H, D = complex_rows(h), complex_rows(d)
    size = H.abs()
    unit = torch.where(size == 0, 0.0, H / size)
    # m is |z|, computed as |h| - b. If |z| is tiny compared with b, its digits were
    # lost when b was added, and the difference may be zero. So let m be at least
    # eps |h|.
    m = torch.maximum(size - b, torch.finfo(d.dtype).eps * size)
    # the derivative is 1 along h, and |h| / |z| in the orthogonal direction
    turned = D * unit.conj()
    across = torch.where(size == 0, 0.0, size / m)
    D.copy_(unit * torch.complex(turned.real, turned.imag * across))
    db += turned.real.sum(0)


def smooth_modrelu(z: Tensor, b: Tensor, epsilon: float) -> Tensor:
    r"""Smooth modReLU, $z \max(m + b, 0) / (m + \epsilon)$, for a complex z.

    Here $m = \sqrt{|z|^2 + \epsilon}$. Unlike modReLU, the function has a derivative at
    $z = 0$ if $\epsilon > 0$. The result is NaN if $|z|^2$ overflows, which in float32
    happens above $|z| = 1.8 \cdot 10^{19}$. Computing $m$ without overflow would take
    1.5 times as long.
    """
    m = (z.real.square() + z.imag.square() + epsilon).sqrt()
    return z * (torch.relu(m + b) / (m + epsilon))


def _smooth_modrelu_(z: Tensor, b: Tensor, smoothing: tuple[float, Tensor]) -> None:
    Z = complex_rows(z)
    epsilon, m = smoothing
    # unlike |z|^2, `hypot` overflows only if |z| does
    torch.hypot(Z.abs(), m.new_full((), math.sqrt(epsilon)), out=m)
    Z.mul_(torch.relu(m + b) / (m + epsilon))


def _smooth_modrelu_adjoint_(
    d: Tensor, h: Tensor, b: Tensor, db: Tensor, smoothing: tuple[float, Tensor]
) -> None:
    H, D = complex_rows(h), complex_rows(d)
    epsilon, m = smoothing
    # h = g z with g = (m + b) / (m + epsilon)
    size = torch.relu(m + b)
    g = size / (m + epsilon)
    D.masked_fill_(g == 0, 0.0)
    # z / (m + epsilon), computed as h / (m + b)
    scaled_z = H / torch.where(g == 0, 1.0, size)
    dot = scaled_z.real * D.real + scaled_z.imag * D.imag
    db += dot.sum(0)
    # The gradient with respect to z is g D + z (z . D) dg/dm / m. The second term comes
    # from the change of g with m, since dm/dz = z / m. Here dg/dm is
    # (epsilon - b) / (m + epsilon)^2, and of the two factors 1 / (m + epsilon), one is
    # already in `scaled_z`, and the other in `dot`.
    D.mul_(g).add_(scaled_z * ((epsilon - b) / m * dot))


def real_rows(x: Tensor) -> Tensor:
    """Rows of complex numbers as rows of real pairs; real rows stay as they are."""
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def complex_rows(h: Tensor) -> Tensor:
    """Rows of real pairs as rows of complex numbers; the result is a view."""
    return torch.view_as_complex(h.unflatten(-1, (-1, 2)))


# the kernels in C have the same nonlinearities, in c/scan.h
NONLINEARITIES: dict[SigmaName, Pointwise] = {
    "identity": Pointwise(
        apply_=lambda *_: None,
        adjoint_=lambda *_: None,
        function=lambda z, *_: z,
    ),
    "tanh": Pointwise(
        apply_=lambda z, *_: z.tanh_(),
        # d - d h^2, in two passes over memory
        adjoint_=lambda d, h, *_: d.addcmul_(d * h, h, value=-1),
        function=lambda z, *_: torch.tanh(z),
    ),
    "relu": Pointwise(
        apply_=lambda z, *_: z.relu_(),
        adjoint_=lambda d, h, *_: d.masked_fill_(h == 0, 0.0),
        function=lambda z, *_: torch.relu(z),
    ),
    "modrelu": Pointwise(
        apply_=_modrelu_,
        adjoint_=_modrelu_adjoint_,
        function=lambda z, b, _: modrelu(z, b),
        threshold=1.0,
    ),
    "complex_modrelu": Pointwise(
        apply_=_complex_modrelu_,
        adjoint_=_complex_modrelu_adjoint_,
        function=lambda z, b, _: real_rows(complex_modrelu(complex_rows(z), b)),
        threshold=0.5,
    ),
    "smooth_modrelu": Pointwise(
        apply_=_smooth_modrelu_,
        adjoint_=_smooth_modrelu_adjoint_,
        function=lambda z, b, epsilon: real_rows(
            smooth_modrelu(complex_rows(z), b, epsilon)
        ),
        threshold=0.5,
        keeps_moduli=True,
    ),
    "leaky_relu": Pointwise(
        apply_=lambda z, *_: nn.functional.leaky_relu_(z, LEAKY_SLOPE),
        adjoint_=lambda d, h, *_: d.copy_(torch.where(h > 0, d, LEAKY_SLOPE * d)),
        function=lambda z, *_: nn.functional.leaky_relu(z, LEAKY_SLOPE),
    ),
}
