import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry import manifold_of
from isometry.groups import SO, Cayley, Exp
from isometry.linalg import polar
from tests.helpers import random_unitary
from tests.parametrizations.cases import (
    CASES,
    MAPS,
    ROWS,
    Weight,
    orthonormality,
    weight_defect,
)


@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize(("name", "retraction"), ROWS)
def test_registered_weight_is_the_nearest_point(name, retraction, double, rng):
    """W = argmin |Q - W0|, on the manifold up to rounding."""
    case = CASES[name]
    dtype = case.dtype(double)
    W = case.random(rng, dtype)
    module = case.constrain(Weight(W.clone()), retraction)
    eps = torch.finfo(dtype).eps
    # 26: twice the worst of all rows over 200 seeds, 13 ("own", exp, float64)
    assert weight_defect(case, module.weight) <= 26 * eps
    nearest = polar(W) if case.manifold is None else case.manifold.nearest(W)
    # 100: the projections are conditioned by the smallest singular value of W
    assert_close(module.weight, nearest, rtol=0, atol=100 * eps)


@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("sign", [1, -1])
def test_determinant_is_kept(sign, retraction, rng):
    W = torch.randn(5, 5, generator=rng)
    W[0] *= sign * torch.linalg.det(W).sign()
    module = isometry.orthogonal(Weight(W), "weight", retraction)
    assert torch.linalg.det(module.weight).sign() == sign


@pytest.mark.parametrize("retraction", MAPS)
def test_det_1_is_the_nearest_rotation(retraction, rng):
    """For a reflection W0, the nearest rotation flips the smallest singular vector."""
    W = torch.randn(5, 5, generator=rng, dtype=torch.float64)
    W[0] *= -torch.linalg.det(W).sign()
    module = isometry.orthogonal(Weight(W.clone()), "weight", retraction, det=1)
    assert_close(torch.linalg.det(module.weight).item(), 1.0)
    U, _, Vh = torch.linalg.svd(W)
    U[:, -1] *= -1
    assert_close(module.weight, U @ Vh)
    assert manifold_of(module, "weight") == SO(5)


@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3),
        nn.Conv2d(2, 30, 3),
        nn.Conv3d(1, 5, 2),
        nn.ConvTranspose2d(6, 2, 3),
        nn.Conv2d(2, 8, 3),
    ],
    ids=repr,
)
def test_kernel_of_a_convolution_is_one_matrix(layer, retraction):
    """A kernel is the matrix (out, in * kh * kw), with orthonormal rows or columns."""
    before = layer.weight.detach().clone()
    layer = type(layer)(
        layer.in_channels, layer.out_channels, layer.kernel_size, groups=layer.groups
    )
    layer.weight.data.copy_(before)
    isometry.orthogonal(layer, "weight", retraction)
    assert layer.weight.shape == before.shape
    assert orthonormality(layer.weight.flatten(1)) <= 1e-5
    assert_close(layer.weight.flatten(1), polar(before.flatten(1)), rtol=0, atol=2e-5)
    image = torch.randn(1, layer.in_channels, *[6] * (before.ndim - 2))
    layer(image).square().sum().backward()
    assert layer.parametrizations.weight.original.grad.abs().sum() > 0


def test_embedding_rows_train():
    layer = isometry.orthogonal(nn.Embedding(20, 8))
    layer(torch.tensor([1, 2, 3])).pow(3).sum().backward()
    assert orthonormality(layer.weight) <= 2e-6
    assert layer.parametrizations.weight.original.grad.abs().sum() > 0


def test_parameter_stays_the_one_that_an_optimizer_knows():
    layer = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer.weight
    isometry.orthogonal(layer)
    assert layer.parametrizations.weight.original is before
    W = layer.weight.detach().clone()
    layer(torch.ones(2, 6)).pow(3).sum().backward()
    optimizer.step()
    assert torch.dist(layer.weight, W) > 1e-4
    assert orthonormality(layer.weight) <= 2e-6


def test_frozen_weight_stays_frozen():
    layer = nn.Linear(6, 6)
    layer.weight.requires_grad_(False)
    isometry.orthogonal(layer)
    assert not layer.weight.requires_grad


