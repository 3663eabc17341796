"""Rotation vectors, quaternions and matrices, compared with SciPy."""

import math
from typing import Any

import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from isometry.groups import SO, SU, Sphere, Stiefel, U
from isometry.rotations import (
    angle,
    from_quaternion,
    from_vector,
    to_quaternion,
    to_vector,
)
from tests.helpers import eps

REAL = (torch.float32, torch.float64)
ANGLES = (0.0, 1e-100, 1e-12, 1e-4, 0.12, 0.25, 0.999, 1.001, 2.0, 3.1415, 4.0, 100.0)


def vectors(length: float, *, rng: torch.Generator, dtype: torch.dtype) -> Tensor:
    v = torch.randn(200, 3, dtype=torch.float64, generator=rng)
    v = length * v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v.to(dtype)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("length", ANGLES)
def test_matrices_of_vectors_are_those_of_scipy(length, dtype, rng):
    v = vectors(length, rng=rng, dtype=dtype)
    expected = Rotation.from_rotvec(v.double().numpy()).as_matrix()
    # twice the worst of 200 draws at each angle, 4.4 eps, and the rounding of the angle
    tol = (9 + length) * eps(dtype)
    assert_close(from_vector(v).double(), torch.from_numpy(expected), rtol=0, atol=tol)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("length", [a for a in ANGLES if a < math.pi])
def test_vectors_and_quaternions_come_back(length, dtype, rng):
    """to_vector(from_vector(v)) = v and from_quaternion(to_quaternion(R)) = R."""
    v = vectors(length, rng=rng, dtype=dtype)
    R = from_vector(v)
    # twice the worst of 200 draws at each angle: 2.3 eps and 8 eps
    assert_close(to_vector(R), v, rtol=0, atol=5 * eps(dtype) * length)
    q = to_quaternion(R)
    assert_close(from_quaternion(q), R, rtol=0, atol=16 * eps(dtype))
    assert (q[..., 3] >= 0).all()
    if length:
        # twice the worst, 2.8 eps
        one = torch.eye(3, dtype=dtype)
        expected = torch.full((200,), length, dtype=dtype)
        assert_close(angle(one, R), expected, rtol=6 * eps(dtype), atol=0)


def test_quaternions_are_those_of_scipy(rng):
    """The scalar part is last, the length does not matter, and w >= 0."""
    q = torch.randn(100, 4, dtype=torch.float64, generator=rng)
    R = torch.from_numpy(Rotation.from_quat(q.numpy()).as_matrix())
    for scale in (1.0, 1e200, 1e-200):
        assert_close(from_quaternion(scale * q), R)
    expected = Rotation.from_matrix(R.numpy()).as_quat(canonical=True)
    assert_close(to_quaternion(R), torch.from_numpy(expected))


def test_half_turns_around_every_axis(rng):
    """Half turns work, where the trace is -1 and the usual formula divides by 0."""
    axes = torch.cat([torch.eye(3), torch.randn(50, 3, generator=rng)]).double()
    v = math.pi * axes / torch.linalg.vector_norm(axes, dim=-1, keepdim=True)
    back = to_vector(from_vector(v))
    sign = (back * v).sum(-1, keepdim=True).sign()
    assert_close(sign * back, v)


@pytest.mark.parametrize("length", [0.0, 1e-9, 0.1249, 0.1251, 0.99, 1.01, 3.0])
def test_derivatives_of_first_and_second_order(length, rng):
    """First and second derivatives are right at zero, and where the series end.

    `torch.sinc` has no second derivative at zero.
    """
    v = vectors(length, rng=rng, dtype=torch.float64)[:3].requires_grad_()
    for function in (from_vector, lambda v: to_vector(from_vector(v))):
        assert gradcheck(function, v)
        assert gradgradcheck(function, v)
    q = torch.randn(3, 4, dtype=torch.float64, generator=rng, requires_grad=True)
    assert gradcheck(from_quaternion, q)
    R = from_vector(v).detach()
    assert gradcheck(lambda E: to_quaternion(R @ from_vector(E)), v)


