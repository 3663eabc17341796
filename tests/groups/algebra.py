"""Elements of a Lie algebra, and orders of convergence, for the tests of theory."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.linalg import matrix_norm

from isometry.groups import AbstractGroup
from isometry.testing._case import fitted_slope
from tests.groups.registry import dtype_of


def double_dtype_of(group: AbstractGroup) -> torch.dtype:
    return dtype_of(group, torch.float64)


def element(group: AbstractGroup, rng: torch.Generator, *, norm: float) -> Tensor:
    """A random element of the algebra, with the spectral norm `norm`."""
    X = torch.randn(group.shape, dtype=double_dtype_of(group), generator=rng)
    A = group.algebra_projection(X)
    return A * (norm / matrix_norm(A, 2))


def inner(A: Tensor, B: Tensor) -> Tensor:
    return (A.conj() * B).real.sum((-2, -1))


def slope(error: Callable[[float], Tensor], steps: list[float]) -> float:
    """Order of convergence: the fitted slope of log error against log step.

    Errors below 1e-12 are left out, because they consist of rounding errors.
    """
    return fitted_slope(steps, [float(error(t)) for t in steps], 1e-12)


HALVES = [2.0**-j for j in range(3, 11)]
