"""bfloat16 and float16 weights: only the weight is narrow.

torch casts base and coordinates too, and its weight is off by 2.4e-3 (adapters#772,
HeavyBall#57: unusable in bf16).
"""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from tests.parametrizations.cases import MAPS, orthonormality

HALF = [torch.bfloat16, torch.float16]


def parts(layer: nn.Module) -> set[torch.dtype]:
    floating = [t for t in layer.state_dict().values() if t.is_floating_point()]
    return {t.dtype for t in floating if t.ndim > 1}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("order", ["cast first", "cast later"])
def test_only_the_weight_is_narrow(order, retraction, dtype):
    """Q^H Q = I up to eps sqrt(k); cast back, the weight is as good as before."""
    layer = nn.Linear(32, 32)
    if order == "cast first":
        layer = isometry.orthogonal(layer.to(dtype), "weight", retraction)
    else:
        layer = isometry.orthogonal(layer, "weight", retraction).to(dtype)
    assert layer.weight.dtype == dtype
    assert parts(layer) == {torch.float32}
    bound = torch.finfo(dtype).eps * 32**0.5
    assert orthonormality(layer.weight.float()) <= bound
    x = torch.randn(4, 32, dtype=dtype)
    layer(x).float().pow(3).sum().backward()
    assert layer.parametrizations.weight.original.grad.dtype == torch.float32
    layer.float()
    assert layer.weight.dtype == torch.float32
    # 1e-6: what is required of a float32 weight, scaled by sqrt(n)
    assert orthonormality(layer.weight) <= 1e-6 * 32**0.5


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_rounded_orthogonal_matrix_can_be_assigned(dtype, rng):
    layer = isometry.orthogonal(nn.Linear(16, 16).to(dtype))
    Q = isometry.groups.SO(16).random(generator=rng).to(dtype)
    layer.weight = Q
    assert_close(layer.weight, Q, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
    with pytest.raises(ValueError, match=r"got a defect of .* for torch\.(b)?float16"):
        layer.weight = torch.ones(16, 16, dtype=dtype)


@pytest.mark.errors
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_rounded_reflection_is_told_by_its_determinant(dtype, rng):
    """Rounding to half precision is not the reason why a reflection is refused.

    The error used to be about the defect, compared with the bound of float32.
    """
    layer = isometry.orthogonal(nn.Conv2d(4, 16, 2).to(dtype), det=1)
    Q = isometry.groups.SO(16).random(generator=rng)
    reflection = torch.cat([-Q[:, :1], Q[:, 1:]], 1).reshape(16, 4, 2, 2).to(dtype)
    with pytest.raises(ValueError, match=r"must have determinant 1 .* determinant -1"):
        layer.weight = reflection
    # twice a reflection has the determinant -2^16, and its defect is not rounding
    bound = rf"above {1.1 * torch.finfo(dtype).eps * 4:.1e} for {dtype}"
    message = rf"defect of 1\.2e\+01, {bound}, and determinant -6.*value\.flatten\(1\)"
    with pytest.raises(ValueError, match=message):
        layer.weight = 2 * reflection


def test_autocast_leaves_the_weight_alone():
    """Under autocast the weight is computed in float32.

    The layer's product is narrow.
    """
    layer = isometry.orthogonal(nn.Linear(16, 16))
    with torch.autocast("cpu", torch.bfloat16):
        W = layer.weight
        y = layer(torch.randn(2, 16))
    assert W.dtype == torch.float32
    assert orthonormality(W) <= 2e-6
    assert y.dtype == torch.bfloat16


def test_casts_back_and_forth_lose_nothing():
    """Casts back and forth lose nothing; torch's module would stay rounded."""
    layer = isometry.orthogonal(nn.Linear(16, 16))
    W = layer.weight.detach().clone()
    layer.to(torch.bfloat16).float()
    assert torch.equal(layer.weight, W)
    layer.double()
    assert layer.weight.dtype == torch.float64


@pytest.mark.parametrize("options", [{}, {"use_trivialization": False}], ids=str)
@pytest.mark.parametrize("retraction", ["exp", "householder"])
def test_a_weight_whose_coordinates_are_double_can_be_assigned(
    retraction, options, rng
):
    """Coordinates in double precision accept an assigned weight.

    torch used to refuse to set them from coordinates in single precision.
    """
    layer = nn.Linear(6, 6, dtype=torch.float64)
    isometry.orthogonal(layer, "weight", retraction, init="identity", **options)
    layer.to(torch.bfloat16)
    Q = isometry.groups.SO(6).random(generator=rng).to(torch.bfloat16)
    layer.weight = Q
    assert layer.parametrizations.weight.original.dtype == torch.float64
    assert_close(layer.weight, Q, rtol=0, atol=2 * torch.finfo(torch.bfloat16).eps)
