"""Manifolds that are not connected: which points a geodesic joins."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from isometry.groups import SO, AbstractGroup, O, Product, Sphere
from isometry.linalg import skew


@pytest.mark.parametrize("manifold", [O(3), Product(O(2), SO(2)), Sphere(1)], ids=str)
@pytest.mark.errors
def test_no_geodesic_joins_components(manifold, rng):
    """Points in different components are joined by no geodesic.

    The error for O(n) used to speak of a `Q` with determinant -1, which neither point
    was, and so did the error for products with O(n). On Sphere(1) the logarithm was
    NaN.
    """
    Q = manifold.random(4, generator=rng)
    P = Q.clone()
    P[2, ..., 0] *= -1
    message = r"`P` must be in the component of `Q`; .* \(1 of 4 pairs\).*Negate"
    for method in (manifold.log, manifold.distance):
        with pytest.raises(ValueError, match=message):
            method(Q, P)


@dataclass(frozen=True)
class Reflections(AbstractGroup):
    """O(3) as a group of one's own, which says only that it is not connected."""

    is_complex = False
    is_connected = False

    @property
    def size(self) -> int:
        return 3

    def algebra(self, X: Tensor) -> Tensor:
        return skew(X)


@pytest.mark.errors
def test_the_determinant_tells_the_components_of_a_group_apart():
    Q, P = torch.eye(3), torch.diag(torch.tensor([1.0, 1.0, -1.0]))
    with pytest.raises(ValueError, match=r"component \[-1\.0\] for `P` and \[1\.0\]"):
        Reflections().log(Q, P)


@pytest.mark.errors
def test_no_geodesic_joins_products_with_two_reflections():
    """The determinant of the whole matrix is 1, although no geodesic joins the points.

    The error used to be about the determinant of a matrix that nobody passed.
    """
    Q = torch.eye(4).repeat(3, 1, 1)
    P = Q.clone()
    P[1] = torch.diag(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    P[2] = torch.diag(torch.tensor([1.0, 1.0, 1.0, -1.0]))
    group = Product(O(2), O(2))
    signs = [[1, 1], [-1, -1], [1, -1]]
    assert group.component(P).tolist() == signs
    message = (
        r"component \[-1\.0, -1\.0\] for `P` and \[1\.0, 1\.0\] .* \(2 of 3 pairs\)"
    )
    # a single point `Q`, for a batch of points `P`, is allowed as well
    for base in (Q, Q[0]):
        with pytest.raises(ValueError, match=message):
            group.log(base, P)
    # in a point with NaN the error is about the other points
    P[1] = math.nan
    with pytest.raises(
        ValueError, match=r"\[1\.0, -1\.0\] for `P` .* \(1 of 3 pairs\)"
    ):
        group.log(Q, P)


def test_no_geodesic_joins_the_numbers_one_and_minus_one_in_vmap():
    """Inside `vmap` no value can be tested, so the logarithm is NaN there."""
    Q, P = torch.ones(3, 1), torch.tensor([[1.0], [-1.0], [1.0]])
    E = torch.func.vmap(Sphere(1).log)(Q, P)
    assert E.isnan().flatten().tolist() == [False, True, False]
