"""A scheme with one product more than the committed ones works as a new row."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch.linalg import matrix_norm

from isometry._backend import only_torch
from isometry.groups import Exp
from isometry.linalg import expm_skew
from isometry.linalg._expm import products
from isometry.linalg._expm.autograd import Exponential
from isometry.linalg._expm.schemes import SCHEMES, Scheme
from tests.helpers import eps, random_skew
from tests.linalg import reference

rotation = Exp().around

# the angle at which the derivative of the remainder, theta^10 / 10!, is below eps
THETA = {torch.float32: 0.9, torch.float64: 0.11}


def taylor(theta: float) -> Scheme:
    r"""Taylor's polynomial of degree 10 in five products, by Horner's rule.

    A row has the coefficients of $(I, x, x^2, x^4, P_3, \ldots)$ with $x = A / \theta$.
    """
    c = [theta**j / math.factorial(j) for j in range(11)]
    return Scheme(
        theta=theta,
        rows=(
            # P_3 = x * x^2
            (0.0, 1.0, 0.0, 0.0),
            (0.0, 0.0, 1.0, 0.0),
            # P_4 = (c_8 + c_9 x + c_10 x^2) * x^4
            (c[8], c[9], c[10], 0.0, 0.0),
            (0.0, 0.0, 0.0, 1.0, 0.0),
            # P_5 = (c_4 + c_5 x + c_6 x^2 + c_7 P_3 + P_4) * x^4
            (c[4], c[5], c[6], 0.0, c[7], 1.0),
            (0.0, 0.0, 0.0, 1.0, 0.0, 0.0),
            # 1 + c_1 x + c_2 x^2 + c_3 P_3, to which P_5 is added
            (1.0, c[1], c[2], 0.0, c[3], 0.0),
        ),
    )


@pytest.fixture(params=THETA, ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """A precision whose table has one short scheme and the new one."""
    caches = (
        products.slots,
        products.plan_edges,
        products.plan_costs,
        products.decode,
    )
    dtype = request.param
    with pytest.MonkeyPatch.context() as patch:
        schemes = (SCHEMES[dtype][0], taylor(THETA[dtype]))
        patch.setitem(SCHEMES, dtype, schemes)
        for cached in caches:
            cached.cache_clear()
        yield dtype
    for cached in caches:
        cached.cache_clear()


@pytest.mark.parametrize("backend", ["C", "torch"])
@pytest.mark.parametrize("factor", [0.5, 3.0], ids=["without squarings", "with"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_a_fifth_product_computes(batch, factor, backend, dtype, rng):
    """C and torch compute value and gradient of a scheme with five products.

    C used to add at most four matrices.
    """
    n = 40
    norm = factor * THETA[dtype]
    A = random_skew(n, norm=norm, dtype=dtype, rng=rng, batch=batch).requires_grad_()
    G = torch.randn(A.shape, dtype=dtype, generator=rng)
    assert products.slots(dtype) == 6
    if backend == "torch":
        with only_torch():
            Q = expm_skew(A)
            (g,) = torch.autograd.grad(Q, A, G)
    else:
        Q = expm_skew(A)
        (g,) = torch.autograd.grad(Q, A, G)
    plan = Exponential.apply(A.detach().view(-1, n, n), None)[2]
    squarings = 2 if factor > 1 else 0
    assert products.decode(int(plan[0]), dtype) == (SCHEMES[dtype][1], squarings)
    expected = reference.expm(A.detach())
    expected_g = reference.gradient(A.detach(), G)
    # twice the worst over 20 seeds: 1.03 and 2.29
    assert (matrix_norm(Q - expected) <= 2.1 * eps(dtype) * n**0.5).all()
    assert (matrix_norm(g - expected_g) <= 4.6 * eps(dtype) * matrix_norm(G)).all()


def test_the_layer_takes_it_too(dtype, rng):
    """The layer's operator has enough slots for the new scheme."""
    X = random_skew(40, norm=0.8 * THETA[dtype], dtype=dtype, rng=rng).requires_grad_()
    G = torch.randn(40, 40, dtype=dtype, generator=rng)
    (g,) = torch.autograd.grad(rotation(X, None), X, G)
    expected = 2 * reference.gradient(X.detach(), G).tril(-1)
    # the tolerance of the test above, doubled
    assert matrix_norm(g - expected) <= 9.2 * eps(dtype) * matrix_norm(G)
