"""The child process of `versions`, which times one version of the library.

It runs with another checkout's `src` on its path, so it uses only public names that all
versions have. From each line of its input it reads the name of a case and a number of
calls, and answers with the seconds of one call. If it is asked for memory instead, it
answers with the peak number of bytes of a call.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import isometry
from benchmarks.peak import peak
from isometry import groups, linalg, optim
from isometry import nn as recurrent

Call = Callable[[], object]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def _exponential(*shape: int, norm: float, dtype: torch.dtype = torch.float32) -> Call:
    """Forward and backward pass of `expm_skew`."""
    A = torch.randn(*shape, dtype=dtype, generator=_generator())
    A = A - A.mH
    A = A * (norm / torch.linalg.matrix_norm(A, 2)[..., None, None])
    A.requires_grad_(True)
    G = torch.randn(*shape, dtype=dtype, generator=_generator())
    return lambda: torch.autograd.grad(linalg.expm_skew(A), A, G)


def _map(function: Callable[[Tensor], Tensor], *shape: int) -> Call:
    """Forward and backward pass of a function of skew matrices."""
    A = torch.randn(*shape, generator=_generator())
    A = (A - A.mT) / shape[-1] ** 0.5
    A.requires_grad_(True)
    G = torch.randn(*shape, generator=_generator())
    return lambda: torch.autograd.grad(function(A), A, G)


def _train(layer: nn.Module, x: Tensor) -> Call:
    """A training step with Adam."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        output = layer(x)
        output = output[0] if isinstance(output, tuple) else output
        (output * output.conj()).real.mean().backward()
        optimizer.step()

    return step


def _linear(n: int, k: int, *, orthogonal_map: str | None = None) -> nn.Module:
    torch.manual_seed(7)
    return isometry.orthogonal(nn.Linear(k, n), orthogonal_map=orthogonal_map)


def _layer(n: int, k: int, *, batch: int = 64, orthogonal_map: str | None = None):
    x = torch.randn(batch, k, generator=_generator())
    return _train(_linear(n, k, orthogonal_map=orthogonal_map), x)


def _convolution() -> Call:
    torch.manual_seed(7)
    layer = isometry.orthogonal(nn.Conv2d(32, 32, 3, padding=1))
    return _train(layer, torch.randn(8, 32, 16, 16, generator=_generator()))


def _recurrent(name: str, inputs: int, hidden: int, *, steps: int, batch: int) -> Call:
    torch.manual_seed(7)
    layer = getattr(recurrent, name)(inputs, hidden)
    x = torch.randn(steps, batch, inputs, generator=_generator())
    return _train(layer, x)


def _descent(optimizer: type, n: int, k: int, *, batch: int = 1) -> Call:
    """A step of a Riemannian optimizer with a fixed gradient."""
    if n == k:
        manifold = groups.SO(n)
        # do not use `random`, which was wrong at n = 512 in some versions
        X = linalg.expm_skew(
            linalg.skew(torch.randn(batch, n, n, generator=_generator()))
        )
    else:
        manifold = groups.Stiefel(n, k)
        X = manifold.random(batch, dtype=torch.float32, generator=_generator())
    weight = nn.Parameter(X)
    weight.grad = torch.randn(X.shape, generator=_generator())
    return optimizer([weight], lr=1e-3, manifold=manifold).step


def _evaluation(n: int, k: int) -> Call:
    """A forward pass without gradients, which reads the weight from the cache."""
    layer = _linear(n, k).eval()
    x = torch.randn(256, k, generator=_generator())

    def forward() -> Tensor:
        with torch.no_grad():
            return layer(x)

    return forward


def _reads(times: int, n: int) -> Call:
    """Many reads of one weight in one training pass."""
    layer = _linear(n, n)
    x = torch.ones(1, n)

    def step() -> None:
        total = torch.zeros(())
        for _ in range(times):
            total = total + (x @ layer.weight).sum()
        total.backward()

    return step


