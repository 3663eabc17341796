"""Steps of optimizers with a given gradient, which is what they themselves cost."""

from typing import Any

import torch
from torch import Tensor, nn

from isometry.groups import Stiefel
from isometry.lab.bench._names import PLAIN, installed
from isometry.lab.bench._timing import Run
from isometry.optim import RiemannianAdam, RiemannianSGD

OUR_EXP = "isometry, exp"
CPU = torch.device("cpu")


def start(n: int, k: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random point of the Stiefel manifold."""
    rng = torch.Generator().manual_seed(5544)
    return torch.linalg.qr(torch.randn(n, k, generator=rng, dtype=dtype))[0]


def our_steps(n: int, k: int, rule: str, device: torch.device = CPU) -> dict[str, Run]:
    """Ours, by retraction."""
    optimizer = {"SGD": RiemannianSGD, "Adam": RiemannianAdam}[rule]
    runs: dict[str, Run] = {}
    for retraction in ("exp", "cayley", "qr"):
        p = _with_gradient(nn.Parameter(_point(n, k, device)))
        made = optimizer(
            [p],
            lr=1e-3,
            manifold=Stiefel(n, k),
            retraction=retraction,
            **_momentum(rule),
        )
        runs[f"isometry, {retraction}"] = made.step
    return runs


def geoopt_steps(
    n: int, k: int, rule: str, device: torch.device = CPU
) -> dict[str, Run]:
    """Geoopt's, by metric."""
    import geoopt

    optimizers = geoopt.optim
    optimizer = {
        "SGD": optimizers.RiemannianSGD,
        "Adam": optimizers.RiemannianAdam,
    }[rule]
    # its class is made by a metaclass, of which type checkers see nothing
    stiefel: Any = geoopt.Stiefel
    parameter: Any = geoopt.ManifoldParameter
    runs: dict[str, Run] = {}
    for canonical in (True, False):
        manifold = stiefel(canonical=canonical)
        p = _with_gradient(parameter(_point(n, k, device), manifold=manifold))
        name = f"geoopt, {'canonical' if canonical else 'euclidean'}"
        runs[name] = optimizer([p], lr=1e-3, **_momentum(rule)).step
    return runs


def optimizers(n: int, device: torch.device) -> dict[str, Run]:
    """Descent with momentum on square orthogonal matrices."""
    runs = our_steps(n, n, "SGD", device)
    if installed("geoopt"):
        runs |= geoopt_steps(n, n, "SGD", device)
    p = _with_gradient(nn.Parameter(_point(n, n, device)))
    runs[PLAIN] = torch.optim.SGD([p], lr=1e-3, momentum=0.9).step
    return runs


def _momentum(rule: str) -> dict[str, Any]:
    return {"momentum": 0.9} if rule == "SGD" else {}


def _point(n: int, k: int, device: torch.device) -> Tensor:
    return start(n, k).contiguous().to(device)


def _with_gradient(p: nn.Parameter) -> nn.Parameter:
    """The parameter with a gradient of norm about 1."""
    G = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    p.grad = (G / p.numel() ** 0.5).to(p.device)
    return p
