import functools
import math
from fractions import Fraction

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, vmap
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.linalg._cayley import cayley
from isometry.linalg._pade import _coefficients, _step, pade, pade_radius
from isometry.linalg._skew import skew
from tests.helpers import (
    DTYPES,
    double_dtype,
    eps,
    gradcheck_options,
    random_skew,
    skew_with_angles,
)

# degrees for every shape of the evaluation: no power, one, several, and several blocks
DEGREES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 25]


def is_double(dtype: torch.dtype) -> bool:
    return dtype == double_dtype(dtype)


def real_if(A: Tensor, Q: Tensor) -> Tensor:
    return Q if A.is_complex() else Q.real


def eigen(A: Tensor) -> tuple[Tensor, Tensor]:
    theta, V = torch.linalg.eigh(-1j * A.to(torch.complex128))
    return theta, V


@functools.cache
def quotient(degree: int) -> tuple[list, list]:
    """p and q of the approximant r_m = p / q in 60 digits, by mpmath, which is slow."""
    with mpmath.workdps(60):
        return mpmath.pade(mpmath.taylor(mpmath.exp, 0, 2 * degree), degree, degree)


def approximant(x: Tensor, degree: int) -> Tensor:
    """r_m(ix) with mpmath's p and q, without the library's coefficients."""
    p, q = quotient(degree)
    with mpmath.workdps(60):
        values = [
            complex(
                mpmath.polyval(p[::-1], mpmath.mpc(0, t))
                / mpmath.polyval(q[::-1], mpmath.mpc(0, t))
            )
            for t in x.flatten().tolist()
        ]
    return torch.tensor(values, dtype=torch.complex128).reshape(x.shape)


def exponential(A: Tensor) -> Tensor:
    theta, V = eigen(A)
    return real_if(A, (V * torch.exp(1j * theta)[..., None, :]) @ V.mH)


def exponential_gradient(A: Tensor, G: Tensor) -> Tensor:
    """Skew part of the adjoint of exp, by the theorem of Daleckii and Krein."""
    theta, V = eigen(A)
    mean = (theta[..., :, None] + theta[..., None, :]) / 2
    half_gap = (theta[..., :, None] - theta[..., None, :]) / 2
    Phi = torch.exp(1j * mean) * torch.sinc(half_gap / math.pi)
    g = V @ (Phi.conj() * (V.mH @ G.to(V.dtype) @ V)) @ V.mH
    return real_if(A, (g - g.mH) / 2)


