"""Scaling and squaring where no digit of the result is known."""

import pytest
import torch

from isometry.linalg import expm_tall, pade
from tests.helpers import DTYPES, eps, random_skew

MAPS = {
    "pade": lambda A: pade(A, degree=7, squarings="auto"),
    "expm_tall": lambda A: expm_tall(A[..., :2]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_value_and_gradient_are_nan_beyond_all_digits(name, dtype, rng):
    """A matrix with an angle above 1 / eps gives NaN, and no other one does."""
    A = random_skew(6, norm=1.0, dtype=dtype, rng=rng, batch=(3,))
    A = A * torch.tensor([1.0, 100 / eps(dtype), 1.0]).to(dtype)[:, None, None]
    A.requires_grad_()
    Q = MAPS[name](A)
    (g,) = torch.autograd.grad(Q, A, torch.ones_like(Q))
    assert Q[1].isnan().all()
    assert g[1][..., :2].isnan().any()
    assert not (g[1].isfinite() & (g[1] != 0)).any()
    assert Q[::2].isfinite().all()
    assert g[::2].isfinite().all()
