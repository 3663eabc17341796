import math

import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jvp, vmap
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.linalg._polar import polar
from tests.helpers import DTYPES, differences, eps, random_unitary, wide

SHAPES = [(1, 1), (4, 4), (9, 4), (4, 9), (5, 1), (32, 32)]


def conditioned(n: int, k: int, s: Tensor, *, dtype, rng) -> tuple[Tensor, Tensor]:
    """A matrix with the given singular values, and its polar factor."""
    r = min(n, k)
    U = random_unitary(n, k=r, dtype=wide(dtype), rng=rng)
    V = random_unitary(k, k=r, dtype=wide(dtype), rng=rng)
    return ((U * s) @ V.mH).to(dtype), U @ V.mH


def reference_gradient(X: Tensor, G: Tensor) -> Tensor:
    """By SciPy: Q K + (I - Q Q^H) G H^-1, where K H + H K = Q^H G - G^H Q."""
    X, G = X.to(wide(X.dtype)), G.to(wide(G.dtype))
    if X.shape[0] < X.shape[1]:
        return reference_gradient(X.mH.resolve_conj(), G.mH).mH
    Q, H = (torch.from_numpy(part) for part in scipy.linalg.polar(X.numpy()))
    C = (Q.mH @ G - G.mH @ Q).resolve_conj().numpy()
    K = torch.from_numpy(scipy.linalg.solve_sylvester(H.numpy(), H.numpy(), C))
    normal = G - Q @ (Q.mH @ G)
    return Q @ K + torch.linalg.solve(H, normal, left=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spread", [1.0, 1e3])
def test_value_and_gradient_are_those_of_scipy(spread, shape, dtype, rng):
    """Q from the construction, orthonormal; the error grows with 1 / smallest s."""
    n, k = shape
    r = min(n, k)
    s = torch.logspace(0, -math.log10(spread), r, dtype=torch.float64)
    X, expected = conditioned(n, k, s, dtype=dtype, rng=rng)
    X.requires_grad_()
    G = torch.randn(n, k, dtype=dtype, generator=rng)

    Q = polar(X)
    (g,) = torch.autograd.grad(Q, X, G)

    Q = Q.detach().to(wide(dtype))
    # twice the worst over 100 seeds: value 4.0, orthogonality 5.0, gradient 6.1 (all
    # for 1 x 1 complex, where LAPACK's phase is not the best)
    unit = n * eps(dtype)
    assert matrix_norm(Q - expected) <= 8 * unit * spread
    gram = Q.mH @ Q if n >= k else Q @ Q.mH
    assert matrix_norm(gram - torch.eye(r)) <= 10 * unit
    error = matrix_norm(g - reference_gradient(X.detach(), G))
    assert error <= 12.2 * unit * spread**2 * matrix_norm(G)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (6, 3), (3, 6), (2, 3, 3)], ids=str)
def test_gradient_at_the_identity(shape, dtype, rng):
    """D polar(I)[E] = (E - E^H) / 2. All singular values are equal: svd has NaN."""
    X = torch.eye(*shape[-2:], dtype=dtype).expand(shape).clone().requires_grad_()
    G = torch.randn(shape, dtype=dtype, generator=rng)
    (g,) = torch.autograd.grad(polar(X), X, G)
    r = min(shape[-2:])
    expected = G.clone()
    square = G[..., :r, :r]
    expected[..., :r, :r] = (square - square.mH) / 2
    assert_close(g, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fixed_points_and_scale(dtype, rng):
    """polar(Q) = Q; polar(c X) = polar(X) for c > 0; polar(U X) = U polar(X)."""
    Q = random_unitary(6, k=4, dtype=dtype, rng=rng, batch=(2,))
    # 2.6: twice the worst over 100 seeds, 1.3 (float64, U X)
    tol = 2.6 * 6 * eps(dtype)
    assert (matrix_norm(polar(Q) - Q) <= tol).all()
    for scale in (1e-20, 1e20):
        assert (matrix_norm(polar(scale * Q) - Q) <= tol).all()
    U = random_unitary(6, dtype=dtype, rng=rng)
    assert (matrix_norm(polar(U @ Q) - U @ Q) <= tol).all()


def test_nearest(rng):
    """No other orthogonal matrix is closer than the polar factor."""
    X = torch.randn(5, 5, dtype=torch.float64, generator=rng)
    others = random_unitary(5, dtype=torch.float64, rng=rng, batch=(500,))
    assert (matrix_norm(X - polar(X)) <= matrix_norm(X - others)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_rank_deficient_matrices_have_an_orthogonal_value(rank, dtype, rng):
    s = torch.cat([torch.ones(rank), torch.zeros(4 - rank)]).double()
    X, _ = conditioned(6, 4, s, dtype=dtype, rng=rng)
    Q = polar(X).to(wide(dtype))
    # 4.4: twice the worst over 100 seeds, 2.2 (float32, rank 1)
    assert matrix_norm(Q.mH @ Q - torch.eye(4)) <= 4.4 * 6 * eps(dtype)


def test_gradient_at_zero_is_not_finite():
    """There is none: a finite number would be invented."""
    X = torch.zeros(3, 3, requires_grad=True)
    (g,) = torch.autograd.grad(polar(X).sum(), X)
    assert not g.isfinite().any()


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (0, 3, 2), (2, 0, 0)])
def test_empty(shape):
    X = torch.zeros(shape, requires_grad=True)
    Q = polar(X)
    assert Q.shape == shape
    Q.sum().backward()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)], ids=str)
