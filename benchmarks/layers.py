"""Training steps of orthogonal layers, against torch's and geotorch's."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.peak import peak
from benchmarks.peers import count_products
from isometry.lab.bench import (
    GEOTORCH,
    OUR_CAYLEY,
    OUR_HOUSEHOLDER,
    OURS,
    TORCH_CAYLEY,
    TORCH_EXP,
    TORCH_HOUSEHOLDER,
    UNCONSTRAINED,
)
from isometry.lab.bench.suites import (
    constrain_as,
    data,
    layer_at,
    orthogonal_linear,
    training_step,
)
from isometry.lab.bench.timing import Call, interleave

Progress = Callable[[str], None]

# norms of the coordinates; training starts at 0
NORMS = (0.0, 1.0, 3.0)
BATCHES = (64, 256, 1024, 4096, 16384)
NETWORK = (UNCONSTRAINED, OURS, TORCH_EXP, TORCH_CAYLEY, GEOTORCH)
DEPTH = 4
# lines of progress that `measure` writes
STEPS = len(NORMS) + len(BATCHES) + 1 + 3


def tall_layer_at(n: int, k: int, name: str, *, norm: float) -> nn.Module:
    """A layer with an n x k weight, constrained by the contender `name`.

    The coordinates have the norm `norm` with our exponential and our Cayley map. The
    time of all other contenders does not depend on it, so their layers start as usual.
    """
    layer = constrain_as(orthogonal_linear(k, n, seed=0), name)
    if name in (OURS, OUR_CAYLEY) and norm > 0:
        parts = layer.parametrizations.weight
        B, stiefel = parts[0].base, parts[0].manifold
        rng = torch.Generator().manual_seed(1)
        E = stiefel.project(B, torch.randn(n, k, generator=rng))
        # `border_distance` is pi minus the norm of the coordinates E
        size = math.pi - float(stiefel.border_distance(B, E))
        with torch.no_grad():
            parts.original.copy_(norm / size * E)
    return layer


def timed(contenders: Mapping[str, Call], *, rounds: int) -> dict[str, Any]:
    """Best and median seconds of a step, over interleaved runs of several steps."""
    # time several steps in a row, as in a training loop, since a single step after a
    # pause would find its memory cold
    return interleave(contenders, rounds=rounds, sample=0.25)


def measure_layer(
    *, n: int = 512, batch: int = 64, norms: Sequence[float], rounds: int, say: Progress
) -> list[dict[str, Any]]:
    """Time of a training step of one layer, by the norm of its coordinates."""
    names = (*NETWORK, OUR_CAYLEY, OUR_HOUSEHOLDER, TORCH_HOUSEHOLDER)
    x, y = data(batch, n, n)
    rows = []
    for norm in norms:
        say(f"layer: {n} x {n}, norm {norm:g}")
        steps = {
            name: training_step(layer_at(n, name, norm=norm), x, y) for name in names
        }
        times = timed(steps, rounds=rounds)
        rows.append({"n": n, "batch": batch, "norm": norm, **times})
    return rows


def network(n: int, name: str, *, norm: float) -> nn.Module:
    """`DEPTH` square layers with ReLU between them."""
    layers: list[nn.Module] = []
    for depth in range(DEPTH):
        layers += [layer_at(n, name, norm=norm, seed=depth), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def measure_network(
    batch: int,
    names: Sequence[str],
    *,
    n: int = 512,
    norm: float,
    rounds: int,
    say: Progress,
) -> dict[str, Any]:
    """Time of a training step of the network, and the work of its products.

    Products are counted only for contenders that solve no linear systems.
    """
    say(f"network: batch {batch}, norm {norm:g}")
    x, y = data(batch, n, n)
    steps = {name: training_step(network(n, name, norm=norm), x, y) for name in names}
    products = {
        name: count_products(steps[name], n)
        for name in names
        if name in (UNCONSTRAINED, OURS, TORCH_EXP)
    }
    times = timed(steps, rounds=rounds)
    return {"n": n, "batch": batch, "norm": norm, "products": products, **times}


def measure_tall(
    *, n: int = 4096, k: int = 64, batch: int = 64, rounds: int, say: Progress
) -> dict[str, Any]:
    """Time of a training step of a tall layer.

    Torch's slow steps, and ours beside them, are timed in two rounds only.
    """
    say(f"tall: {n} x {k}")
    x, y = data(batch, k, n)

    def step(name: str, norm: float) -> Call:
        return training_step(tall_layer_at(n, k, name, norm=norm), x, y)

    fast = {f"{OURS}, norm {norm:g}": step(OURS, norm) for norm in NORMS}
    fast[f"{OUR_CAYLEY}, norm 3"] = step(OUR_CAYLEY, 3.0)
    fast[OUR_HOUSEHOLDER] = step(OUR_HOUSEHOLDER, 0.0)
    fast[UNCONSTRAINED] = step(UNCONSTRAINED, 0.0)
    row = {"n": n, "k": k, "batch": batch, "fast": timed(fast, rounds=rounds)}
    say(f"tall: {n} x {k}, torch (seconds a step)")
    slow = {name: step(name, 3.0) for name in (OURS, TORCH_HOUSEHOLDER, TORCH_CAYLEY)}
    return row | {"slow": timed(slow, rounds=2)}


def weight_pass(layer: nn.Module, n: int, k: int) -> Call:
    """A function that computes the weight and the gradient of its coordinates."""
    G = torch.randn(n, k, generator=torch.Generator().manual_seed(2)) / math.sqrt(n * k)
    original = layer.parametrizations.weight.original
    return lambda: torch.autograd.grad(layer.weight, original, G)


def measure_memory(
    *,
    n: int = 30000,
    k: int = 50,
    small: tuple[int, int] = (4096, 64),
    say: Progress,
) -> dict[str, Any]:
    """Peak bytes of a forward and backward pass; torch's maps get the size `small`."""
    say(f"tall: memory at {n} x {k}")
    row: dict[str, Any] = {"n": n, "k": k, "small": small}
    for name in (OURS, OUR_CAYLEY):
        row[name] = peak(weight_pass(tall_layer_at(n, k, name, norm=3.0), n, k))
    for name in (TORCH_HOUSEHOLDER, TORCH_CAYLEY):
        layer = tall_layer_at(*small, name, norm=3.0)
        row[name] = peak(weight_pass(layer, *small))
        row["base"] = layer.parametrizations.weight[0].base.nbytes
    return row


def measure(*, rounds: int, say: Progress) -> dict[str, Any]:
    """Measure everything about layers.

    The network is timed with every batch at norm 3, and with batch 4096 at all norms.
    """
    step = measure_layer(norms=NORMS, rounds=rounds, say=say)
    nets = [
        measure_network(batch, NETWORK, norm=3.0, rounds=min(rounds, 5), say=say)
        for batch in BATCHES
    ]
    say("network: batch 4096, at the start and at norm 1")
    nets += [
        measure_network(
            4096, (UNCONSTRAINED, OURS), norm=norm, rounds=rounds, say=lambda _: None
        )
        for norm in NORMS[:-1]
    ]
    tall = measure_tall(rounds=rounds, say=say)
    memory = measure_memory(say=say)
    return {"step": step, "network": nets, "tall": tall, "tall_memory": memory}
