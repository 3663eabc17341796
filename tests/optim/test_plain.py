"""Parameters without a manifold get the update of torch's optimizer, bit by bit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from isometry.groups import SO
from isometry.optim import RiemannianAdam, RiemannianRMSprop, RiemannianSGD
from tests.optim.cases import plain

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "SGD": (RiemannianSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (
        RiemannianSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1},
    ),
    "Nesterov": (
        RiemannianSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True},
    ),
    "Adam": (RiemannianAdam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
    "AMSGrad": (
        RiemannianAdam,
        torch.optim.Adam,
        {"lr": 0.1, "betas": (0.8, 0.9), "amsgrad": True, "maximize": True},
    ),
    "RMSprop": (RiemannianRMSprop, torch.optim.RMSprop, {"weight_decay": 0.01}),
    "RMSprop with momentum": (
        RiemannianRMSprop,
        torch.optim.RMSprop,
        {"lr": 0.1, "alpha": 0.9, "momentum": 0.9, "maximize": True},
    ),
}


def parameters(rng: torch.Generator, *, clones: int) -> list[list[nn.Parameter]]:
    shapes = [((3, 4), torch.float32), ((5,), torch.float64), ((2, 2), torch.complex64)]
    values = [torch.randn(s, dtype=t, generator=rng) for s, t in shapes]
    return [[nn.Parameter(X.clone()) for X in values] for _ in range(clones)]


@pytest.mark.parametrize("name", PAIRS)
def test_plain_parameters_are_those_of_torch(name, rng):
    """Plain parameters have torch's bits, beside a rotation with its own options."""
    ours, theirs, options = PAIRS[name]
    first, second = parameters(rng, clones=2)
    W = nn.Parameter(SO(4).random(generator=rng))
    optimizer = ours([{"params": first}, {"params": [W], "manifold": SO(4)}], **options)
    twin = theirs(second, **options)
    for step in range(12):
        W.grad = torch.randn(4, 4, generator=rng)
        for p, q in zip(first, second, strict=True):
            g = torch.randn(p.shape, dtype=p.dtype, generator=rng)
            # one of them has no gradient in some steps
            absent = step % 4 == 3 and p.ndim == 1
            p.grad, q.grad = (None, None) if absent else (g, g.clone())
        optimizer.step()
        twin.step()
        for p, q in zip(first, second, strict=True):
            assert torch.equal(p, q)
    for p, q in zip(first, second, strict=True):
        assert optimizer.state[p].keys() == twin.state[q].keys()


@pytest.mark.parametrize("name", PAIRS)
def test_checkpoints_of_torch_load(name, rng):
    """A checkpoint of torch loads, and training goes on with the same bits.

    Its parameter groups have fewer options.
    """
    ours, theirs, options = PAIRS[name]
    first, second = parameters(rng, clones=2)
    twin = theirs(second, **options)

    def steps(*runs: tuple[Any, list[nn.Parameter]]) -> None:
        for _ in range(2):
            for i, p in enumerate(first):
                g = torch.randn(p.shape, dtype=p.dtype, generator=rng)
                for _, params in runs:
                    params[i].grad = g.clone()
            for optimizer, _ in runs:
                optimizer.step()

    steps((twin, second))
    for p, q in zip(first, second, strict=True):
        p.data.copy_(q.data)
    optimizer = ours(plain(first), **options)
    optimizer.load_state_dict(copy.deepcopy(twin.state_dict()))
    steps((optimizer, first), (twin, second))
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["Adam", "AMSGrad", "RMSprop"])
def test_old_checkpoints_with_a_number_of_steps_load(name, rng):
    """A checkpoint whose `step` is a number loads, as torch stored it once.

    It used to raise "'int' has no attribute".
    """
    ours, theirs, options = PAIRS[name]
    first, second = parameters(rng, clones=2)
    W = nn.Parameter(SO(4).random(generator=rng))
    groups = [{"params": first}, {"params": [W], "manifold": SO(4)}]
    optimizer, twin = ours(groups, **options), theirs(second, **options)
    gradients = [torch.randn(p.shape, dtype=p.dtype, generator=rng) for p in first]

    def step() -> None:
        for p, q, g in zip(first, second, gradients, strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        W.grad = torch.ones(4, 4)
        optimizer.step()
        twin.step()

    step()
    state = copy.deepcopy(optimizer.state_dict())
    for values in state["state"].values():
        values["step"] = int(values["step"])
    optimizer.load_state_dict(state)
    step()
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    assert optimizer.state[W]["step"] == 2
    assert SO(4).contains(W)


def test_plain_embeddings_may_have_sparse_gradients(rng):
    """Sparse gradients work where torch's SGD accepts them."""
    start = torch.randn(5, 3, generator=rng)
    embeddings = [nn.Embedding(5, 3, sparse=True) for _ in range(2)]
    for layer in embeddings:
        layer.weight = nn.Parameter(start.clone())
        layer(torch.tensor([1, 3])).square().sum().backward()
    RiemannianSGD(plain(embeddings[0].parameters()), lr=0.1).step()
    torch.optim.SGD(embeddings[1].parameters(), lr=0.1).step()
    assert torch.equal(embeddings[0].weight, embeddings[1].weight)
    assert not torch.equal(embeddings[0].weight, start)


def test_weight_decay_does_nothing_on_a_manifold(rng):
    """Weight decay does nothing on a manifold: the gradient of |Q|^2 is normal."""
    start = SO(4).random(generator=rng)
    results = []
    for weight_decay in (0.0, 10.0):
        p = nn.Parameter(start.clone())
        p.grad = torch.ones(4, 4)
        RiemannianSGD([p], lr=0.1, weight_decay=weight_decay, manifold=SO(4)).step()
        results.append(p.detach())
    assert torch.equal(*results)
