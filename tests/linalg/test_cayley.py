import math

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap
from torch.linalg import matrix_norm
from torch.testing import assert_close

from isometry.linalg._cayley import cayley, cayley_inverse
from isometry.linalg._skew import skew
from tests.helpers import (
    DTYPES,
    double_dtype,
    eps,
    random_skew,
    skew_with_angles,
)


def eigen(A: Tensor) -> tuple[Tensor, Tensor]:
    theta, V = torch.linalg.eigh(-1j * A.to(torch.complex128))
    return theta, V


def reference(A: Tensor) -> Tensor:
    """V diag((1 + i theta / 2) / (1 - i theta / 2)) V^H, in float64."""
    theta, V = eigen(A)
    c = (1 + 0.5j * theta) / (1 - 0.5j * theta)
    Q = (V * c[..., None, :]) @ V.mH
    return Q if A.is_complex() else Q.real


def reference_gradient(A: Tensor, G: Tensor) -> Tensor:
    """Skew part of the adjoint of the Cayley map, by divided differences."""
    theta, V = eigen(A)
    m = 1 / (1 - 0.5j * theta)
    Phi = m[..., :, None] * m[..., None, :]
    g = V @ (Phi.conj() * (V.mH @ G.to(V.dtype) @ V)) @ V.mH
    g = (g - g.mH) / 2
    return g if A.is_complex() else g.real


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [0.0, 1e-8, 1.0, math.pi, 100.0, 1e4])
@pytest.mark.parametrize("n", [1, 2, 7, 32])
def test_value_and_gradient_are_those_of_the_eigendecomposition(n, norm, dtype, rng):
    """Q = V c(theta) V^H; gradient: the skew part of M^H G M^H, M = (I - A/2)^-1."""
    A = random_skew(n, norm=norm, dtype=dtype, rng=rng, batch=(3,)).requires_grad_()
    G = torch.randn(3, n, n, dtype=dtype, generator=rng)

    Q = cayley(A)
    (g,) = torch.autograd.grad(Q, A, G)

    # Twice the worst over 100 seeds of value, gradient and defect: 2.8, 2.8 and 2.4
    # (complex128, n = 2). There the reference has a part in the error; in complex64 the
    # worst are 1.2, 1.0 and 2.4.
    unit = n * eps(dtype) * max(1.0, norm)
    Q = Q.detach()
    assert (matrix_norm(Q - reference(A.detach())) <= 5.7 * unit).all()
    error = matrix_norm(g - reference_gradient(A.detach(), G))
    assert (error <= 5.6 * unit * matrix_norm(G)).all()
    assert_close(g, -g.mH, rtol=0, atol=eps(dtype) * float(g.abs().max()))
    Q = Q.to(double_dtype(dtype))
    assert (matrix_norm(Q.mH @ Q - torch.eye(n)) <= 4.8 * unit).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_repeated_eigenvalues(dtype, rng):
    """The gradient is right if all angles are equal: it has no quotient 0 / 0."""
    A = skew_with_angles(torch.full((4,), 2.0), dtype=dtype, rng=rng)
    n = A.shape[-1]
    A.requires_grad_()
    G = torch.randn(n, n, dtype=dtype, generator=rng)
    (g,) = torch.autograd.grad(cayley(A), A, G)
    error = matrix_norm(g - reference_gradient(A.detach(), G))
    # 5.6, as in the test of all sizes
    assert error <= 5.6 * n * eps(dtype) * 2 * matrix_norm(G)


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (3, 3), (0, 3, 3), (2, 0, 0)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_is_mapped_to_the_identity(shape, dtype):
    """cayley(0) = I, exactly; batches and matrices may be empty."""
    Q = cayley(torch.zeros(shape, dtype=dtype))
    assert_close(Q, torch.eye(shape[-1], dtype=dtype).expand(shape), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [0.0, 1e-8, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 32])
def test_inverse_undoes_the_map(n, norm, dtype, rng):
    """cayley_inverse(cayley(A)) = A, skew to the last bit; error eps (1 + norm^2)."""
    A = random_skew(n, norm=norm, dtype=dtype, rng=rng, batch=(2,))
    B = cayley_inverse(cayley(A))
    # 1.12: twice the worst over 100 seeds, 0.56 (complex64, n = 2, norm = 1)
    tol = 1.12 * n * eps(dtype) * (1 + norm**2)
    assert (matrix_norm(B - A) <= tol).all()
    assert_close(B, -B.mH, rtol=0, atol=0)


