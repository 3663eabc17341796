"""Training steps of recurrent layers, and the products that they cannot do without."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

import isometry
from isometry.lab.bench._layers import constrain, orthogonal_linear
from isometry.lab.bench._names import (
    BARE,
    GEOTORCH,
    OURS,
    PLAIN,
    TORCH_CAYLEY,
    TORCH_EXP,
    TORCH_RNN,
    installed,
)
from isometry.lab.bench._timing import Run
from isometry.nn import ExpRNN, ModReLU

STEPS, BATCH, CLASSES = 200, 64, 10


def bare(steps: int, n: int, batch: int, device: torch.device | None = None) -> Run:
    """Forward W h, backward its two adjoints, for every step."""
    h, out = torch.randn(2, batch, n, device=device)
    W = torch.linalg.qr(torch.randn(n, n, device=device))[0]
    dW = torch.empty_like(W)

    def products() -> None:
        for _ in range(steps):
            torch.mm(h, W, out=out)
        for _ in range(steps):
            torch.mm(h, W.mT, out=out)
            torch.mm(h.mT, out, out=dW)

    return products


class Loop(nn.Module):
    r"""$h_t = \sigma(W h_{t-1} + T x_t)$ as one writes it around a parametrized weight.

    Args:
        n: dimension of the state.
        name: the contender that makes W orthogonal.
    """

    def __init__(self, n: int, name: str) -> None:
        super().__init__()
        self.input_map = nn.Linear(1, n)
        # a weight that torch has parametrized has no type
        self.state_map: Any = constrain(orthogonal_linear(n, n, seed=0), name)
        self.activation = ModReLU(n)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The states at all steps, and the last one as `nn.RNN` has it."""
        # read once: each access to a parametrized weight evaluates its map
        W, u = self.state_map.weight, self.input_map(x)
        h, states = torch.zeros_like(u[0]), []
        for u_t in u:
            h = self.activation(h @ W.mT + u_t)
            states.append(h)
        return torch.stack(states), h[None]


def whole_step(layer: nn.Module, n: int, x: Tensor) -> Run:
    """A training step that classifies sequences, the optimizer included."""
    head = nn.Linear(n, CLASSES, device=x.device)
    target = torch.randint(CLASSES, (x.shape[1],), device=x.device)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.RMSprop(parameters, lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        _, last = layer(x)
        nn.functional.cross_entropy(head(last[0]), target).backward()
        optimizer.step()

    return step


def recurrent(n: int, device: torch.device) -> dict[str, Run]:
    """A step of each contender; those of torch and geotorch need a loop in Python."""
    torch.manual_seed(5544)
    ours = ExpRNN(1, n, init="cayley")
    layers: dict[str, nn.Module] = {
        OURS: ours,
        PLAIN: isometry.fold(copy.deepcopy(ours)),
        TORCH_RNN: nn.RNN(1, n),
    }
    names = [TORCH_EXP, TORCH_CAYLEY]
    names += [GEOTORCH] if installed("geotorch") else []
    layers |= {name: Loop(n, name) for name in names}
    x = torch.rand(STEPS, BATCH, 1, device=device)
    steps = {name: whole_step(made.to(device), n, x) for name, made in layers.items()}
    return steps | {BARE: bare(STEPS, n, BATCH, device)}