def test_the_angle_of_equal_rotations_has_gradient_zero(rng):
    R = SO(3).random(4, generator=rng).requires_grad_()
    (G,) = torch.autograd.grad(angle(R, R.detach()).sum(), R)
    # the angle is 0, or about 1e-3 as the root of a rounding error
    assert G.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_from_single(dtype, rng):
    v = torch.randn(5, 3, generator=rng).to(dtype)
    R = from_vector(v)
    assert R.dtype == to_vector(R).dtype == to_quaternion(R).dtype == dtype
    assert angle(R, R[:1]).dtype == dtype
    assert_close(R, from_vector(v.float()).to(dtype), rtol=0, atol=0)


def test_autocast_does_not_touch_it(rng):
    v = torch.randn(5, 3, generator=rng)
    R = from_vector(v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(from_vector(v), R, rtol=0, atol=0)
        assert_close(angle(R, R[:1]), angle(R, R[:1]).float(), rtol=0, atol=0)


def test_what_is_not_finite_becomes_nan_alone():
    v = torch.tensor([[math.nan, 0, 0], [1, 2, 3], [math.inf, 0, 0]])
    R = from_vector(v)
    assert R[::2].isnan().all()
    assert R[1].isfinite().all()
    # an infinite entry used to give the quaternion (0, 0, NaN, 0)
    infinite = torch.eye(3).repeat(9, 1, 1)
    infinite.view(9, 9).fill_diagonal_(math.inf)
    for function in (to_quaternion, to_vector):
        assert function(infinite).isnan().all()
    assert from_quaternion(torch.zeros(4)).isnan().all()
    assert from_vector(torch.zeros(0, 3)).shape == (0, 3, 3)
    assert to_vector(torch.zeros(0, 3, 3)).shape == (0, 3)


def test_transforms_and_compilation(rng):
    v = torch.randn(5, 3, dtype=torch.float64, generator=rng)
    assert_close(torch.vmap(from_vector)(v), from_vector(v))
    R = from_vector(v)
    assert_close(torch.vmap(to_vector)(R), to_vector(R))
    compiled = torch.compile(lambda v: to_vector(from_vector(v)), backend="eager")
    assert_close(compiled(v), to_vector(R))


@pytest.mark.errors
def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"`v` must have shape \(\*batch, 3\); got"):
        from_vector(torch.zeros(4))
    with pytest.raises(ValueError, match=r"`R` must have shape \(\*batch, 3, 3\)"):
        to_vector(torch.eye(4))
    with pytest.raises(ValueError, match=r"`q` must have shape \(\*batch, 4\)"):
        from_quaternion(torch.zeros(3))
    with pytest.raises(TypeError, match=r"`v` must have a real floating-point dtype"):
        from_vector(torch.zeros(3, dtype=torch.long))
    with pytest.raises(TypeError, match=r"`P` must have a real floating-point"):
        angle(torch.eye(3, dtype=torch.complex64), torch.eye(3))


