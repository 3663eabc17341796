"""Pade retractions of tall matrices against dense n x n ones in double precision."""

import functools
import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.groups import Pade
from isometry.linalg._cayley import cayley
from isometry.linalg._pade import pade
from isometry.linalg._pade_factors import pade_factors
from isometry.linalg._tall import expm_tall
from tests.helpers import DTYPES, double_dtype, eps, gradcheck_options, random_skew
from tests.linalg.test_tall import generator, tangent

# sizes for both algorithms (n > 2k and n <= 2k), and for their border
SHAPES = [(40, 3), (40, 12), (9, 4), (8, 4), (7, 4), (6, 6), (5, 1), (2, 1), (1, 1)]
NORMS = [0.0, 1e-3, 1.0, math.pi, 10.0, 100.0]
# degrees whose numerator has one factor, one pair of factors, both, and several
DEGREES = [1, 2, 3, 8]


@functools.cache
def zeros(degree: int) -> list[complex]:
    """Zeros of the numerator of r_m by mpmath, without the factors of the library."""
    with mpmath.workdps(60):
        p, _ = mpmath.pade(mpmath.taylor(mpmath.exp, 0, 2 * degree), degree, degree)
        return [complex(z) for z in mpmath.polyroots(p[::-1], 500, extraprec=500)]


