"""Training through our maps agrees with training through torch's, step by step."""

from collections.abc import Callable
from itertools import cycle

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from isometry.groups import AbstractGroup, Sphere
from tests.helpers import gradcheck_options
from tests.parametrizations import reference
from tests.parametrizations.cases import CASES, ROWS, Weight

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def reference_weight(name: str, retraction: str, X: Tensor, buffers: dict) -> Tensor:
    """The weight with coordinates X, in torch's operations only."""
    case = CASES[name]
    if isinstance(case.manifold, AbstractGroup) and retraction != "householder":
        A = reference.algebra(name, X)
        return buffers["base"] @ reference.apply_map(A, retraction)
    if isinstance(case.manifold, Sphere):
        B = buffers["base"]
        return reference.tall(B[..., None], X[..., None], retraction)[..., 0]
    wide = case.shape[-2] < case.shape[-1]
    X = X.mT if wide else X
    if retraction == "householder":
        Q = reference.reflected(X, buffers["phase"])
    else:
        B = buffers["base"].mT if wide else buffers["base"]
        if X.shape[-2] == X.shape[-1]:
            Q = B @ reference.apply_map(reference.skew(X), retraction)
        else:
            Q = reference.tall(B, X, retraction)
    return Q.mT if wide else Q


def loss(W: Tensor, target: Tensor) -> Tensor:
    """A loss that is not quadratic: its gradient is not proportional to W - target."""
    if W.is_complex():
        return ((W - target).abs() ** 2).sum() + (W.real**4).sum() - (W.imag**3).sum()
    return ((W - target) ** 2).sum() + (W**4).sum()


# The optimizers are torch's on both sides, and take turns: three has no common factor
# with the four maps.
TURNS = [(*row, optimizer) for row, optimizer in zip(ROWS, cycle(OPTIMIZERS))]


@pytest.mark.parametrize(("name", "retraction", "optimizer"), TURNS)
def test_twenty_steps_are_those_of_torch(name, retraction, optimizer, rng):
    """Twenty steps agree with torch.matrix_exp, solve and autograd in float64."""
    case = CASES[name]
    dtype = case.dtype(double=True)
    module = case.constrain(Weight(case.random(rng, dtype)), retraction)
    target = case.random(rng, dtype)
    lists = module.parametrizations
    assert isinstance(lists, nn.ModuleDict)
    buffers = {k: v.clone() for k, v in lists["weight"][0].named_buffers()}
    twin = nn.Parameter(module.parametrizations.weight.original.detach().clone())
    ours = OPTIMIZERS[optimizer](module.parameters())
    theirs = OPTIMIZERS[optimizer]([twin])
    start = module.weight.detach().clone()
    for _ in range(20):
        ours.zero_grad()
        loss(module.weight, target).backward()
        ours.step()
        theirs.zero_grad()
        loss(reference_weight(name, retraction, twin, buffers), target).backward()
        theirs.step()
        weight = reference_weight(name, retraction, twin, buffers)
        # 1e-9: a hundred times the worst, 1e-11 (Adam divides by small gradients)
        assert_close(module.weight, weight, rtol=0, atol=1e-9)
    if start.numel() > 1:
        # the least of 200 seeds was 0.012: a group of one angle started near a minimum
        assert torch.dist(module.weight, start) > 1e-3


@pytest.mark.parametrize(("name", "retraction"), ROWS)
def test_gradient_is_that_of_finite_differences(name, retraction, rng):
    case = CASES[name]
    dtype = case.dtype(double=True)
    module = case.constrain(Weight(case.random(rng, dtype)), retraction)
    constraint = module.parametrizations.weight[0]
    X = module.parametrizations.weight.original.detach()
    X = X + 0.3 * case.random(rng, dtype)
    X.requires_grad_()
    assert torch.autograd.gradcheck(constraint, X, **gradcheck_options(dtype))
