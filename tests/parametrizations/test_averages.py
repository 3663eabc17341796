"""Averages of models during training, by torch.optim.swa_utils."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_avg_fn,
    get_ema_multi_avg_fn,
    update_bn,
)
from torch.testing import assert_close

import isometry
from isometry.groups import SO
from tests.parametrizations import reference
from tests.parametrizations.cases import MAPS, orthonormality
from tests.parametrizations.small_network import (
    constraint_of,
    coordinates_of,
    network,
    train,
    weights,
)

DECAY = 0.9
AVERAGES: dict[str, dict[str, Any]] = {
    "SWA": {},
    "EMA": {"multi_avg_fn": get_ema_multi_avg_fn(DECAY)},
    "EMA, one by one": {"avg_fn": get_ema_avg_fn(DECAY)},
    "EMA with buffers": {
        "multi_avg_fn": get_ema_multi_avg_fn(DECAY),
        "use_buffers": True,
    },
}


def mean(seen: list[Tensor], name: str) -> Tensor:
    """The mean of tensors as torch averages them."""
    if name == "SWA":
        return torch.stack(seen).mean(0)
    total = seen[0]
    for X in seen[1:]:
        total = DECAY * total + (1 - DECAY) * X
    return total


@pytest.mark.parametrize("name", AVERAGES)
def test_a_fixed_base_has_a_mean_of_coordinates(name):
    """W = B exp(mean of A) is orthogonal, and up to date after each update."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    average = AveragedModel(model, **AVERAGES[name])
    seen = []
    for _ in range(10):
        train(model, optimizer, 1)
        # the weight is cached, and no optimizer's step announces its change
        before = average.module[2].weight
        average.update_parameters(model)
        assert average.module[2].weight is not before
        seen.append(coordinates_of(model).detach().clone())
        A = reference.skew(mean(seen, name))
        expected = constraint_of(model).base @ torch.matrix_exp(A)
        W = weights(average.module)[1]
        # 1e-9: torch.matrix_exp is off by 1.8e-10 at norm 0.05, in float64
        assert_close(W, expected, rtol=0, atol=1e-9)
        assert orthonormality(W) <= 1e-13
    assert torch.dist(weights(average.module)[1], weights(model)[1]) > 0.1


@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_can_be_loaded(name, retraction):
    """An average with all buffers can be loaded.

    The name of the map is a buffer, and used to be averaged: 'exp' became 'dxo'.
    """
    layer = isometry.orthogonal(nn.Linear(5, 5), "weight", retraction)
    average = AveragedModel(layer, **AVERAGES[name])
    for _ in range(20):
        with torch.no_grad():
            layer.parametrizations.weight.original.add_(0.1 * torch.randn(5, 5))
        average.update_parameters(layer)
    layer.load_state_dict(average.module.state_dict())
    assert torch.equal(layer.weight, average.module.weight)
    assert orthonormality(layer.weight) <= 2e-6


@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("read", ["after each step", "at the end", "saved"])
def test_an_average_with_buffers_stays_on_the_manifold(read, retraction, rng):
    """An average with buffers stays on the manifold, however often its weight is read.

    A mean of bases is off the manifold, and so the weight used to be: by 0.09 to 2.4
    after 20 steps.
    """
    policy = {} if retraction == "householder" else {"rebase_every": 1}
    layer = isometry.orthogonal(nn.Linear(6, 6), "weight", retraction, **policy)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
    average = AveragedModel(layer, **AVERAGES["EMA with buffers"])
    x = torch.randn(16, 6, generator=rng)
    for _ in range(20):
        optimizer.zero_grad()
        (layer(x) - x).square().mean().backward()
        optimizer.step()
        average.update_parameters(layer)
        if read == "after each step":
            # twice the worst over 200 seeds, 1.6e-6 (householder)
            assert orthonormality(average.module.weight) <= 3.2e-6
    if read == "saved":
        other = copy.deepcopy(layer)
        other.load_state_dict(average.module.state_dict())
        assert torch.equal(other.weight, average.module.weight)
    # twice the worst over 200 seeds, 1.3e-6
    assert orthonormality(average.module.weight) <= 2.7e-6


