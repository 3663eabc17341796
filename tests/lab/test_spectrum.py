"""What the training loop measures of recurrent matrices and their coordinates."""

import pytest
from torch import nn

import isometry
from isometry.groups import Cayley, Exp, Householder
from isometry.lab._train.spectrum import largest_angle


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
