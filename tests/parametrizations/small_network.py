"""A small model with constrained weights, and a loop that trains it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import isometry
from tests.helpers import new_generator, shifted_seed

MOVING = [{"rebase_every": 3}, {"rebase_radius": 0.1}]
POLICIES = [{}, *MOVING]


def network(dtype: torch.dtype = torch.float64, **policy) -> nn.Sequential:
    """A tall, a square and a plain layer, with the same numbers at each call."""
    torch.manual_seed(shifted_seed(7))
    return nn.Sequential(
        isometry.orthogonal(nn.Linear(4, 9, dtype=dtype), **policy),
        nn.Tanh(),
        isometry.orthogonal(nn.Linear(9, 9, dtype=dtype), **policy),
        nn.Tanh(),
        nn.Linear(9, 2, dtype=dtype),
    )


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    rng = new_generator(1)
    x = torch.randn(32, 4, dtype=dtype, generator=rng)
    return x, torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], -1)


def loss_of(model: nn.Module) -> Tensor:
    x, y = data(model[-1].weight.dtype)
    return (model(x) - y).square().mean()


def weights(model: nn.Module) -> list[Tensor]:
    return [model[i].weight.detach().clone() for i in (0, 2)]


def constraint_of(model: nn.Module) -> Any:
    return model[2].parametrizations.weight[0]


def coordinates_of(model: nn.Module) -> Any:
    return model[2].parametrizations.weight.original


def train(
    model: nn.Module,
    optimizer: Optimizer,
    steps: int,
    after: Callable[[], object] = lambda: None,
) -> list[float]:
    """Train; return the loss before each step. `after` is called after each step."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    losses = []
    for _ in range(steps):
        losses.append(optimizer.step(closure).item())
        after()
    return losses


def same(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models have the same bits in all parameters and buffers."""
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
