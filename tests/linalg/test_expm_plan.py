"""How the exponential chooses its polynomial: plans, batches and costs."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from isometry.linalg._expm import products
from isometry.linalg._expm.autograd import Exponential
from isometry.linalg._expm.schemes import SCHEMES
from isometry.linalg._expm_skew import (
    expm_skew,
    expm_skew_adjoint,
    expm_skew_frechet,
)
from tests.helpers import DTYPES, eps, random_skew

METHODS = ["products", "eigh", "pade"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plans_are_in_order(dtype):
    """Edges of plans increase up to 1/eps, and their squarings are enough."""
    edges = list(products.plan_edges(dtype))
    assert sorted(set(edges)) == edges
    assert edges[-2] < 1 / eps(dtype) <= edges[-1]
    schemes = SCHEMES[dtype.to_real()]
    for plan, edge in enumerate(edges):
        scheme, squarings = products.decode(plan, dtype)
        assert scheme is not None
        assert scheme.theta * 2**squarings == edge
        assert scheme is schemes[min(plan, len(schemes) - 1)]
    assert products.decode(len(edges), dtype) == (None, 0)


def plan_of(A: Tensor) -> Tensor:
    return Exponential.apply(A, None)[2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plans_are_never_too_low(dtype, rng):
    """The edge of the chosen plan is above the largest angle, also near an edge."""
    edges = torch.tensor(list(products.plan_edges(dtype)), dtype=torch.float64)
    for norm in (edges[:6, None] * torch.tensor([0.5, 0.999, 1.001])).flatten():
        A = random_skew(8, norm=float(norm), dtype=dtype, rng=rng, batch=(4,))
        chosen = plan_of(A)
        # for a single matrix the plan is computed on Python numbers
        assert torch.equal(chosen, torch.cat([plan_of(a[None]) for a in A]))
        assert (edges[chosen] >= norm * (1 - 1e-6)).all()
        # where the bound is not sharp enough, the plan is one higher than needed
        assert (chosen <= torch.searchsorted(edges, norm) + 1).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [1e-4, 1.0])
def test_an_outlier_costs_its_neighbours_nothing(norm, dtype, rng):
    """In a batch of 10,000 one large matrix changes no bit of the others."""
    A = random_skew(3, norm=norm, dtype=dtype, rng=rng, batch=(10_000,))
    G = torch.randn(A.shape, dtype=dtype, generator=rng)
    with_outlier = A.clone()
    with_outlier[1234] *= 300 / norm
    others = torch.arange(10_000) != 1234
    assert torch.equal(plan_of(A)[others], plan_of(with_outlier)[others])
    before, after = expm_skew_adjoint(A, G), expm_skew_adjoint(with_outlier, G)
    for x, y in zip(before, after, strict=True):
        assert torch.equal(x[others], y[others])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_cotangent_that_is_not_finite_becomes_nan_alone(dtype, rng):
    A = random_skew(4, norm=9.0, dtype=dtype, rng=rng, batch=(3,))
    G = torch.randn(A.shape, dtype=dtype, generator=rng)
    expected = expm_skew_adjoint(A, G)[1]
    G[1, 0, 2] = math.nan
    g = expm_skew_adjoint(A, G)[1]
    assert g[1].isnan().any()
    assert torch.equal(g[::2], expected[::2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_is_known_above_the_inverse_of_eps(dtype, rng):
    """Values are finite at norm 1e4, and NaN beyond twice the last edge.

    Derivatives are NaN there, too.
    """
    A = random_skew(4, norm=1.0, dtype=dtype, rng=rng)
    assert expm_skew(1e4 * A).isfinite().all()
    above = A * (2.1 * products.plan_edges(dtype)[-1])
    for result in (*expm_skew_adjoint(above, A), *expm_skew_frechet(above, A)):
        assert result.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_given_bound_spares_the_estimate(dtype, rng, monkeypatch):
    """`norm_bound` replaces the estimate: the same bits if both give the same plan."""
    A = random_skew(6, norm=2.0, dtype=dtype, rng=rng, batch=(2,)).requires_grad_()
    G = torch.randn(A.shape, dtype=dtype, generator=rng)
    expected = expm_skew(A)
    (gradient,) = torch.autograd.grad(expected, A, G)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the norm was estimated")

    with monkeypatch.context() as patch:
        patch.setattr(products, "estimate_plan", never)
        Q = expm_skew(A, norm_bound=2.1)
        assert torch.equal(Q, expected)
        assert torch.equal(torch.autograd.grad(Q, A, G)[0], gradient)
        batched = torch.func.vmap(lambda A: expm_skew(A, norm_bound=2.1))(A.detach())
        assert torch.equal(batched, expected)
        # a generous bound costs only rounding
        generous = expm_skew(A, norm_bound=50.0)
        assert_close(generous, expected, rtol=0, atol=100 * eps(dtype))
        with pytest.raises(AssertionError, match="estimated"):
            expm_skew(A)


@pytest.mark.errors
@pytest.mark.parametrize("method", ["eigh", "pade"])
def test_other_methods_take_no_bound(method):
    """A bound is refused where it has no effect; it used to be ignored."""
    message = rf"`norm_bound` must be None for the method '{method}', .*; got 1\.0\. Le"
    with pytest.raises(ValueError, match=message):
        expm_skew(torch.zeros(3, 3), norm_bound=1.0, method=method)


class Products(TorchDispatchMode):
    """Counts products of n x n matrices, batched or not."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket.__name__
        factors = [x for x in args if isinstance(x, Tensor)][-2:]
        if packet in ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_"):
            self.count += all(x.shape[-2:] == (self.n, self.n) for x in factors)
        return func(*args, **(kwargs or {}))


