"""Training steps of one orthogonal layer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import isometry
from isometry.lab.bench._names import (
    GEOTORCH,
    OUR_CAYLEY,
    OUR_HOUSEHOLDER,
    OURS,
    PLAIN,
    TORCH_CAYLEY,
    TORCH_EXP,
    TORCH_HOUSEHOLDER,
    installed,
)
from isometry.lab.bench._timing import Run, random_skew

BATCH = 64

# Adam's arithmetic is that of any rate, and the coordinates stay where they are put:
# at 1e-3 the steps that are timed would move each of them by more than it measures
RATE = 1e-6


def constrain(layer: nn.Linear, name: str) -> nn.Module:
    """The layer with its weight orthogonal as the contender `name` has it."""
    if name == GEOTORCH:
        import geotorch

        geotorch.orthogonal(layer, "weight")
        return layer
    maps = {
        OURS: (isometry.orthogonal, "exp"),
        OUR_CAYLEY: (isometry.orthogonal, "cayley"),
        OUR_HOUSEHOLDER: (isometry.orthogonal, "householder"),
        TORCH_EXP: (parametrizations.orthogonal, "matrix_exp"),
        TORCH_CAYLEY: (parametrizations.orthogonal, "cayley"),
        TORCH_HOUSEHOLDER: (parametrizations.orthogonal, "householder"),
    }
    if name == PLAIN:
        return layer
    register, orthogonal_map = maps[name]
    return register(layer, orthogonal_map=orthogonal_map)


def orthogonal_linear(inputs: int, outputs: int, *, seed: int) -> nn.Linear:
    """A plain layer that starts orthogonal, so that all contenders start alike."""
    rng = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, generator=rng)
    nn.init.zeros_(layer.bias)
    return layer


def layer_at(n: int, name: str, *, norm: float, seed: int = 0) -> nn.Module:
    """A square layer, moved to random coordinates of a spectral norm.

    Reflections have other coordinates: they stay where they start.
    """
    # what torch adds to a module has no type
    layer: Any = constrain(orthogonal_linear(n, n, seed=seed), name)
    if name not in (PLAIN, OUR_HOUSEHOLDER, TORCH_HOUSEHOLDER):
        A = random_skew(n, norm=norm, dtype=torch.float32, seed=seed)
        with torch.no_grad():
            layer.parametrizations.weight.original.copy_(A.tril(-1))
    return layer


def data(batch: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Gaussian inputs and targets."""
    rng = torch.Generator().manual_seed(5544)
    x = torch.randn(batch, inputs, generator=rng)
    return x, torch.randn(batch, outputs, generator=rng)


def training_step(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    """One step of Adam, gradients of the last one cleared first."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def layer(n: int, device: torch.device) -> dict[str, Run]:
    """A step of each contender at coordinates of norm 3."""
    names = [OURS, TORCH_EXP, TORCH_CAYLEY, TORCH_HOUSEHOLDER, PLAIN]
    if installed("geotorch"):
        names.insert(-1, GEOTORCH)
    x, y = (tensor.to(device) for tensor in data(BATCH, n, n))
    layers = {name: layer_at(n, name, norm=3.0).to(device) for name in names}
    return {name: training_step(made, x, y) for name, made in layers.items()}
