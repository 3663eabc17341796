import pytest
import torch
from torch import Tensor
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.linalg._householder import householder
from tests.helpers import DTYPES, double_dtype, eps

SHAPES = [(1, 1), (2, 1), (5, 3), (5, 5), (3, 7), (32, 32), (40, 8)]


def reference(V: Tensor) -> Tensor:
    """Apply one reflection after the other, in float64 with autograd."""
    V = V.to(double_dtype(V.dtype))
    n, k = V.shape[-2:]
    Q = torch.eye(n, dtype=V.dtype).expand(*V.shape[:-2], n, n)
    for j in range(k):
        v = V[..., :, j : j + 1]
        Q = Q - 2 * (Q @ v) @ v.mH / (v.mH @ v)
    return Q


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("columns", [None, 1])
def test_value_and_gradient_are_those_of_the_product(columns, shape, dtype, rng):
    """Q = H_1 ... H_k has orthonormal columns; H_j reflects along column j of V."""
    n, k = shape
    V = torch.randn(2, n, k, dtype=dtype, generator=rng)
    G = torch.randn(2, n, columns or n, dtype=dtype, generator=rng)
    W = V.to(double_dtype(dtype)).requires_grad_()
    expected = reference(W)[..., :columns]
    (g_expected,) = torch.autograd.grad(expected, W, G.to(double_dtype(dtype)))
    V.requires_grad_()

    Q = householder(V, columns=columns)
    (g,) = torch.autograd.grad(Q, V, G)

    # twice the worst over 50 seeds: value 3.0, orthogonality 4.0, gradient 5.7 (all
    # for 1 x 1 complex)
    unit = max(n, k) * eps(dtype)
    assert (matrix_norm(Q - expected) <= 6 * unit).all()
    scale = matrix_norm(G) / torch.linalg.vector_norm(V, dim=-2).amin(-1)
    assert (matrix_norm(g - g_expected) <= 11.4 * unit * scale).all()
    Q = Q.detach().to(double_dtype(dtype))
    assert (matrix_norm(Q.mH @ Q - torch.eye(Q.shape[-1])) <= 8 * unit).all()


def test_agrees_with_torch(rng):
    """The product agrees with torch.linalg.householder_product.

    The vectors that torch takes begin with zeros and a one.
    """
    V = torch.randn(6, 4, dtype=torch.float64, generator=rng).tril(-1)
    V = V + torch.eye(6, 4, dtype=torch.float64)
    tau = 2 / (V * V).sum(0)
    expected = torch.linalg.householder_product(V, tau)
    assert_close(householder(V, columns=4), expected)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 7])
def test_determinant_is_the_parity(k, rng):
    V = torch.randn(5, k, dtype=torch.float64, generator=rng)
    det = torch.linalg.det(householder(V))
    assert_close(det, torch.tensor((-1.0) ** k, dtype=torch.float64))


@pytest.mark.parametrize("length", [1e-40, 1e-30, 1.0, 1e30])
def test_lengths_do_not_matter(length, rng):
    """householder(c V) = householder(V), though c^2 is not in the range of float32."""
    V = torch.randn(5, 3, generator=rng)
    # 1e-40 is subnormal: it has 17 bits
    tol = 1e-3 if length == 1e-40 else 2e-6
    assert_close(householder(length * V), householder(V), rtol=0, atol=tol)


def test_gradients_are_orthogonal_to_the_columns(rng):
    """v_j^H g_j has no real part, since lengths of columns do not matter."""
    V = torch.randn(6, 4, dtype=torch.float64, generator=rng, requires_grad=True)
    (g,) = torch.autograd.grad(householder(V).cos().sum(), V)
    assert_close((V * g).sum(0), torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_column_of_zeros_is_no_reflection(dtype, rng):
    """A column of zeros gives H = I with gradient 0, instead of 0 / 0."""
    V = torch.randn(5, 3, dtype=dtype, generator=rng)
    V[:, 1] = 0
    V.requires_grad_()
    Q = householder(V)
    assert_close(Q, householder(V[:, ::2]))
    (g,) = torch.autograd.grad(Q.abs().sum(), V)
    assert_close(g[:, 1], torch.zeros(5, dtype=dtype), rtol=0, atol=0)
    assert g.isfinite().all()


def test_parallel_columns(rng):
    """H H = I, and 50 equal reflections are as accurate as one."""
    v = torch.randn(8, 1, dtype=torch.float64, generator=rng)
    assert_close(householder(v.expand(8, 50)), torch.eye(8, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (0, 3, 2), (2, 0, 0)])
def test_empty(shape):
    V = torch.ones(shape, requires_grad=True)
    n = shape[-2]
    Q = householder(V)
    assert_close(Q, torch.eye(n).expand(*shape[:-2], n, n))
    Q.sum().backward()
    assert householder(V, columns=0).shape == (*shape[:-1], 0)


def test_columns_form_nothing_square():
    """4096 x 8 needs memory of its own size; 4096^2 floats would be 64 MB."""
    V = torch.ones(4096, 8)
    with torch.profiler.profile(profile_memory=True) as profile:
        householder(V, columns=8)
    sizes = [event.cpu_memory_usage for event in profile.events() or []]
    assert max(sizes) <= 2 * V.numel() * V.element_size()