def test_a_mean_of_bases_becomes_the_nearest_point():
    """With `rebase_every=1` coordinates are zero, and W = polar(mean of weights)."""
    model = network(rebase_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = AveragedModel(model, use_buffers=True)
    seen = []
    for _ in range(10):
        train(model, optimizer, 1)
        average.update_parameters(model)
        seen.append(weights(model)[1])
    expected = isometry.linalg.polar(torch.stack(seen).mean(0))
    assert_close(weights(average.module)[1], expected, rtol=0, atol=1e-12)


def test_a_mean_of_rotations_becomes_the_nearest_rotation():
    """A mean of rotations becomes a rotation, even if its determinant is negative.

    On SO(3), the half turns about three axes have the mean -I/3. The weight used to be
    this matrix times a rotation, silently.
    """
    layer = isometry.orthogonal(nn.Linear(3, 3, bias=False), det=1)
    average = AveragedModel(layer, use_buffers=True)
    for axis in range(3):
        half_turn = -torch.eye(3)
        half_turn[axis, axis] = 1
        layer.weight = half_turn
        average.update_parameters(layer)
    SO(3).check_point(average.module.weight.detach(), name="weight")


def folded(model: nn.Module) -> nn.Module:
    return isometry.fold(copy.deepcopy(model))


def test_a_moving_base_has_no_mean_of_coordinates():
    """If the base moves and the weight does not, the mean of coordinates is wrong.

    The mean of folded copies is right.
    """
    model = network(rebase_every=10)
    coordinates_of(model).data.normal_(std=0.3)
    W = weights(model)[1]
    naive, right = AveragedModel(model), AveragedModel(folded(model))
    for _ in range(2):
        naive.update_parameters(model)
        right.update_parameters(folded(model))
        isometry.rebase(model)
        assert_close(weights(model)[1], W, rtol=0, atol=1e-14)
    assert orthonormality(weights(naive.module)[1]) <= 1e-13
    assert torch.dist(weights(naive.module)[1], W) > 0.5
    assert_close(right.module[2].weight, W, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize(
    "policy", [{}, {"rebase_every": 3}, {"rebase_radius": 0.1}], ids=str
)
def test_the_mean_of_folded_copies_is_projected_once(policy, name):
    """The manual's recipe gives the point nearest to the mean of the weights."""
    model = network(**policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    average = AveragedModel(folded(model), **AVERAGES[name])
    seen, plain = [], []
    for _ in range(8):
        train(model, optimizer, 1)
        average.update_parameters(folded(model))
        seen.append(weights(model))
        plain.append(model[4].weight.detach().clone())
    final = copy.deepcopy(model)
    isometry.load_foreign(final, average.module.state_dict())
    for W, each in zip(weights(final), zip(*seen, strict=True), strict=True):
        expected = isometry.linalg.polar(mean(list(each), name))
        assert_close(W, expected, rtol=0, atol=1e-12)
        assert orthonormality(W) <= 1e-13
    assert_close(final[4].weight, mean(plain, name), rtol=0, atol=1e-12)
    # training goes on from there
    losses = train(final, torch.optim.Adam(final.parameters(), lr=0.02), 10)
    assert losses[-1] < losses[0]


def test_statistics_of_batches_leave_the_weight_alone():
    model = nn.Sequential(isometry.orthogonal(nn.Linear(4, 4)), nn.BatchNorm1d(4))
    average = AveragedModel(model)
    average.update_parameters(model)
    W = average.module[0].weight.detach().clone()
    update_bn([3 + torch.randn(16, 4) for _ in range(3)], average)
    assert average.module[1].running_mean.abs().sum() > 1
    assert torch.equal(average.module[0].weight, W)
