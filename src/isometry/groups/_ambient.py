"""Arrays of the ambient space, and their flattened forms as rows of real numbers.

The ambient space of a manifold contains all arrays with the shape of a point. The
arrays are complex if the points are complex.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from isometry.groups._manifold import AbstractManifold


def ambient_basis(manifold: "AbstractManifold") -> Tensor:
    """A basis of the ambient space over the real numbers, stacked along axis 0."""
    reals = math.prod(manifold.shape) * (1 + manifold.is_complex)
    return arrays(torch.eye(reals, dtype=torch.float64), manifold)


def flat(X: Tensor, manifold: "AbstractManifold") -> Tensor:
    """The arrays in `X`, each flattened to a row of real numbers."""
    X = torch.view_as_real(X.resolve_conj()) if X.is_complex() else X[..., None]
    return X.flatten(-1 - len(manifold.shape))


def arrays(rows: Tensor, manifold: "AbstractManifold") -> Tensor:
    """The arrays whose flattened forms are `rows`: the inverse of `flat`."""
    parts = rows.contiguous().unflatten(-1, (*manifold.shape, 1 + manifold.is_complex))
    return torch.view_as_complex(parts) if manifold.is_complex else parts[..., 0]


def fixed_gaussian(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Standard normal numbers on the CPU; equal arguments give equal numbers."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=rng, device="cpu")
