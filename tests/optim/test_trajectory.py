"""Step by step, the optimizers follow their equations."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from isometry.groups import SO, AbstractManifold, Stiefel
from isometry.optim import RiemannianAdam
from tests.optim.cases import MANIFOLDS, OPTIMIZERS, double_dtype_of, loss, retractions
from tests.optim.reference import Slow


def follow(
    manifold: AbstractManifold,
    name: str,
    retraction: str,
    lr: float,
    rng: torch.Generator,
    *,
    steps: int = 20,
) -> float:
    """Step an optimizer and its twin; return how far the point moved."""
    make, kind, options = OPTIMIZERS[name]
    dtype = double_dtype_of(manifold)
    start, target = manifold.random(2, dtype=dtype, generator=rng)
    options = {"lr": lr, **options}
    p = nn.Parameter(start.clone())
    ours = make([p], manifold=manifold, retraction=retraction, **options)
    slow = Slow(manifold, start, kind, options, retraction)
    for _ in range(steps):
        ours.zero_grad()
        loss(p, target).backward()
        ours.step()
        slow.step(lambda Q: loss(Q, target))
        # ten times the worst over 5 seeds, 1.0e-13 (Quadrupole, RMSprop): a rule that
        # divides by small gradients amplifies rounding
        assert_close(p.detach(), slow.Q, rtol=0, atol=1e-12)
    assert manifold.contains(p.detach())
    return float(torch.dist(p.detach(), start))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("manifold", MANIFOLDS, ids=str)
def test_twenty_steps_are_those_of_the_equations(manifold, name, rng):
    """Twenty steps agree with the slow twin, which uses n x n matrices, in float64."""
    moved = follow(manifold, name, "exp", 0.02, rng)
    assert moved > 0.1 or manifold.dimension == 0


@pytest.mark.parametrize(
    ("manifold", "retraction"),
    [(M, r) for M in MANIFOLDS for r in retractions(M)],
    ids=str,
)
def test_every_retraction_is_taken(manifold, retraction, rng):
    """Every retraction agrees with the twin, for short and long steps.

    Different lengths take different code.
    """
    for lr in (2e-5, 1e-3, 0.01, 0.2):
        follow(manifold, "momentum", retraction, lr, rng, steps=6)


@pytest.mark.parametrize("name", ["Nesterov", "Adam"])
@pytest.mark.parametrize("shape", [(2, 3, 9), (4, 9)], ids=str)
def test_wide_matrices_are_steps_of_their_transpose(shape, name, rng):
    """A W with orthonormal rows is stepped as the point W^T."""
    make, _, options = OPTIMIZERS[name]
    manifold = Stiefel(9, shape[-2])
    start, target = manifold.random(2, *shape[:-2], dtype=torch.float64, generator=rng)
    tall, wide = nn.Parameter(start.clone()), nn.Parameter(start.mT.clone())
    ours = make([tall], manifold=manifold, lr=0.1, **options)
    other = make([wide], manifold=manifold, lr=0.1, **options)
    for _ in range(5):
        tall.grad = loss_gradient(tall, target)
        wide.grad = loss_gradient(wide.mT, target).mT
        ours.step()
        other.step()
    # products of transposed matrices sum in another order; 4e-16 was measured
    assert_close(wide.mT, tall, rtol=0, atol=4e-15)
    assert torch.dist(tall, start) > 0.1


def test_second_moments_are_the_gradients_that_autograd_gives(rng):
    """At X = 0 the gradient of Q exp(X) by autograd is the gradient in the algebra.

    Its squares are the second moments.
    """
    manifold = SO(4)
    Q, target = manifold.random(2, dtype=torch.float64, generator=rng)
    p = nn.Parameter(Q.clone())
    optimizer = RiemannianAdam([p], lr=0.1, betas=(0.0, 0.0), manifold=manifold)
    X = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    loss(Q @ torch.matrix_exp(X - X.mT), target).backward()
    loss(p, target).backward()
    optimizer.step()
    assert X.grad is not None
    # X - X^T turns twice as far as its skew part
    assert_close(optimizer.state[p]["exp_avg"][0], X.grad / 2)
    assert_close(optimizer.state[p]["exp_avg_sq"][0], (X.grad / 2) ** 2)


def loss_gradient(Q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    Q = Q.detach().requires_grad_()
    return torch.autograd.grad(loss(Q, target), Q)[0]
