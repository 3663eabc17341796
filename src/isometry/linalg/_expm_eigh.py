"""Exponential of skew matrices by one Hermitian eigendecomposition."""

import math
from typing import Any

import torch
from torch import Tensor

from isometry.linalg import _expm_autograd as doors
from isometry.linalg._policy import nested_forward_mode


def expm_eigh(A: Tensor) -> Tensor:
    r"""$V e^{i\Theta} V^H$, where $-iA = V \Theta V^H$.

    By the Daleckii--Krein theorem the gradient is
    $V (\bar\Phi \circ (V^H G V)) V^H$ with

    $$ \Phi_{jk} = \frac{e^{i\theta_j} - e^{i\theta_k}}{i(\theta_j - \theta_k)}
       = e^{i(\theta_j + \theta_k)/2}
         \operatorname{sinc}\frac{\theta_j - \theta_k}{2}. $$

    The right-hand form has no cancellation, so close and repeated eigenvalues need no
    special case. Cost: one complex `eigh`, one product, and four for the gradient.
    """
    if torch.compiler.is_compiling():
        return EighExponential.apply(A)[0]
    if nested_forward_mode():
        return doors.frechet(A, torch.zeros_like(A))[0]
    return EagerEighExponential.apply(A)[0]


class EighExponential(torch.autograd.Function):
    """A -> exp(A), with angles and eigenvectors as further outputs."""

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # LAPACK refuses NaN: let those matrices through as zero, and make NaN of their
        # angles, from where it comes to the value and to the gradient
        finite = A.isfinite().all(-1).all(-1)[..., None]
        theta, V = torch.linalg.eigh(-1j * torch.where(finite[..., None], A, 0.0))
        theta = theta.masked_fill(~finite, math.nan)
        if not A.is_complex():
            # they come in pairs, and what rounding makes of that would show in Q^H Q
            theta = (theta - theta.flip(-1)) / 2
        Q = (V * torch.exp(1j * theta)[..., None, :]) @ V.mH
        # a copy: forward mode wants no view for an output
        return Q if A.is_complex() else Q.real.clone(), theta, V

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
            # a second derivative may follow: the products' adjoint has one
            _, W, plan = doors.Exponential.apply(A, None)
            return doors.Adjoint.apply(A, G, W, plan)
        mean = (theta[..., :, None] + theta[..., None, :]) / 2
        half_gap = (theta[..., :, None] - theta[..., None, :]) / 2
        # torch.sinc(x) is sin(pi x) / (pi x)
        Phi = torch.exp(-1j * mean) * torch.sinc(half_gap / math.pi)
        g = V @ (Phi * (V.mH @ G.to(V.dtype) @ V)) @ V.mH
        g = g if A.is_complex() else g.real
        return (g - g.mH) / 2

    @staticmethod
    def vmap(_info: Any, in_dims: tuple, A: Tensor):
        return EagerEighExponential.apply(A.movedim(in_dims[0], 0)), (0, 0, 0)


class EagerEighExponential(EighExponential):
    """The same with forward mode, which Dynamo does not take."""

    @staticmethod
    def jvp(ctx: Any, E: Tensor) -> tuple[Tensor, None, None]:
        (A,) = ctx.saved_for_forward
        return doors.frechet(A, E)[1], None, None
