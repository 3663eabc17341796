"""Parameters of equal shape are stepped as one batch, each as if it were alone."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from isometry.groups import SO, AbstractManifold, Sphere, Stiefel, U
from tests.optim.cases import OPTIMIZERS, double_dtype_of, retractions


@pytest.mark.parametrize("name", ["SGD", "Nesterov", "AMSGrad", "Adagrad"])
@pytest.mark.parametrize(
    "manifold", [SO(5), U(3), Stiefel(9, 2), Stiefel(4, 3), Sphere(4)], ids=str
)
def test_a_batch_is_its_matrices(manifold: AbstractManifold, name, rng):
    """Each matrix of a batch moves as it would alone.

    One starts later, one has no gradient for some steps, and one is itself a batch.
    """
    make, _, options = OPTIMIZERS[name]
    shapes = [(), (), (3,), (), (2, 2)]
    starts = [
        manifold.random(*s, dtype=double_dtype_of(manifold), generator=rng)
        for s in shapes
    ]
    together = [nn.Parameter(X.clone()) for X in starts]
    alone = [nn.Parameter(X.clone()) for X in starts]
    one = make(together[:-1], lr=0.05, manifold=manifold, **options)
    many = [make([q], lr=0.05, manifold=manifold, **options) for q in alone]
    for step in range(6):
        if step == 3:
            one.add_param_group({"params": together[-1:], "manifold": manifold})
        for i, (p, q) in enumerate(zip(together, alone, strict=True)):
            G = torch.randn(p.shape, dtype=p.dtype, generator=rng)
            absent = (i == 1 and step == 2) or (i == 4 and step < 3)
            p.grad, q.grad = (None, None) if absent else (G, G.clone())
        one.step()
        for optimizer in many:
            optimizer.step()
    for p, q, X in zip(together, alone, starts, strict=True):
        # LAPACK and BLAS may sum a batch in another order; 2e-16 was measured
        assert_close(p, q, rtol=0, atol=1e-14)
        assert not torch.equal(p, X)


@pytest.mark.parametrize(
    ("manifold", "retraction"),
    [
        (M, r)
        for M in (SO(5), U(3), Stiefel(9, 2), Stiefel(7, 2, is_complex=True))
        for r in retractions(M)
    ],
    ids=str,
)
def test_a_long_step_of_one_does_not_change_the_others(manifold, retraction, rng):
    """A long step of one matrix changes the others by rounding only.

    The longest step decides how the whole batch is computed. Points of tall manifolds
    are stored as wide matrices here, and the second step has a momentum.
    """
    dtype = double_dtype_of(manifold)
    starts, gradients = manifold.random(2, 3, dtype=dtype, generator=rng)
    gradients[1] *= 1e4
    gradients[2] = 0
    make, _, options = OPTIMIZERS["ascent"]
    options = {"lr": 1e-3, "manifold": manifold, "retraction": retraction, **options}
    tall = manifold.shape[0] > manifold.shape[1]
    together = nn.Parameter(starts.mT.clone() if tall else starts.clone())
    together.grad = gradients.mT if tall else gradients
    alone = [nn.Parameter(X.clone()) for X in starts]
    for p, G in zip(alone, gradients, strict=True):
        p.grad = G
    one, many = make([together], **options), [make([p], **options) for p in alone]
    for _ in range(2):
        one.step()
        for optimizer in many:
            optimizer.step()
    for p, q in zip(together, alone, strict=True):
        # the worst over 20 seeds is 2.8e-15 (SO(5), exp: a step of ten radians)
        assert_close(p.mT if tall else p, q, rtol=0, atol=1e-14)


def test_states_whose_sum_is_too_large_are_finite_each(rng):
    """Three finite states stay finite, although their sum overflows.

    To find NaN and infinity, the optimizer first adds up all entries.
    """
    make, _, options = OPTIMIZERS["Adagrad"]
    options = options | {"lr": 1e3, "initial_accumulator": 4e37, "manifold": SO(2)}
    starts = SO(2).random(3, dtype=torch.float32, generator=rng)
    together = [nn.Parameter(X.clone()) for X in starts]
    alone = [nn.Parameter(X.clone()) for X in starts]
    # a tangent vector, so that each point moves: a random gradient may be nearly normal
    quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    for i, (p, q) in enumerate(zip(together, alone, strict=True)):
        p.grad = q.grad = (i + 1) * 1e15 * p.detach() @ quarter_turn
        make([q], **options).step()
    make(together, **options).step()
    for p, q, X in zip(together, alone, starts, strict=True):
        assert_close(p, q, rtol=0, atol=1e-6)
        assert torch.dist(p, X) > 0.01


def test_state_of_a_batch_is_separate(rng):
    """The state of each parameter has its own memory.

    A view of the batch would save and keep the whole batch.
    """
    params = [nn.Parameter(SO(4).random(generator=rng)) for _ in range(3)]
    optimizer = OPTIMIZERS["Adam"][0](params, manifold=SO(4))
    for p in params:
        p.grad = torch.ones(4, 4)
    for _ in range(2):
        optimizer.step()
        for p in params:
            moment = optimizer.state[p]["exp_avg"]
            assert moment.untyped_storage().nbytes() == 4 * 16
