"""Compiled functions in forward mode, where an operator would drop the tangent.

If a custom operator drops a tangent, torch puts zero in its place without a warning.
"""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import jvp
from torch.testing import assert_close

from isometry.groups import Exp
from isometry.linalg import expm_skew
from tests.helpers import random_skew
from tests.linalg.registry import ROWS

rotation = Exp().around

# functions that are operators in a graph, or autograd functions without forward mode
NAMES = (
    "expm_skew",
    "expm_skew, eigh",
    "expm_skew_frechet",
    "expm_skew_adjoint",
    "expm_tall",
    "logm_unitary",
    "pade, auto",
    "polar",
)
pytestmark = pytest.mark.usefixtures("no_shape_hook")


def assert_compiled_tangent(f, X, E):
    torch._dynamo.reset()

    def push(X, E):
        return jvp(f, (X,), (E,))[1]

    assert_close(torch.compile(push, backend="eager")(X, E), push(X, E))


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in NAMES], ids=str)
def test_a_compiled_jvp_is_the_one_of_eager_mode(row, rng):
    """A compiled jvp agrees with eager mode.

    It used to be zero for `expm_skew`, `expm_tall` and `pade` with squarings.
    """
    # two separate tensors: for views, Dynamo of torch 2.13 fails in forward mode
    X, E = (row.free(2, dtype=torch.float64, rng=rng) for _ in range(2))
    assert_compiled_tangent(row.on_free, X, E)


def test_a_compiled_jvp_of_a_weight(rng):
    """A compiled jvp of a layer's weight, which is one operator from n = 32 on."""
    X, E, B = torch.randn(3, 32, 32, dtype=torch.float64, generator=rng).unbind()
    assert_compiled_tangent(lambda X: rotation(X, B), X, E)


def test_a_graph_without_tangents_is_not_used_in_forward_mode(rng):
    """A function compiled outside of forward mode is right inside of it."""
    torch._dynamo.reset()
    A, E = (random_skew(4, norm=1.0, dtype=torch.float64, rng=rng) for _ in range(2))
    compiled = torch.compile(expm_skew, backend="eager")
    compiled(A)
    with forward_ad.dual_level():
        Q = compiled(forward_ad.make_dual(A, E))
        tangent = forward_ad.unpack_dual(Q).tangent
    assert_close(tangent, jvp(expm_skew, (A,), (E,))[1])
