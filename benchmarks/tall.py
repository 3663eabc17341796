"""The Stiefel exponential of tall matrices, against torch's parametrization."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from isometry.lab.bench.suites import both_passes
from isometry.lab.bench.timing import Call, interleave
from isometry.linalg import expm_tall


def inputs(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Coordinates of norm about 3, and a cotangent of norm 1."""
    rng = torch.Generator().manual_seed(5544)
    X = torch.randn(n, k, generator=rng)
    G = torch.randn(n, k, generator=rng)
    return 3 * X / torch.linalg.matrix_norm(X, 2), G / G.norm()


def ours(n: int, k: int) -> Call:
    """Forward and backward pass of `expm_tall`."""
    return both_passes(expm_tall, *inputs(n, k))


def torch_orthogonal(n: int, k: int, orthogonal_map: str) -> Call:
    """Forward and backward pass of torch's parametrization of this shape."""
    X, G = inputs(n, k)
    layer = nn.Module()
    layer.weight = nn.Parameter(X)
    parametrizations.orthogonal(layer, orthogonal_map=orthogonal_map)
    original = layer.parametrizations.weight.original
    return lambda: torch.autograd.grad(layer.weight, original, G)


def measure(*, say: Callable[[str], None]) -> dict[str, float]:
    """Seconds at 4096 x 64 for ours and two of torch's maps, and ours at 30000 x 50."""
    say("tall: 4096 x 64 (torch takes seconds a step)")
    contenders = {
        "ours": ours(4096, 64),
        "torch Householder": torch_orthogonal(4096, 64, "householder"),
        "torch Cayley": torch_orthogonal(4096, 64, "cayley"),
    }
    times = interleave(contenders, rounds=2)["seconds"]
    large = interleave({"ours 30000 x 50": ours(30000, 50)}, rounds=5)["seconds"]
    return times | large