def reference(X: Tensor, B: Tensor, G: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """r_m(A) B and the gradient of <G, r_m(A) B>, with an n x n matrix A.

    Each zero of the numerator gives one factor of r_m.
    """
    X = X.to(double_dtype(X.dtype)).requires_grad_()
    base, G = B.to(X.dtype), G.to(X.dtype)
    A = generator(X, base).to(torch.complex128)
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    Y = base.to(A.dtype)
    for z in zeros(degree):
        Y = torch.linalg.solve(-A - z * eye, (A - z * eye) @ Y)
    Y = Y if X.is_complex() else Y.real
    return Y.detach(), torch.autograd.grad(Y, X, G)[0]


def with_singular_values(X: Tensor, B: Tensor, *, ratio: float, norm: float) -> Tensor:
    """`X` with the norm `norm`, and with other singular values in its part normal to B.

    The singular values of this part are proportional to 1, ratio, ratio^2, ...
    """
    along = B.mH @ X
    U, s, Vh = torch.linalg.svd(X - B @ along, full_matrices=False)
    s = ratio ** torch.arange(s.shape[-1], dtype=s.dtype)
    X = B @ along / matrix_norm(along, 2, keepdim=True) + (U * s) @ Vh
    return X * (norm / matrix_norm(X, 2, keepdim=True))


def exact_zero(p: list, u: float, w: float) -> Any:
    """The zero of p next to a zero of 1 + u z + w z^2, by Newton's method."""
    z = mpmath.mpc(-1 / u if w == 0 else (-u + mpmath.sqrt(u * u - 4 * w)) / (2 * w))
    step = z
    # convergence is quadratic: from about 1e-16 to 1e-100 in three steps
    for _ in range(6):
        value, slope = mpmath.polyval(p[::-1], z, derivative=True)
        step = value / slope
        z -= step
    assert abs(step) <= 1e-80 * abs(z)
    return z


@pytest.mark.once
@pytest.mark.parametrize("degree", [*range(1, 14), 25, 40])
def test_factors_are_those_of_mpmath(degree):
    """u = -2 Re(1/z), w = 1/|z|^2 for pairs and u = -1/z for a real z, to the bit."""
    factors = pade_factors(degree)
    with mpmath.workdps(100):
        p = [
            mpmath.binomial(degree, j) * mpmath.factorial(2 * degree - j)
            for j in range(degree + 1)
        ]
        zeros = [exact_zero(p, u, w) for u, w in factors]
        expected = [
            (float(-2 * z.real / abs(z) ** 2), float(1 / abs(z) ** 2))
            if abs(z.imag) > 1e-50
            else (float(-1 / z.real), 0.0)
            for z in zeros
        ]
    assert list(factors) == expected
    # the zeros are different, one for each pair, so none is missing
    assert len({mpmath.nstr(z, 20) for z in zeros}) == (degree + 1) // 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_and_gradient_are_those_of_the_dense_map(shape, degree, dtype, rng):
    """Y = r_m(A) B and dY, with A of size n x n in double precision; Y^H Y = I."""
    for norm in NORMS:
        compare_with_dense_map(shape, norm, degree, dtype, rng)


def compare_with_dense_map(shape, norm, degree, dtype, rng) -> None:
    n, k = shape
    B, X, G = tangent(n, k, norm=norm, dtype=dtype, rng=rng, batch=(3,))
    Y_ref, g_ref = reference(X, B, G, degree)
    X.requires_grad_()
    Y = Pade(degree).tall(X, B)
    (g,) = torch.autograd.grad(Y, X, G)

    assert Y.dtype == dtype
    unit = k * eps(dtype)
    Y = Y.detach().to(Y_ref.dtype)
    # 14: twice the worst over 30 seeds, 6.7 (float64, 5 x 1, degree 8, norm 1), where
    # the reference has a part in the error; 3.2 in single precision (9 x 4, degree 2,
    # norm 100)
    assert (matrix_norm(Y - Y_ref) <= 14 * unit * max(1, norm)).all(), norm
    # 18: twice the worst over 30 seeds, 8.9 (float64, 9 x 4, degree 2, norm 100)
    assert (matrix_norm(g - g_ref) <= 18 * unit * max(1, norm)).all(), norm
    # 4: twice the worst over 30 seeds, 2.0 (complex128, 5 x 1, at any norm and degree)
    assert (matrix_norm(Y.mH @ Y - torch.eye(k)) <= 4 * unit).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", [*DEGREES, 13])
@pytest.mark.parametrize("norm", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("ratio", [0.0, 1e-4, 0.1])
def test_nearly_singular_velocities_stay_orthonormal(ratio, norm, degree, dtype, rng):
    """Y^H Y = I if the normal part of X has singular values 1, ratio, ratio^2, ...

    The 2k x 2k block, of which r_m is computed, is far from normal then. When r_m was a
    quotient of two polynomials that were not factored, the defect was 1e10 k eps at
    degree 5 and norm 100 in float32.
    """
    n, k = 40, 4
    B, X, G = tangent(n, k, norm=1.0, dtype=double_dtype(dtype), rng=rng, batch=(3,))
    X = with_singular_values(X, B, ratio=ratio, norm=norm)
    B, X, G = (M.to(dtype) for M in (B, X, G))
    Y_ref, g_ref = reference(X, B, G, degree)
    X.requires_grad_()
    Y = Pade(degree).tall(X, B)
    (g,) = torch.autograd.grad(Y, X, G)

    unit = k * eps(dtype)
    Y = Y.detach().to(Y_ref.dtype)
    # 6.4: twice the worst over 20 seeds, 3.2 (complex128, degree 13, norm 1), where the
    # reference has a part in the error; 0.17 at norm 100
    assert (matrix_norm(Y - Y_ref) <= 6.4 * unit * norm**2).all()
    # 2.8: twice the worst over 20 seeds, 1.4 (complex128, degree 13, norm 1)
    assert (matrix_norm(g - g_ref) <= 2.8 * unit * norm**2).all()
    # The last step, a Newton-Schulz step, squares a defect of about norm^2 eps. 3.4:
    # twice the worst over 20 seeds, 1.7 (float32, degree 2, norm 100, ratio 1e-4)
    tol = 3.4 * (unit + (norm**2 * eps(dtype)) ** 2)
    assert (matrix_norm(Y.mH @ Y - torch.eye(k)) <= tol).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_base_is_the_first_columns_of_the_identity(shape, degree, dtype, rng):
    """tall(X, None) = tall(X, I[:, :k]), values and gradients."""
    n, k = shape
    for norm in (0.0, 1.0, 10.0):
        _, X, G = tangent(n, k, norm=norm, dtype=dtype, rng=rng)
        X.requires_grad_()
        Y = Pade(degree).tall(X, None)
        Z = Pade(degree).tall(X, torch.eye(n, k, dtype=dtype))
        (g,) = torch.autograd.grad(Y, X, G)
        (h,) = torch.autograd.grad(Z, X, G)
        # 2.3: twice the worst over 30 seeds, 1.13 (complex128, 2 x 1, degree 3, norm 1)
        tol = 2.3 * k * eps(dtype) * max(1, norm)
        assert matrix_norm(Y - Z) <= tol, norm
        assert matrix_norm(g - h) <= tol, norm


@pytest.mark.parametrize("degree", DEGREES)
def test_square_matrices_are_the_group(degree, rng):
    """Y = r_m(X B^H) B = B r_m(B^H X) if k = n and X is tangent."""
    B, X, _ = tangent(6, 6, norm=2.0, dtype=torch.complex128, rng=rng)
    Y = Pade(degree).tall(X, B)
    assert_close(Y, B @ pade(B.mH @ X, degree=degree))
    if degree == 1:
        assert_close(Y, cayley(X @ B.mH) @ B)


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize(("n", "k"), [(12, 3), (5, 3)])
def test_it_is_the_geodesic_to_order_2m(n, k, degree, rng):
    """|Pade(m).tall(tX) - expm_tall(tX)| = O(t^(2m + 1)): slope >= 2m + 0.9."""
    B, X, _ = tangent(n, k, norm=1.0, dtype=torch.float64, rng=rng)
    steps = torch.tensor([0.4, 0.3, 0.2], dtype=torch.float64)
    tX = steps[:, None, None] * X
    base = B.expand_as(tX)
    error = matrix_norm(Pade(degree).tall(tX, base) - expm_tall(tX, base))
    slope = (error[0] / error[-1]).log() / (steps[0] / steps[-1]).log()
    assert slope >= 2 * degree + 0.9


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_gradient_at_zero_is_the_projection(n, k, degree, dtype, rng):
    """At X = 0, dY = X - B sym(B^H X), and Y = B."""
    B, _, G = tangent(n, k, norm=1.0, dtype=dtype, rng=rng)
    X = torch.zeros_like(B).requires_grad_()
    Y = Pade(degree).tall(X, B)
    (g,) = torch.autograd.grad(Y, X, G)
    along = B.mH @ G
    # 8.2: twice the worst over 30 seeds, 4.1 (complex128, 2 x 1, degree 2)
    tol = 8.2 * k * eps(dtype)
    assert matrix_norm(g - (G - B @ (along + along.mH) / 2)) <= tol
    assert matrix_norm(Y - B) <= tol


def test_the_normal_part_drops_out(rng):
    """X + B H gives the point of X for Hermitian H, and H gets no gradient."""
    B, X, _ = tangent(9, 3, norm=2.0, dtype=torch.complex128, rng=rng)
    H = 1j * random_skew(3, norm=1.0, dtype=torch.complex128, rng=rng)
    expected = Pade(2).tall(X, B)
    assert_close(Pade(2).tall(X + B @ H, B), expected)
    h = torch.zeros((), dtype=torch.float64, requires_grad=True)
    Y = Pade(2).tall(X + h * (B @ H), B)
    (g,) = torch.autograd.grad(Y.real.sum(), h)
    # both sides differ by rounding only
    assert abs(g) <= 100 * eps(torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e-10])
def test_tiny_velocities_keep_their_digits(scale, degree, dtype, rng):
    """Y = B + X to first order, far below eps."""
    X = torch.zeros(9, 2, dtype=dtype)
    X[2:] = scale * torch.randn(7, 2, dtype=dtype, generator=rng)
    Y = Pade(degree).tall(X, None)
    assert_close(Y[2:], X[2:], rtol=4 * eps(dtype), atol=0)
    assert_close(Y[:2], torch.eye(2, dtype=dtype), rtol=0, atol=eps(dtype))


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize(("n", "k"), [(20, 4), (6, 4), (2, 1)])
def test_huge_velocities_stay_orthonormal_or_are_nan(n, k, degree, rng):
    """Y^H Y = I at norm 1e4. At norm 1e30, where A^2 or X^H X overflows, Y is NaN."""
    B, X, _ = tangent(n, k, norm=1.0, dtype=torch.float32, rng=rng)
    Y = Pade(degree).tall(1e4 * X, B)
    # 2: twice the worst over 200 seeds, 1.0 (2 x 1). For 6 x 4 an angle may be near 0
    # while another is 1e4. It loses all digits, and the last step leaves at most 0.22.
    lossy = (n, k) == (6, 4) and degree > 1
    tol = 0.22 if lossy else 2 * k * eps(X.dtype)
    assert matrix_norm(Y.mH @ Y - torch.eye(k)) <= tol
    if degree > 1 or n > 2 * k:
        assert Pade(degree).tall(1e30 * X, B).isnan().all()


@pytest.mark.once
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(5, 2), (3, 2)], ids=str)
@pytest.mark.parametrize(("norm", "degree"), [(0.0, 1), (2.5, 1), (2.5, 2), (2.5, 3)])
def test_derivatives_agree_with_differences(norm, degree, shape, dtype, rng):
    """First and second derivatives, in both modes, batched, also in the base point."""
    n, k = shape
    B, X, _ = tangent(n, k, norm=norm, dtype=dtype, rng=rng, batch=(2,))
    X.requires_grad_()

    def f(X: Tensor, B: Tensor | None = None) -> Tensor:
        return Pade(degree).tall(X, B)

    how = gradcheck_options(dtype)
    for g in (f, lambda X: f(X, B)):
        assert gradcheck(g, X, check_forward_ad=True, check_batched_grad=True, **how)
        assert gradgradcheck(g, X, check_fwd_over_rev=True, fast_mode=True)
    # B moves on the manifold: elsewhere the gradient, which takes the correction by the
    # last step as a constant, is not the derivative
    E = 0.3 * torch.randn(n, n, dtype=dtype, generator=rng)
    E.requires_grad_()
    assert gradcheck(
        lambda E: f(X.detach(), torch.linalg.matrix_exp(E - E.mH) @ B), E, **how
    )


