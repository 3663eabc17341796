"""Second derivatives in single precision, in the norm range of every polynomial."""

import pytest
import torch
from torch import Tensor
from torch.linalg import matrix_norm

from isometry.linalg import expm_skew
from isometry.linalg._expm.schemes import SCHEMES
from tests.helpers import double_dtype, eps, random_skew


def second(A: Tensor, E: Tensor, G: Tensor, *, reference: bool = False) -> Tensor:
    """The gradient of <E, gradient of <G, exp A>>."""
    A = A.clone().requires_grad_()
    Q = expm_skew(A, method="eigh" if reference else "products")
    value = (Q * G.conj()).real.sum()
    (g,) = torch.autograd.grad(value, A, create_graph=True)
    return torch.autograd.grad((g * E.conj()).real.sum(), A)[0]


@pytest.mark.parametrize("scheme", SCHEMES[torch.float32], ids=lambda s: f"{s.theta}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("n", [3, 8])
def test_second_derivatives_in_every_band(n, dtype, scheme, rng):
    """Second derivatives agree with the eigendecomposition.

    With a polynomial of few products they used to be 60 eps off.
    """
    A = random_skew(n, norm=0.9 * scheme.theta, dtype=dtype, rng=rng)
    E = random_skew(n, norm=1.0, dtype=dtype, rng=rng)
    G = torch.randn(n, n, dtype=dtype, generator=rng)
    H = second(A, E, G)
    A, E, G = (X.to(double_dtype(dtype)) for X in (A, E, G))
    expected = second(A, E, G, reference=True)
    # twice the worst over 40 seeds, 1.75 (complex64, n = 3, angle 3.15)
    assert matrix_norm(H - expected) <= 3.5 * eps(dtype) * matrix_norm(G)


def test_a_matrix_that_is_not_skew_is_no_error():
    """A matrix that is not skew raises no error.

    The sum of the cubes of a cyclic permutation is 0, which was a ZeroDivisionError.
    """
    assert expm_skew(torch.eye(3)[[1, 2, 0]]).shape == (3, 3)