def test_a_matrix_that_is_not_finite_becomes_nan_alone(shape, bad, dtype, rng):
    """LAPACK raises for NaN: the batch must survive, and its gradient too."""
    X = torch.randn(3, *shape, dtype=dtype, generator=rng)
    X[1, 2, 1] = bad
    X.requires_grad_()
    Q = polar(X)
    parts = torch.view_as_real(Q) if X.is_complex() else Q
    assert parts[1].isnan().all()
    assert_close(Q[::2], polar(X[::2]))
    (g,) = torch.autograd.grad(Q[::2].abs().sum(), X)
    assert g[::2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_from_float32(dtype, rng):
    X = torch.randn(6, 4, generator=rng).to(dtype)
    assert_close(polar(X), polar(X.float()).to(dtype), rtol=0, atol=0)


@pytest.mark.once
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("equal", [False, True])
def test_gradients_of_any_order(equal, shape, rng):
    """Also at equal singular values, where the second derivative of svd is NaN."""
    for dtype in (torch.float64, torch.complex128):
        X = torch.randn(shape, dtype=dtype, generator=rng)
        X = (torch.eye(*shape, dtype=dtype) if equal else X).requires_grad_()
        how = differences(dtype)
        first = {"check_forward_ad": True, "check_batched_grad": True}
        assert gradcheck(polar, X, **first, **how)
        assert gradgradcheck(polar, X, check_fwd_over_rev=True, **how)


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)], ids=str)
def test_transforms_compose(shape, rng):
    """vmap, also nested, over grad; the Hessian is symmetric; jvp is linear."""

    def f(X: Tensor) -> Tensor:
        return polar(X).cos().sum()

    X = torch.randn(2, 3, *shape, dtype=torch.float64, generator=rng)
    assert_close(vmap(polar)(X), polar(X))
    assert_close(vmap(vmap(grad(f)))(X), grad(f)(X))
    size = shape[0] * shape[1]
    H = hessian(f)(X[0, 0]).reshape(size, size)
    assert_close(H, H.mT)
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    both = vmap(lambda x, e: jvp(polar, (x,), (e,))[1])(X, E)
    assert_close(both, jvp(polar, (X,), (E,))[1])


@pytest.mark.parametrize("shape", [(3, 3), (4, 2)], ids=str)
def test_compiles_to_one_graph(no_shape_hook, shape, rng):
    """Forward and backward; inductor would add only its own compilation time."""
    compiled = torch.compile(polar, fullgraph=True, backend="aot_eager")
    X = torch.randn(2, *shape, dtype=torch.float64, generator=rng, requires_grad=True)
    assert_close(compiled(X), polar(X))
    (g,) = torch.autograd.grad(compiled(X).cos().sum(), X)
    (expected,) = torch.autograd.grad(polar(X).cos().sum(), X)
    assert_close(g, expected)


def test_inductor_agrees(no_shape_hook, rng):
    X = torch.randn(2, 4, 3, generator=rng)
    X[1, 0, 0] = math.nan
    compiled = torch.compile(polar, fullgraph=True)
    assert_close(compiled(X), polar(X), equal_nan=True)


def test_exports(no_shape_hook, rng):
    """A program of `torch.export` gives the value of eager on other numbers."""

    class Map(torch.nn.Module):
        def forward(self, X: Tensor) -> Tensor:
            return polar(X)

    X = torch.randn(2, 4, 3, generator=rng)
    program = torch.export.export(Map(), (X,))
    assert_close(program.module()(9 * X), Map()(9 * X))


def test_shapes_without_values():
    for shape in ((2, 3, 3), (2, 5, 3), (2, 3, 5)):
        assert polar(torch.zeros(shape, device="meta")).shape == shape
        with FakeTensorMode():
            assert polar(torch.zeros(shape)).shape == shape


def test_autocast_does_not_touch_it(rng):
    X = torch.randn(5, 3, generator=rng)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Q = polar(X)
    assert_close(Q, polar(X), rtol=0, atol=0)


@pytest.mark.errors
def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"`X` must have shape .* got \(3,\)"):
        polar(torch.zeros(3))
    with pytest.raises(TypeError, match="`X` must have a floating-point"):
        polar(torch.zeros(3, 3, dtype=torch.int64))