def test_inverse_keeps_the_digits_of_small_angles():
    """At |A| = 1e-20 the inverse keeps all digits, as Q does off the diagonal."""
    A = skew(torch.full((3, 3), 1e-20))
    assert_close(cayley_inverse(cayley(A)), A, rtol=1e-6, atol=0)


def test_inverse_near_angle_pi(rng):
    """The angle pi - 1e-4 has 2 tan(theta / 2) = 4e4: fewer digits, but no refusal."""
    angle = torch.tensor([2 * math.tan((math.pi - 1e-4) / 2), 0.5], dtype=torch.float64)
    A = skew_with_angles(angle, dtype=torch.float64, rng=rng)
    assert_close(cayley_inverse(cayley(A)), A, rtol=1e-6, atol=1e-6)


def test_transforms_compose(rng):
    """vmap agrees with batches, Hessians are symmetric, and the derivative is M E M.

    Here E is the direction, and M = (Q + I) / 2.
    """

    def f(X: Tensor) -> Tensor:
        return cayley(skew(X)).cos().sum()

    X = torch.randn(3, 4, 4, dtype=torch.float64, generator=rng)
    assert_close(vmap(cayley)(skew(X)), cayley(skew(X)))
    assert_close(vmap(grad(f))(X), grad(f)(X))
    H = hessian(f)(X[0]).reshape(16, 16)
    assert_close(H, H.mT)
    A, E = skew(X[0]), skew(X[1])
    Q, dQ = jvp(cayley, (A,), (E,))[:2]
    M = (Q + torch.eye(4)) / 2
    assert_close(dQ, M @ E @ M)
    Q = cayley(skew(X))
    assert_close(vmap(cayley_inverse)(Q), cayley_inverse(Q))


def test_backward_factorizes_nothing(rng):
    """The forward pass has one inverse, and the backward pass two products."""
    A = random_skew(4, norm=1.0, dtype=torch.float64, rng=rng).requires_grad_()
    Q = cayley(A)
    with torch.profiler.profile() as profile:
        torch.autograd.grad(Q.sum(), A)
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["aten::mm"] == 2
    assert not [name for name in calls if "linalg" in name or "lu_" in name]


def test_inverse_gives_nan_where_it_cannot_raise(no_shape_hook):
    Q = torch.stack([torch.eye(4), torch.diag(torch.tensor([1.0, 1.0, 1.0, -1.0]))])
    compiled = torch.compile(cayley_inverse, fullgraph=True)
    for A in (compiled(Q), vmap(cayley_inverse)(Q)):
        assert_close(A[0], torch.zeros(4, 4))
        assert A[1].isnan().all()


@pytest.mark.errors
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
def test_inverse_refuses_the_eigenvalue_minus_one(n, dtype, rng):
    """A reflection has the eigenvalue -1: it is refused, also among other matrices."""
    v = torch.randn(n, 1, dtype=double_dtype(dtype), generator=rng)
    H = torch.eye(n, dtype=double_dtype(dtype)) - 2 * v @ v.mH / (v.mH @ v)
    Q = torch.stack([torch.eye(n, dtype=dtype), H.to(dtype)])
    message = r"`Q` must not have the eigenvalue -1.*distance about .*logm_unitary"
    with pytest.raises(ValueError, match=message):
        cayley_inverse(Q)


@pytest.mark.errors
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_inverse_refuses_distances_up_to_four_n_eps(n, dtype):
    """-1 + i delta becomes 4i / delta if delta > 4 n eps, and else it is refused."""
    bound = 4 * n * eps(dtype)

    def diagonal(first: complex, other: float) -> Tensor:
        return torch.diag(torch.tensor([first, *[other] * (n - 1)], dtype=dtype))

    A = cayley_inverse(diagonal(complex(-1, 1.1 * bound), 1.0))
    # 0.3 eps was measured; on another processor the two divisions may round differently
    assert_close(A, diagonal(4j / (1.1 * bound), 0.0), rtol=2 * eps(dtype), atol=0)
    with pytest.raises(ValueError, match="`Q` must not have the eigenvalue -1"):
        cayley_inverse(diagonal(complex(-1, 0.9 * bound), 1.0))
