"""Inverse of the Pade approximants on orthogonal matrices."""

import math

import torch
from torch import Tensor

from isometry.groups._nearest import is_finite
from isometry.linalg import cayley_inverse, logm_unitary
from isometry.linalg._pade_factors import pade_factors


def pade_inverse(Q: Tensor, *, degree: int) -> Tensor:
    r"""The smallest skew `A` of which `Q` is the approximant.

    On $i\theta$ the approximant is $e^{i\psi(\theta)}$ with the increasing function

    $$ \psi(\theta) = 2 \sum_j \operatorname{atan2}(u_j \theta,\ 1 - w_j \theta^2) $$

    of `pade_factors`. It is inverted on the angles of $\log Q$ by Newton's method.
    """
    if degree == 1:
        return cayley_inverse(Q)
    A = logm_unitary(Q)
    finite = is_finite(A)
    phi, V = torch.linalg.eigh(-1j * torch.where(finite, A, 0))
    theta = phi
    # psi(phi) is between 0 and phi, and psi' above 0.6 up to psi = pi: from degree 2 on
    # six steps reach rounding
    for _ in range(8):
        psi, slope = torch.zeros_like(phi), torch.zeros_like(phi)
        for u, w in pade_factors(degree):
            sine, cosine = u * theta, 1 - w * theta**2
            psi = psi + 2 * torch.atan2(sine, cosine)
            slope = slope + 2 * u * (1 + w * theta**2) / (sine**2 + cosine**2)
        theta = theta - (psi - phi) / slope
    A = (V * (1j * theta)[..., None, :]) @ V.mH
    A = A if Q.is_complex() else A.real
    return torch.where(finite, (A - A.mH) / 2, math.nan)
