"""The kernel of a convolution is one matrix, or one for each of its groups."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry.groups import SO, Sphere, Stiefel
from tests.parametrizations.cases import MAPS, orthonormality

GROUPED = {
    "grouped": lambda: nn.Conv2d(8, 12, 3, groups=4),
    "tall": lambda: nn.Conv1d(4, 32, 3, groups=2),
    "square": lambda: nn.Conv2d(8, 8, 1, groups=2),
    "depthwise": lambda: nn.Conv2d(16, 16, 3, groups=16),
    "depthwise, two filters each": lambda: nn.Conv1d(6, 12, 5, groups=6),
    "three axes": lambda: nn.Conv3d(4, 6, 2, groups=2),
    "transposed": lambda: nn.ConvTranspose2d(8, 12, 3, groups=4),
    "transposed, depthwise": lambda: nn.ConvTranspose1d(6, 6, 3, groups=6),
}


def parts(layer: nn.Module) -> list[torch.Tensor]:
    """The matrix of each group of channels, with the filters of this group as rows."""
    return [W.flatten(1) for W in layer.weight.detach().chunk(layer.groups)]


def image(layer: nn.Module) -> torch.Tensor:
    axes = layer.weight.ndim - 2
    return torch.randn(2, layer.in_channels, *(7,) * axes)


def input_of(layer: nn.Module, j: int, x: torch.Tensor) -> torch.Tensor:
    return x.chunk(layer.groups, 1)[j]


@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("what", GROUPED)
def test_every_group_is_orthogonal(what, retraction):
    """The matrix of every group of channels is orthogonal.

    All groups used to form one matrix: the filters of a depthwise convolution had norms
    from 0.59 to 0.92, and filters of different groups were orthogonal.
    """
    plain = GROUPED[what]()
    layer = copy.deepcopy(plain)
    isometry.orthogonal(layer, "weight", retraction)
    # 12 and 6: twice the worst over 200 seeds, 6.0 and 3.0 (depthwise, householder)
    eps = torch.finfo(torch.float32).eps
    for W, before in zip(parts(layer), parts(plain), strict=True):
        k = min(W.shape)
        assert orthonormality(W) <= 12 * k * eps
        assert_close(W, isometry.linalg.polar(before), rtol=0, atol=6 * k * eps)


@pytest.mark.parametrize("what", GROUPED)
def test_the_groups_are_those_of_the_convolution(what):
    """Each group, as a convolution by itself, computes the same channels."""
    layer = isometry.orthogonal(GROUPED[what]())
    x = image(layer)
    y = layer(x).detach()
    out = layer.out_channels // layer.groups
    kind = type(isometry.fold(copy.deepcopy(layer)))
    for j in range(layer.groups):
        alone = kind(layer.in_channels // layer.groups, out, layer.kernel_size)
        alone.weight = nn.Parameter(layer.weight.detach().chunk(layer.groups)[j])
        alone.bias = nn.Parameter(layer.bias.detach().chunk(layer.groups)[j])
        assert_close(alone(input_of(layer, j, x)), y.chunk(layer.groups, 1)[j])


@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("what", ["grouped", "depthwise", "transposed"])
def test_a_grouped_convolution_trains_and_survives(what, retraction):
    """A kernel in groups survives checkpoint, fold, copy, diagnosis and rebase.

    It also takes a plain checkpoint and an assignment.
    """
    layer, other = (
        isometry.orthogonal(GROUPED[what](), "weight", retraction) for _ in range(2)
    )
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    x, before = image(layer), layer.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).pow(3).mean().backward()
        optimizer.step()
    assert torch.dist(layer.weight, before) > 1e-2
    report = isometry.diagnose(layer)["weight"]
    assert report.orthogonality_error <= 1e-5
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    folded = isometry.fold(copy.deepcopy(layer))
    assert_close(folded(x), layer(x))
    isometry.rebase(layer)
    assert_close(layer.weight, folded.weight, rtol=0, atol=1e-5)
    isometry.load_foreign(other, isometry.fold(GROUPED[what]()).state_dict())
    assert isometry.diagnose(other)["weight"].orthogonality_error <= 1e-5
    other.weight = folded.weight.detach()
    assert_close(other.weight, folded.weight, rtol=0, atol=1e-5)


def test_constrain_sees_the_groups_too():
    conv = isometry.constrain(nn.Conv2d(8, 12, 3, groups=4), Stiefel(18, 3))
    assert all(orthonormality(W) <= 1e-6 for W in parts(conv))
    rotations = isometry.constrain(nn.Conv2d(8, 8, 1, groups=2), SO(4))
    assert all(torch.linalg.det(W) > 0 for W in parts(rotations))
    rows = isometry.constrain(nn.Conv1d(4, 4, 5, groups=4), Sphere(5))
    assert_close(torch.linalg.vector_norm(rows.weight, dim=-1), torch.ones(4, 1))


@pytest.mark.errors
def test_a_checkpoint_across_groups_is_refused():
    """A checkpoint of earlier versions, with one matrix for all groups, is refused."""
    layer = isometry.orthogonal(nn.Conv2d(16, 16, 3, groups=16))
    one = isometry.orthogonal(nn.Conv2d(1, 16, 3))
    with pytest.raises(RuntimeError, match=r"0\.base` must be a point of Stiefel"):
        layer.load_state_dict(one.state_dict())


@pytest.mark.errors
def test_the_remedy_for_a_weight_projects_each_group():
    layer = isometry.orthogonal(nn.Conv2d(8, 12, 3, groups=4))
    value = torch.randn(12, 2, 3, 3)
    call = r"\(value.flatten\(1\).unflatten\(-2, \(4, -1\)\).mT\).mT.reshape_as"
    with pytest.raises(ValueError, match=call):
        layer.weight = value
    points = value.flatten(1).unflatten(0, (4, -1)).mT
    W = Stiefel(n=18, k=3).nearest(points).mT.reshape_as(value)
    layer.weight = W
    assert_close(layer.weight, W)
