"""Exponential of skew matrices by one Hermitian eigendecomposition."""

import math
from typing import Any

import torch
from torch import Tensor

from isometry._torch import (
    autocast_off,
    in_forward_mode,
    nested_forward_mode,
    outside_graphs,
)
from isometry.linalg._expm import autograd
from isometry.linalg._implicit import traceable
from isometry.linalg._skew import rotation_planes, skew_eigh


def expm_eigh(A: Tensor) -> Tensor:
    r"""$\exp A = V e^{i\Theta} V^H$, where $-iA = V \Theta V^H$.

    $V$ is unitary, and $\Theta$ is the diagonal matrix of the angles $\theta_j$. With
    $G$ the gradient with respect to $\exp A$, the Daleckii--Krein theorem gives the
    gradient with respect to $A$. It is the skew part of
    $V (\bar\Phi \circ (V^H G V)) V^H$ with

    $$ \Phi_{jk} = \frac{e^{i\theta_j} - e^{i\theta_k}}{i(\theta_j - \theta_k)}
       = e^{i(\theta_j + \theta_k)/2}
         \operatorname{sinc}\frac{\theta_j - \theta_k}{2}. $$

    The right-hand form has no cancellation, so close and repeated eigenvalues need no
    special case. Cost: one complex `eigh`, one product, and four products for the
    gradient; if `A` is real, also a QR factorization.
    """
    if torch.compiler.is_compiling() and not in_forward_mode():
        return _eigh_exponential(A)[0]
    return _with_forward_mode(A)


@outside_graphs
def _with_forward_mode(A: Tensor) -> Tensor:
    if nested_forward_mode():
        return autograd.frechet(A, torch.zeros_like(A))[0]
    return EighExponential.apply(A)[0]


class EighExponential(torch.autograd.Function):
    """A -> exp(A); the angles and the eigenvectors of A are outputs too."""

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        theta, V, finite = skew_eigh(A)
        # angles that are NaN make the value and the gradient NaN
        theta = theta.masked_fill(~finite[..., 0], math.nan)
        if not A.is_complex():
            return _real_exponential(theta, V)
        return (V * torch.exp(1j * theta)[..., None, :]) @ V.mH, theta, V

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, theta, V = output
        ctx.mark_non_differentiable(theta, V)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], theta, V)
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, G: Tensor | None, *_: Any) -> Tensor | None:
        if G is None:
            return None
        A, theta, V = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # A second derivative may follow. `Adjoint` can be differentiated again. The
            # formula below cannot, because it treats theta and V as constants.
            _, W, plans = autograd.Exponential.apply(A, None)
            return autograd.Adjoint.apply(A, G, W, plans)
        mean = (theta[..., :, None] + theta[..., None, :]) / 2
        half_gap = (theta[..., :, None] - theta[..., None, :]) / 2
        # torch.sinc(x) is sin(pi x) / (pi x)
        Phi = torch.exp(-1j * mean) * torch.sinc(half_gap / math.pi)
        g = V @ (Phi * (V.mH @ G.to(V.dtype) @ V)) @ V.mH
        g = g if A.is_complex() else g.real
        return (g - g.mH) / 2

    @staticmethod
    def vmap(_info: Any, in_dims: tuple, A: Tensor):
        return EighExponential.apply(A.movedim(in_dims[0], 0)), (0, 0, 0)

    @staticmethod
    def jvp(ctx: Any, E: Tensor) -> tuple[Tensor, None, None]:
        (A,) = ctx.saved_for_forward
        return autograd.frechet(A, E)[1], None, None


_eigh_exponential = traceable(EighExponential)


def _real_exponential(theta: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""exp(A) of a real `A`, and the angles and eigenvectors of `A` in conjugate pairs.

    In each plane of `rotation_planes`, $\exp A$ rotates $y$ towards $x$. Without these
    planes, $V e^{i\Theta} V^H$ would have an imaginary part of size
    $\varepsilon \lVert A \rVert$, and its real part would not be orthogonal (the
    defect is 3e-4 at norm 1e5 in float32).
    """
    x, y, axis = rotation_planes(V)
    n, pairs = x.shape[-2:]
    # The two angles of a pair are opposite only up to rounding; this line makes them
    # exactly opposite. If n is odd, the middle angle has no partner and becomes zero,
    # or stays NaN.
    theta = (theta - theta.flip(-1)) / 2
    angles = theta[..., n - pairs :].flip(-1)
    zero = theta[..., pairs : n - pairs]
    c, s = angles.cos()[..., None, :], angles.sin()[..., None, :]
    axis = axis + zero[..., None, :]
    turned = torch.cat([c * x - s * y, s * x + c * y, axis], -1)
    with autocast_off(V.device):
        Q = turned @ torch.cat([x, y, axis], -1).mT
    half = torch.complex(x, y) / math.sqrt(2)
    V = torch.cat([half, half.conj(), axis.to(V.dtype)], -1)
    return Q, torch.cat([angles, -angles, zero], -1), V
