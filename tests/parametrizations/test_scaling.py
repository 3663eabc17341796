"""Training in half precision: scaled gradients and autocast."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from tests.parametrizations.cases import orthonormality
from tests.parametrizations.small_network import (
    POLICIES,
    constraint_of,
    data,
    loss_of,
    network,
    same,
    train,
    weights,
)

KERNELS = [{}, {"foreach": True}, {"fused": True}]


def scaled(model: nn.Module, optimizer: Optimizer, losses: list[float]) -> list[int]:
    """Train with a GradScaler; return the counter after each step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    counts = []
    for factor in losses:
        optimizer.zero_grad()
        scaler.scale(factor * loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        counts.append(int(constraint_of(model).steps))
    return counts


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_scaled_gradients_make_the_same_steps(policy, kernel):
    """Gradients scaled by a power of two make the same steps, bit by bit."""
    model, twin = (network(torch.float32, **policy) for _ in range(2))
    makers = [
        torch.optim.Adam(m.parameters(), lr=0.01, **kernel) for m in (model, twin)
    ]
    scaled(model, makers[0], [1.0] * 8)
    train(twin, makers[1], 8)
    assert same(model, twin)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_step_that_was_skipped_is_not_counted(kernel):
    """A skipped step is not counted.

    A GradScaler calls a fused optimizer for such a step, too, which used to be counted.
    """
    model = network(torch.float32, rebase_every=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **kernel)
    counts = scaled(model, optimizer, [1.0, math.inf, 1.0, math.nan, 1.0, 1.0])
    assert counts == [1, 1, 2, 2, 0, 1]
    twin = network(torch.float32, rebase_every=3)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, **kernel)
    train(twin, optimizer, 4)
    assert same(model, twin)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_training_under_autocast(policy, dtype):
    """Under autocast the weight has the precision of float32; a cast rounds it once."""
    model = network(torch.float32, **policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    x, y = data(torch.float32)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    for W in weights(model):
        assert W.dtype == torch.float32
        assert orthonormality(W) <= 1e-6 * W.shape[1] ** 0.5
        narrow = orthonormality(W.to(dtype).float())
        assert narrow <= torch.finfo(dtype).eps * W.shape[1] ** 0.5