@pytest.mark.once
@pytest.mark.parametrize("degree", DEGREES)
def test_coefficients_are_those_of_mpmath(degree):
    """The coefficients b_j of p = sum b_j z^j, with b_0 = 1, agree with mpmath's."""
    p, _ = quotient(degree)
    with mpmath.workdps(60):
        expected = [float(c / p[0]) for c in p]
    assert_close(
        torch.tensor(_coefficients(degree), dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        rtol=4 * eps(torch.float64),
        atol=0,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("norm", [0.0, 1e-8, 1.0, 6.0])
def test_value_is_the_approximant_of_the_eigenvalues(norm, degree, dtype, rng):
    """Q = V r_m(i theta) V^H, and Q^H Q = I, for every degree."""
    n = 6
    A = random_skew(n, norm=norm, dtype=dtype, rng=rng)
    Q = pade(A, degree=degree)
    theta, V = eigen(A)
    expected = real_if(A, (V * approximant(theta, degree)) @ V.mH)
    # Twice the worst over 15 seeds, 1.5 (complex64, degree 25, norm 6); 7.3 in double,
    # where the reference itself is no better.
    constant = 15 if is_double(dtype) else 3.1
    assert matrix_norm(Q - expected) <= constant * n * eps(dtype)
    Q = Q.to(double_dtype(dtype))
    # twice the worst, 2.5 (complex128, degree 2, norm 6)
    assert matrix_norm(Q.mH @ Q - torch.eye(n)) <= 5.1 * n * eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [0.0, 1e-8, 0.1, 1.0, math.pi, 6.0, 30.0, 100.0])
@pytest.mark.parametrize("n", [1, 2, 7, 32])
def test_auto_is_the_exponential(n, norm, dtype, rng):
    """With squarings="auto", pade and its gradient agree with exp (degrees 7, 13)."""
    A = random_skew(n, norm=norm, dtype=dtype, rng=rng, batch=(2,)).requires_grad_()
    G = torch.randn(2, n, n, dtype=dtype, generator=rng)
    for degree in (7, 13):
        Q = pade(A, degree=degree, squarings="auto")
        (g,) = torch.autograd.grad(Q, A, G)
        Q, B = Q.detach(), A.detach()
        # Twice the worst over 60 seeds: value 0.74 in single precision and 2.95 in
        # double, where the reference has a part in the error; gradient 2.4;
        # orthogonality 1.55.
        unit = n * eps(dtype) * max(1.0, norm)
        constant = 5.9 if is_double(dtype) else 1.5
        assert (matrix_norm(Q - exponential(B)) <= constant * unit).all()
        error = matrix_norm(g - exponential_gradient(B, G))
        assert (error <= 4.8 * unit * matrix_norm(G)).all()
        assert_close(g, -g.mH, rtol=0, atol=8 * eps(dtype) * float(g.abs().max()))
        Q = Q.to(double_dtype(dtype))
        assert (matrix_norm(Q.mH @ Q - torch.eye(n)) <= 3.1 * unit).all()


@pytest.mark.parametrize("degree", [3, 5, 7, 9, 13])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_spectra_at_the_edge_of_the_radius(degree, dtype, rng):
    """All angles are at theta_m, where value and gradient are the least accurate."""
    theta = pade_radius(degree, dtype)
    A = skew_with_angles(torch.full((4,), theta), dtype=dtype, rng=rng)
    n = A.shape[-1]
    G = torch.randn(n, n, dtype=dtype, generator=rng)
    A.requires_grad_()
    Q = pade(A, degree=degree)
    (g,) = torch.autograd.grad(Q, A, G)
    B = A.detach()
    # Twice the worst over 60 seeds: value 2.0 and gradient 1.0; in double, where the
    # reference has a part in the error, 8.6 and 3.4 (all at degree 13).
    value, gradient = (17, 6.8) if is_double(dtype) else (4.1, 2.1)
    assert matrix_norm(Q.detach() - exponential(B)) <= value * n * eps(dtype)
    error = matrix_norm(g - exponential_gradient(B, G))
    assert error <= gradient * n * eps(dtype) * matrix_norm(G)


@pytest.mark.once
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("degree", [1, 2, 3, 5, 7, 9, 13])
def test_radius_bounds_the_error_of_value_and_derivative(degree, dtype):
    """|r_m(ix) - e^ix| <= u |x| / (2m + 1) up to the radius, with derivative <= u."""
    theta = pade_radius(degree, dtype)
    u = eps(dtype) / 2
    p, q = quotient(degree)
    with mpmath.workdps(60):

        def error(x):
            z = mpmath.mpc(0, x)
            r = mpmath.polyval(p[::-1], z) / mpmath.polyval(q[::-1], z)
            return r - mpmath.exp(z)

        for fraction in (0.25, 0.5, 0.9, 1.0):
            x = mpmath.mpf(theta) * fraction
            # 1.001: the radius is a rounded number
            assert abs(error(x)) <= u * x / (2 * degree + 1) * 1.001
            assert abs(mpmath.diff(error, x)) <= u * 1.001
        # the radius is sharp: at 1.2 times the radius the derivative's error exceeds u
        if theta < 6:
            assert abs(mpmath.diff(error, 1.2 * theta)) > u


def test_degree_one_is_cayley(rng):
    A = random_skew(8, norm=3.0, dtype=torch.float64, rng=rng, batch=(2,))
    assert_close(pade(A, degree=1), cayley(A))


def test_squarings_are_powers(rng):
    """pade(A, squarings=3) = pade(A / 8)^8."""
    A = random_skew(5, norm=3.0, dtype=torch.float64, rng=rng)
    Q = torch.linalg.matrix_power(pade(A / 8, degree=3), 8)
    assert_close(pade(A, degree=3, squarings=3), Q)


def test_each_matrix_has_its_own_squarings(rng):
    """A small matrix keeps its digits in a batch with a large one."""
    small, large = (
        random_skew(6, norm=norm, dtype=torch.float32, rng=rng) for norm in (0.1, 1e4)
    )
    Q = pade(torch.stack([small, large]), degree=7, squarings="auto")
    assert_close(Q[0], pade(small, degree=7, squarings="auto"))
    assert_close(Q[0].double(), exponential(small), rtol=0, atol=4e-7)
    assert_close(Q[1], pade(large, degree=7, squarings="auto"), rtol=0, atol=1e-2)


def test_evaluation_uses_few_products():
    """Degree 13 takes seven products besides the inverse.

    They are A^2, A^4, A^6, one for each polynomial, the odd part, and the quotient.
    """
    assert [_step(m // 2, (m - 1) // 2) for m in (1, 2, 3, 5, 13)] == [0, 1, 1, 2, 3]
    A = torch.zeros(3, 3)
    with torch.profiler.profile() as profile:
        pade(A, degree=13)
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["aten::mm"] == 7


def test_backward_factorizes_nothing(rng):
    A = random_skew(4, norm=1.0, dtype=torch.float64, rng=rng).requires_grad_()
    Q = pade(A, degree=3)
    with torch.profiler.profile() as profile:
        torch.autograd.grad(Q.sum(), A)
    names = {event.key for event in profile.key_averages()}
    assert "aten::mm" in names
    factorizations = ("aten::linalg_lu", "aten::linalg_inv", "aten::linalg_solve")
    assert not [name for name in names if name.startswith(factorizations)]


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (3, 3), (0, 3, 3), (2, 0, 0)])
@pytest.mark.parametrize("squarings", [0, 2, "auto"])
@pytest.mark.parametrize("degree", [1, 2, 13])
def test_zero_is_mapped_to_the_identity(shape, squarings, degree):
    Q = pade(torch.zeros(shape), degree=degree, squarings=squarings)
    assert_close(Q, torch.eye(shape[-1]).expand(shape), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_huge_norms(dtype, rng):
    """Up to norm 1/eps the defect grows with the norm; beyond, the value is NaN."""
    A = random_skew(4, norm=1.0, dtype=dtype, rng=rng)
    Q = pade(A * 1e4, degree=13, squarings="auto").to(double_dtype(dtype))
    # 0.8: twice the worst over 60 seeds, 0.39
    assert matrix_norm(Q.mH @ Q - torch.eye(4)) <= 0.8 * 4 * 1e4 * eps(dtype)
    for norm in (4 / eps(dtype), 1e30):
        assert pade(A * norm, degree=13, squarings="auto").isnan().all()


@pytest.mark.once
@pytest.mark.parametrize("degree", [1, 2, 6])
@pytest.mark.parametrize("squarings", [0, 2, "auto"])
def test_gradients_of_any_order(degree, squarings, rng):
    """Reverse, forward, batched and second derivatives agree with differences."""
    # At degree 1 "auto" takes 27 squarings in float64, each of which doubles the
    # rounding error, so one squaring is tested instead.
    if degree == 1 and squarings == "auto":
        squarings = 1

    def f(X: Tensor) -> Tensor:
        return pade(skew(X), degree=degree, squarings=squarings)

    for dtype in (torch.float64, torch.complex128):
        X = torch.randn(2, 3, 3, dtype=dtype, generator=rng, requires_grad=True)
        assert gradcheck(
            f,
            X,
            check_forward_ad=True,
            check_batched_grad=True,
            **gradcheck_options(dtype),
        )
    X = torch.randn(2, 2, dtype=torch.float64, generator=rng, requires_grad=True)
    assert gradgradcheck(f, X, check_fwd_over_rev=True)


def test_transforms_compose(rng):
    """vmap of grad, also nested, agrees with batches of different squarings."""

    def f(X: Tensor) -> Tensor:
        return pade(skew(X), degree=5, squarings="auto").cos().sum()

    X = torch.randn(3, 2, 4, 4, dtype=torch.float64, generator=rng)
    X = X * torch.tensor([0.01, 1.0, 50.0])[:, None, None, None]
    assert_close(vmap(grad(f))(X), grad(f)(X))
    assert_close(vmap(vmap(grad(f)))(X), grad(f)(X))
    H = hessian(f)(X[1, 0]).reshape(16, 16)
    assert_close(H, H.mT)


@pytest.mark.parametrize(
    ("squarings", "backend"), [(2, "aot_eager"), ("auto", "inductor")]
)
def test_compiles_to_one_graph(no_shape_hook, squarings, backend, rng):
    """One graph serves norms with different numbers of squarings, with gradients."""

    def f(A: Tensor) -> Tensor:
        return pade(A, degree=5, squarings=squarings)

    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for norms in ([0.1, 0.2], [3.0, 40.0]):
        A = random_skew(4, norm=1.0, dtype=torch.float64, rng=rng, batch=(2,))
        A = (A * torch.tensor(norms)[:, None, None]).requires_grad_()
        assert_close(compiled(A), f(A))
        (g,) = torch.autograd.grad(compiled(A).cos().sum(), A)
        (expected,) = torch.autograd.grad(f(A).cos().sum(), A)
        assert_close(g, expected)
    A = A.detach()
    A[1, 0, 1] = math.inf
    assert_close(compiled(A), f(A), equal_nan=True)


def test_radius_is_the_closed_form():
    """theta^2m = u (2m)! (2m+1)! / ((2m+1) (m!)^2), in rational numbers for m = 3."""
    c = Fraction(math.factorial(3) ** 2, math.factorial(6) * math.factorial(7))
    u = Fraction(2) ** -53
    expected = float(u / (7 * c)) ** (1 / 6)
    assert pade_radius(3, torch.float64) == pytest.approx(expected, rel=1e-13)
