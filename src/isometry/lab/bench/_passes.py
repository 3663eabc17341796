"""Forward + backward passes of the exponential, ours and the peers', as callables."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from isometry.lab.bench._names import (
    GEOTORCH,
    OURS,
    TORCH_CAYLEY,
    TORCH_EXP,
    TORCH_HOUSEHOLDER,
    TORCH_MATRIX_EXP,
    installed,
)
from isometry.lab.bench._timing import Run, random_skew, unit_cotangent
from isometry.linalg import expm_skew


def ours(A: Tensor, G: Tensor, *, norm_bound: float | None = None) -> Run:
    """`isometry.linalg.expm_skew`."""
    A = A.clone().requires_grad_()
    return lambda: torch.autograd.grad(expm_skew(A, norm_bound=norm_bound), A, G)


def matrix_exp(A: Tensor, G: Tensor) -> Run:
    """`torch.linalg.matrix_exp`, which torch's and geotorch's parametrizations use."""
    A = A.clone().requires_grad_()
    return lambda: torch.autograd.grad(torch.linalg.matrix_exp(A), A, G)


def torch_orthogonal(A: Tensor, G: Tensor, orthogonal_map: str) -> Run:
    """`torch.nn.utils.parametrizations.orthogonal` at the coordinates of A."""
    return _parametrized(
        A,
        G,
        lambda layer: parametrizations.orthogonal(
            layer, orthogonal_map=orthogonal_map, use_trivialization=False
        ),
    )


def geotorch_orthogonal(A: Tensor, G: Tensor) -> Run:
    """`geotorch.orthogonal`, evaluated at the coordinates of A."""
    import geotorch

    def register(layer: nn.Module) -> nn.Module:
        geotorch.orthogonal(layer, "weight")
        return layer.to(A.device)

    return _parametrized(A, G, register)


def _parametrized(
    A: Tensor, G: Tensor, register: Callable[[nn.Module], nn.Module]
) -> Run:
    plain = nn.Module()
    plain.weight = nn.Parameter(torch.linalg.qr(A)[0])
    # what torch adds to a module has no type
    layer: Any = register(plain)
    original = layer.parametrizations.weight.original
    with torch.no_grad():
        original.copy_(A.tril(-1))
    return lambda: torch.autograd.grad(layer.weight, original, G)


def kernel(n: int, device: torch.device) -> dict[str, Run]:
    """Every peer at one size, float32, norm 3."""
    A = random_skew(n, norm=3.0, dtype=torch.float32).to(device)
    G = unit_cotangent(A)
    contenders = {
        OURS: ours(A, G),
        TORCH_MATRIX_EXP: matrix_exp(A, G),
        TORCH_EXP: torch_orthogonal(A, G, "matrix_exp"),
        TORCH_CAYLEY: torch_orthogonal(A, G, "cayley"),
        TORCH_HOUSEHOLDER: torch_orthogonal(A, G, "householder"),
    }
    if installed("geotorch"):
        contenders[GEOTORCH] = geotorch_orthogonal(A, G)
    return contenders
