"""What the training loop measures of recurrent matrices and their coordinates."""

import math

import pytest
import torch
from torch import nn

import isometry
from isometry.groups import SO, SU, Cayley, Exp, Householder, Product, Sp, Torus, U
from isometry.lab._train.spectrum import largest_angle
from isometry.parametrizations._holder import constrained


@pytest.mark.parametrize(
    "retraction", [Exp(), Exp(reach=3.0), Cayley(), Householder()], ids=repr
)
def test_every_exponential_has_a_largest_angle(retraction):
    """An exponential with a `reach` has a largest angle. It once had none.

    Other maps have none, whether they are retractions or not.
    """
    linear = isometry.orthogonal(nn.Linear(4, 4), retraction=retraction)
    angle = largest_angle(linear)
    assert (angle is not None) == isinstance(retraction, Exp)


# `Linear` weights on groups of 4 x 4 matrices; the last has two such matrices as blocks
WEIGHTS = [
    (SO(4), 4, 1),
    (U(4), 4, 1),
    (SU(4), 4, 1),
    (Torus(4), 4, 1),
    (Sp(2), 4, 1),
    (Product(SO(2), SO(2)), 4, 1),
    (SO(4), 8, 2),
]


@pytest.mark.parametrize(("manifold", "rows", "blocks"), WEIGHTS, ids=str)
def test_the_largest_angle_is_an_angle_of_the_lie_algebra(manifold, rows, blocks, rng):
    """The largest angle is pi minus the `border_distance` of `diagnose`.

    Coordinates are not skew matrices in every group. Their skew part once gave 3.154
    on Torus(4), where the angle was 1.164, and two blocks gave None.
    """
    dtype = torch.complex64 if manifold.is_complex else torch.float32
    linear = nn.Linear(4, rows, bias=False, dtype=dtype)
    isometry.constrain(linear, "weight", manifold, blocks=blocks)
    (entry,) = constrained(linear)
    with torch.no_grad():
        entry.coordinates.copy_(torch.randn(rows, 4, dtype=dtype, generator=rng))
    border = isometry.diagnose(linear)["weight"].border_distance
    assert border is not None
    assert largest_angle(linear) == pytest.approx(math.pi - border)


def test_coordinates_that_are_not_finite_have_no_largest_angle():
    """After a divergence the angle would be NaN, which JSON does not have."""
    linear = isometry.orthogonal(nn.Linear(4, 4))
    (entry,) = constrained(linear)
    with torch.no_grad():
        entry.coordinates[1, 0] = math.nan
    assert largest_angle(linear) is None