CASES: dict[str, Callable[[], Call]] = {
    "kernels: 4096 x 8 x 8": lambda: _exponential(4096, 8, 8, norm=1.0),
    "kernels: 1024 x 32 x 32": lambda: _exponential(1024, 32, 32, norm=1.0),
    "kernels: 16": lambda: _exponential(16, 16, norm=1.0),
    "kernels: 64": lambda: _exponential(64, 64, norm=1.0),
    "kernels: 128, norm 3": lambda: _exponential(128, 128, norm=3.0),
    "kernels: 512, norm 0.1": lambda: _exponential(512, 512, norm=0.1),
    "kernels: 512, norm 3": lambda: _exponential(512, 512, norm=3.0),
    "kernels: 512, norm 30": lambda: _exponential(512, 512, norm=30.0),
    "kernels: 1024, norm 1": lambda: _exponential(1024, 1024, norm=1.0),
    "kernels: 256, float64": lambda: _exponential(
        256, 256, norm=1.0, dtype=torch.float64
    ),
    "kernels: 256, complex64": lambda: _exponential(
        256, 256, norm=1.0, dtype=torch.complex64
    ),
    "kernels: cayley 256": lambda: _map(linalg.cayley, 256, 256),
    "kernels: pade 256": lambda: _map(
        lambda A: linalg.pade(A, degree=3, squarings=0), 256, 256
    ),
    "layers: 16": lambda: _layer(16, 16),
    "layers: 64": lambda: _layer(64, 64),
    "layers: 512": lambda: _layer(512, 512),
    "layers: 1024": lambda: _layer(1024, 1024),
    "layers: 512, cayley": lambda: _layer(512, 512, orthogonal_map="cayley"),
    "layers: 512, householder": lambda: _layer(512, 512, orthogonal_map="householder"),
    "layers: 4096 x 64": lambda: _layer(4096, 64),
    "layers: convolution": _convolution,
    "recurrent: ExpRNN 16": lambda: _recurrent("ExpRNN", 4, 16, steps=20, batch=8),
    "recurrent: ExpRNN 64": lambda: _recurrent("ExpRNN", 4, 64, steps=100, batch=32),
    "recurrent: ExpRNN 190": lambda: _recurrent("ExpRNN", 10, 190, steps=200, batch=32),
    "recurrent: ExpLSTM 64": lambda: _recurrent("ExpLSTM", 4, 64, steps=50, batch=32),
    "recurrent: ScoRNN 128": lambda: _recurrent("ScoRNN", 4, 128, steps=50, batch=32),
    "recurrent: ScuRNN 64": lambda: _recurrent("ScuRNN", 4, 64, steps=50, batch=32),
    "recurrent: URNN 64": lambda: _recurrent("URNN", 4, 64, steps=30, batch=32),
    "optimizers: SGD 64": lambda: _descent(optim.RiemannianSGD, 64, 64),
    "optimizers: SGD 512": lambda: _descent(optim.RiemannianSGD, 512, 512),
    "optimizers: Adam 512": lambda: _descent(optim.RiemannianAdam, 512, 512),
    "optimizers: RMSprop 256": lambda: _descent(optim.RiemannianRMSprop, 256, 256),
    "optimizers: SGD 64 x 32": lambda: _descent(optim.RiemannianSGD, 32, 32, batch=64),
    "optimizers: Adam 2048 x 64": lambda: _descent(optim.RiemannianAdam, 2048, 64),
    "reads: 16": lambda: _evaluation(16, 16),
    "reads: 64": lambda: _evaluation(64, 64),
    "reads: 512": lambda: _evaluation(512, 512),
    "reads: 4096 x 64": lambda: _evaluation(4096, 64),
    "reads: hundred in a pass": lambda: _reads(100, 512),
}


def main() -> None:
    """Answer questions until the input ends."""
    torch.set_num_threads(2)
    calls: dict[str, Call] = {}
    for line in sys.stdin:
        question = json.loads(line)
        name = question["case"]
        if name not in calls:
            calls.clear()
            calls[name] = CASES[name]()
            for _ in range(3):
                calls[name]()
        call = calls[name]
        if question.get("memory"):
            answer: float = peak(call)
        else:
            begin = time.perf_counter()
            for _ in range(question["calls"]):
                call()
            answer = (time.perf_counter() - begin) / question["calls"]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