def products_of(A: Tensor, *, norm_bound: float | None) -> tuple[int, int]:
    """Number of products in a forward and a backward pass."""
    A = A.clone().requires_grad_()
    with Products(A.shape[-1]) as forward:
        Q = expm_skew(A, norm_bound=norm_bound)
    with Products(A.shape[-1]) as backward:
        torch.autograd.grad(Q, A, torch.ones_like(Q))
    return forward.count, backward.count


@pytest.mark.parametrize(
    ("dtype", "norm", "cost"),
    [
        (torch.float32, 0.06, (2, 3)),
        (torch.float32, 0.35, (3, 4)),
        (torch.float32, 1.69, (4, 5)),
        (torch.complex64, 1.69, (4, 5)),
        (torch.float32, 3.4, (4, 6)),
        (torch.float32, 6.9, (5, 8)),
        (torch.float32, 13.9, (6, 11)),
        (torch.complex64, 27.9, (9, 14)),
        (torch.float64, 0.0004, (2, 3)),
        (torch.complex128, 0.0004, (2, 3)),
        (torch.float64, 0.012, (3, 4)),
        (torch.float64, 0.87, (4, 6)),
        (torch.float64, 1.74, (5, 8)),
        (torch.float64, 3.0, (6, 11)),
        (torch.complex128, 6.9, (9, 14)),
    ],
)
def test_costs_are_those_of_the_docstring(dtype, norm, cost, rng):
    """Products forward + backward: 2 + 3, 3 + 4, 4 + 5 or 4 + 6 without squarings.

    The first squaring adds 1 + 2 products, each further one 1 + 3. If there are three
    or more, two more products make the value orthogonal.
    """
    # use two matrices: C would compute a single one, and the counter cannot see C
    A = random_skew(8, norm=norm, dtype=dtype, rng=rng).repeat(2, 1, 1)
    assert products_of(A, norm_bound=norm) == cost
    forward, backward = products_of(A, norm_bound=None)
    # the bound of the angles may cost one product more, and may lead to the next plan
    assert forward - cost[0] in (0, 1, 2)
    assert backward - cost[1] in (0, 1, 2, 3)


def test_the_derivative_costs_three_exponentials(rng):
    A = random_skew(8, norm=3.0, dtype=torch.float32, rng=rng)
    with Products(8) as counter:
        expm_skew_frechet(A, A)
    # 3 times 4, and the exponential that finds the plan by an estimate
    assert counter.count <= 12 + 5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [5.0, 13.0, 15.0, 100.0, 1e4])
def test_orthogonality_does_not_decay_with_the_norm(norm, dtype, rng):
    """Q^H Q = I up to rounding, however many squarings; each used to double the defect.

    At norm 100 and n = 64 the defect was 1.4e-5 in float32, and is 2.4e-7.
    """
    A = random_skew(64, norm=norm, dtype=dtype, rng=rng)
    Q = expm_skew(A).to(torch.complex128)
    defect = torch.linalg.matrix_norm(Q.mH @ Q - torch.eye(64)) / 8
    # twice the worst of 20 seeds: 7.7 below norm 14 (float32, norm 13), and 2.8 above,
    # where a last step makes the value orthogonal
    assert defect <= (15.4 if norm < 14 else 5.6) * eps(dtype)
