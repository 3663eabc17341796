"""Parameters of equal shape are stepped as one batch: each as it would be alone."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from isometry.groups import SO, AbstractManifold, Sphere, Stiefel, U
from tests.optim.cases import OPTIMIZERS, double


@pytest.mark.parametrize("name", ["SGD", "Nesterov", "AMSGrad", "Adagrad"])
@pytest.mark.parametrize(
    "manifold", [SO(5), U(3), Stiefel(9, 2), Stiefel(4, 3), Sphere(4)], ids=str
)
def test_a_batch_is_its_matrices(manifold: AbstractManifold, name, rng):
    """One of them begins later, one has no gradient for a while, one is a batch."""
    make, _, options = OPTIMIZERS[name]
    shapes = [(), (), (3,), (), (2, 2)]
    starts = [
        manifold.random(*s, dtype=double(manifold), generator=rng) for s in shapes
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


def test_a_long_step_of_one_does_not_change_the_others(rng):
    """The longest matrix decides how all of a batch are computed, to rounding."""
    for manifold in (SO(5), Stiefel(9, 2)):
        starts = manifold.random(2, dtype=torch.float64, generator=rng)
        gradients = manifold.random(2, dtype=torch.float64, generator=rng)
        gradients[1] *= 1e4
        make = OPTIMIZERS["momentum"][0]
        together = [nn.Parameter(X.clone()) for X in starts]
        alone = nn.Parameter(starts[0].clone())
        alone.grad = gradients[0]
        for p, G in zip(together, gradients, strict=True):
            p.grad = G
        make(together, lr=1e-3, momentum=0.9, manifold=manifold).step()
        make([alone], lr=1e-3, momentum=0.9, manifold=manifold).step()
        assert_close(together[0], alone, rtol=0, atol=1e-15)


def test_state_of_a_batch_is_separate(rng):
    """Views of one tensor would be saved, and kept, whole."""
    params = [nn.Parameter(SO(4).random(generator=rng)) for _ in range(3)]
    optimizer = OPTIMIZERS["Adam"][0](params, manifold=SO(4))
    for p in params:
        p.grad = torch.ones(4, 4)
    for _ in range(2):
        optimizer.step()
        for p in params:
            moment = optimizer.state[p]["exp_avg"]
            assert moment.untyped_storage().nbytes() == 4 * 16