@pytest.mark.parametrize("retraction", [None, "matrix_exp", "exp"])
def test_names_of_torch_mean_the_exponential(retraction):
    layer = isometry.orthogonal(nn.Linear(4, 4), "weight", retraction)
    assert layer.parametrizations.weight[0].retraction == Exp()


def special_points(n: int, dtype: torch.dtype, rng: torch.Generator) -> dict:
    """Orthogonal matrices that maps without a base cannot reach, and generic ones."""
    eye = torch.eye(n, dtype=dtype)
    reflection = eye.clone()
    reflection[0, 0] = -1
    half_turn = eye.clone()
    half_turn[0, 0] = half_turn[1, 1] = -1
    permutation = eye[torch.randperm(n, generator=rng)]
    Q = random_unitary(n, dtype=dtype, rng=rng)
    return {
        "identity": eye,
        "minus identity": -eye,
        "reflection": reflection,
        "half turn": half_turn,
        "permutation": permutation,
        "Haar": Q,
        "Haar, other determinant": Q @ reflection,
    }


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64], ids=str
)
@pytest.mark.parametrize("retraction", MAPS)
def test_every_orthogonal_matrix_can_be_assigned(retraction, dtype, rng):
    """layer.weight = Q gives Q up to rounding, and training goes on from there."""
    for Q in special_points(6, dtype, rng).values():
        layer = Weight(torch.randn(6, 6, dtype=dtype, generator=rng))
        isometry.orthogonal(layer, "weight", retraction)
        layer.weight = Q
        # 4: twice the worst entry, 1.9 eps (householder, complex64)
        bound = 4 * torch.finfo(dtype).eps
        assert_close(layer.weight, Q, rtol=0, atol=bound)
        layer.weight.abs().pow(3).sum().backward()
        assert layer.parametrizations.weight.original.grad.isfinite().all()


@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (2, 5, 3)])
def test_every_rectangular_orthogonal_matrix_can_be_assigned(shape, retraction, rng):
    Q = random_unitary(max(shape[-2:]), dtype=torch.float64, rng=rng, k=min(shape[-2:]))
    Q = Q.mT if shape[-2] < shape[-1] else Q
    Q = Q.expand(shape).clone()
    layer = Weight(torch.randn(shape, dtype=torch.float64, generator=rng))
    isometry.orthogonal(layer, "weight", retraction)
    layer.weight = Q
    assert_close(layer.weight, Q, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("name", "retraction"), ROWS)
def test_training_can_turn_in_every_direction(name, retraction, rng):
    """The derivative of the weight has the rank of its manifold's dimension.

    Reflections of a complex weight used to lack a dimension for each column.
    """
    case = CASES[name]
    dtype = case.dtype(double=True)
    module = case.constrain(Weight(case.random(rng, dtype)), retraction)
    parts = module.parametrizations.weight
    # away from the initial weight, which is a special point of the coordinates
    X = parts.original.detach() + 0.1 * case.random(rng, dtype)
    real = torch.view_as_real if case.is_complex else torch.Tensor.clone
    back = torch.view_as_complex if case.is_complex else torch.Tensor.clone
    J = torch.autograd.functional.jacobian(
        lambda x: real(parts[0](back(x))), real(X), vectorize=True
    )
    J = J.reshape(real(X).numel(), -1)
    manifold = parts[0].manifold
    points = X.numel() // math.prod(manifold.shape)
    assert torch.linalg.matrix_rank(J, rtol=1e-8) == points * manifold.dimension


@pytest.mark.errors
@pytest.mark.parametrize("retraction", MAPS)
def test_assigning_another_matrix_is_refused(retraction, rng):
    """A matrix off the manifold cannot be assigned; torch would project it silently."""
    layer = isometry.orthogonal(nn.Linear(4, 4), "weight", retraction)
    W = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=r"must be a point of O\(.*\.nearest\(value\)"):
        layer.weight = torch.randn(4, 4, generator=rng)
    with pytest.raises(ValueError, match=r"must have the shape of `weight`, \(4, 4\)"):
        layer.weight = torch.eye(5)
    with pytest.raises(ValueError, match="must have the dtype"):
        layer.weight = torch.eye(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="must be a point of"):
        layer.weight = torch.full((4, 4), math.nan)
    assert torch.equal(layer.weight, W)