def test_the_geodesic_of_so3_is_slerp(rng):
    P, Q = SO(3).random(2, dtype=torch.float64, generator=rng)
    pair = Rotation.from_matrix(torch.stack([Q, P]).numpy())
    between = (pair[0] * (pair[0].inv() * pair[1]) ** 0.3).as_matrix()
    assert_close(SO(3).geodesic(Q, P, 0.3), torch.from_numpy(between))
    ends = SO(3).geodesic(Q, P, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert_close(ends, torch.stack([Q, P]))


@pytest.mark.parametrize(
    "manifold", [SO(3), SO(5), U(3), SU(2), Stiefel(5, 2), Sphere(4)], ids=str
)
def test_the_mean_balances_the_logarithms(manifold, rng):
    """sum_i w_i log_M(Q_i) = 0, and equal points are their own mean."""
    dtype = torch.complex128 if manifold.is_complex else torch.float64
    center = manifold.random(2, dtype=dtype, generator=rng)
    E = torch.randn(7, *center.shape, dtype=dtype, generator=rng)
    center = center.expand(7, *center.shape)
    Q = manifold.exp(center, 0.2 * manifold.project(center, E))
    w = torch.rand(7, dtype=torch.float64, generator=rng)
    M = manifold.mean(Q, weights=w)
    manifold.check_point(M, name="M")
    shape = (-1, *[1] * (Q.ndim - 1))
    rest = (w.reshape(shape) * manifold.log(M.expand_as(Q), Q)).sum(0)
    # twice the worst over the manifolds and 20 seeds is below the tolerance of a point
    assert float(rest.abs().max()) <= manifold.tolerance(dtype)
    assert_close(manifold.mean(Q[:1]), Q[0])


def test_the_mean_of_so3_is_that_of_its_definition(rng):
    """No point nearby has a smaller sum of squared distances; gradients are right."""
    v = 0.3 * torch.randn(6, 3, dtype=torch.float64, generator=rng)
    Q = from_vector(v)
    M = SO(3).mean(Q)

    def spread(P: Tensor) -> float:
        return float(SO(3).distance(P.expand_as(Q), Q).square().sum())

    for E in 0.01 * torch.randn(5, 3, dtype=torch.float64, generator=rng):
        assert spread(M) < spread(M @ from_vector(E))
    assert gradcheck(lambda v: SO(3).mean(from_vector(v)), v.requires_grad_())


@pytest.mark.errors
@pytest.mark.errors
def test_the_mean_refuses_what_is_not_a_point():
    """Vectors off the sphere have no mean; those of length 5 used to have one."""
    with pytest.raises(ValueError, match=r"`Q` must be a point of Sphere"):
        Sphere(3).mean(5 * torch.eye(3)[:2])


def test_points_without_a_mean():
    with pytest.raises(ValueError, match=r"`Q` must have points along its first axis"):
        SO(3).mean(torch.eye(3))
    with pytest.raises(ValueError, match=r"`Q` must have points along its first axis"):
        SO(3).mean(torch.zeros(0, 3, 3))


@pytest.mark.errors
@pytest.mark.parametrize(
    "weights",
    [[0.0, 0.0, 0.0], [1.0, 2.0, -3.0], [0.1, 0.2, -0.3], [1.0, math.nan, 1.0]],
    ids=str,
)
def test_weights_have_a_sum(weights, rng):
    """Weights whose sum is zero, or rounding errors, are refused.

    They used to give NaN.
    """
    Q = SO(3).random(3, generator=rng)
    with pytest.raises(ValueError, match=r"`weights` must be finite, and their sum"):
        SO(3).mean(Q, weights=torch.tensor(weights))


@pytest.mark.errors
def test_every_point_has_a_weight(rng):
    """There must be a weight for every point.

    The error used to be torch's, about sizes of tensors that the user does not see.
    """
    Q = SO(3).random(3, 2, generator=rng)
    for shape in ((2,), (3, 2), ()):
        message = r"`weights` must have shape \(3,\), one weight .* got"
        with pytest.raises(ValueError, match=message):
            SO(3).mean(Q, weights=torch.ones(shape))
    wrong: Any = [1.0, 2.0, 3.0]
    with pytest.raises(TypeError, match=r"`weights` must be a torch\.Tensor; got list"):
        SO(3).mean(Q, weights=wrong)
    # negative weights and integers are accepted
    near = SO(3).exp(Q, 0.1 * SO(3).project(Q, torch.randn(3, 2, 3, 3, generator=rng)))
    same = torch.stack([Q[0], near[0]])
    twice = SO(3).mean(same, weights=torch.tensor([-2, 4]))
    assert_close(twice, SO(3).geodesic(same[0], same[1], 2.0))


@pytest.mark.errors
@pytest.mark.parametrize(
    ("f", "size"),
    [(from_vector, 3), (from_quaternion, 4), (to_vector, 9), (to_quaternion, 9)],
)
def test_lists_are_refused_in_our_words(f, size):
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor; got list\. Convert"):
        f([0.0] * size)