@pytest.mark.parametrize(("n", "degrees"), [(9, (1, 3, 4)), (4, (1,))])
def test_compiled_code_is_one_graph(n, degrees, rng, no_shape_hook):
    """One compiled graph gives the value, gradient and NaN of eager mode.

    The degree is a constant of the graph, in a loop that both algorithms share.
    """
    B, X, G = tangent(n, 3, norm=2.0, dtype=torch.float64, rng=rng, batch=(2,))
    X[1, 0, 0] = math.nan
    X.requires_grad_()
    for base, degree in [(None, 1), *((B, degree) for degree in degrees)]:
        tall = Pade(degree).tall
        Y = torch.compile(tall, fullgraph=True, backend="aot_eager")(X, base)
        expected = tall(X, base)
        assert_close(Y, expected, equal_nan=True)
        (g,) = torch.autograd.grad(Y, X, G)
        assert_close(g[0], torch.autograd.grad(expected, X, G)[0][0])


def test_nothing_of_size_n_by_n_is_formed(rng):
    """A step with n = 100000 fits into memory: one n x n matrix would take 40 GB."""
    B, X, G = tangent(100_000, 3, norm=2.0, dtype=torch.float32, rng=rng)
    X.requires_grad_()
    Y = Pade(2).tall(X, B)
    (g,) = torch.autograd.grad(Y, X, G)
    assert_close(Y.mT @ Y, torch.eye(3))
    assert g.isfinite().all()