@pytest.mark.parametrize("retraction", ["exp", "cayley", "pade-3", "householder"])
def test_without_trivialization_the_coordinates_are_those_of_the_weight(
    retraction, rng
):
    """W = phi(skew X) without a base, for any registered W of determinant +1."""
    W = random_unitary(6, dtype=torch.float64, rng=rng)
    W[0] *= torch.linalg.det(W)
    layer = isometry.orthogonal(
        Weight(W.clone()), "weight", retraction, use_trivialization=False
    )
    assert getattr(layer.parametrizations.weight[0], "base", None) is None
    # 1e-12: Cayley loses digits near the eigenvalue -1
    assert_close(layer.weight, W, rtol=0, atol=1e-12)
    Q = random_unitary(6, dtype=torch.float64, rng=rng)
    Q[0] *= torch.linalg.det(Q)
    layer.weight = Q
    assert_close(layer.weight, Q, rtol=0, atol=1e-12)


def test_without_trivialization_a_tall_weight_has_its_logarithm(rng):
    B = torch.eye(9, 3, dtype=torch.float64)
    W = polar(B + 0.3 * torch.randn(9, 3, dtype=torch.float64, generator=rng))
    layer = isometry.orthogonal(Weight(W.clone()), use_trivialization=False)
    assert_close(layer.weight, W, rtol=0, atol=1e-12)


@pytest.mark.errors
def test_without_trivialization_what_cannot_be_reached_is_refused(rng):
    """A weight that cannot be reached is refused, and the module is unchanged."""
    reflection = torch.diag(torch.tensor([-1.0, 1, 1, 1]))
    for retraction in ("exp", "cayley", "pade-3"):
        layer = Weight(reflection.clone())
        message = f"that {retraction} reaches from the identity.*`det=1`"
        with pytest.raises(ValueError, match=message):
            isometry.orthogonal(layer, "weight", retraction, use_trivialization=False)
        assert type(layer) is Weight
        assert torch.equal(layer.weight, reflection)
    with pytest.raises(ValueError, match="use_trivialization=True"):
        isometry.orthogonal(
            nn.Linear(2, 8), "weight", "cayley", use_trivialization=False
        )


@pytest.mark.parametrize("shape", [(4, 4), (6, 3)])
def test_meta_weight_can_be_constrained(shape):
    """A weight on meta has shapes only; values come with a checkpoint."""
    with torch.device("meta"):
        layer = isometry.orthogonal(Weight(torch.empty(shape)))
    assert layer.weight.is_meta
    real = isometry.orthogonal(Weight(torch.randn(shape)))
    layer.load_state_dict(real.state_dict(), assign=True)
    assert_close(layer.weight, real.weight)


def test_unitary_is_orthogonal_of_a_complex_weight(rng):
    W = torch.randn(4, 4, dtype=torch.complex64, generator=rng)
    a = isometry.unitary(Weight(W.clone()))
    b = isometry.orthogonal(Weight(W.clone()))
    assert torch.equal(a.weight, b.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [32, 170, 512])
def test_what_torch_computes_can_be_assigned(n, dtype, rng):
    """What torch.matrix_exp computes at n = 170 can be assigned.

    It used to be refused: a defect of 4.5e-13 against a bound of 3.8e-13.
    """
    layer = isometry.orthogonal(nn.Linear(n, n, dtype=dtype), init="identity")
    X = torch.randn(n, n, dtype=dtype, generator=rng)
    points = (
        torch.matrix_exp(X - X.mT),
        torch.linalg.qr(X).Q,
        nn.init.orthogonal_(torch.empty(n, n, dtype=dtype), generator=rng),
    )
    for Q in points:
        layer.weight = Q
        bound = layer.parametrizations.weight[0].manifold.tolerance(dtype)
        assert torch.dist(layer.weight, Q) <= bound


@pytest.mark.parametrize("phi", ["cayley", "householder", Cayley()])
def test_retraction_is_another_name_of_the_map(phi):
    by_our_name = isometry.orthogonal(nn.Linear(4, 4), retraction=phi)
    by_torchs_name = isometry.orthogonal(nn.Linear(4, 4), orthogonal_map=phi)
    assert repr(by_our_name) == repr(by_torchs_name)
