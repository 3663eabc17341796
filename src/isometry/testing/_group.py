"""The contract suite of groups and of their homogeneous spaces."""

import torch

from isometry.groups import AbstractGroup, AbstractManifold
from isometry.testing import _algebra, _derivatives, _geometry, _points
from isometry.testing._case import Case

_MANIFOLD = (
    _points.description,
    _points.membership,
    _geometry.tangent_space,
    _points.nearest,
    _geometry.metric,
    _geometry.differential,
    _geometry.geodesics,
    _geometry.logarithm,
    _geometry.retractions,
    _geometry.transport,
    _geometry.curvature,
    _geometry.border,
    _points.coordinates,
    _points.derivatives,
    _derivatives.derivatives,
    _points.sampling,
    _points.batches,
)
_GROUP = (
    _algebra.algebra,
    _algebra.closed_forms,
    _algebra.multiplication,
    _algebra.connection,
    _algebra.torus,
)


def check_group(
    manifold: AbstractManifold,
    *,
    dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
) -> None:
    r"""Raise unless a group or manifold keeps every contract of `isometry.groups`.

    Of any manifold: the dimension is that of the tangent spaces; projections are
    orthogonal; $\langle \operatorname{grad} f, E \rangle$ is the derivative of $f$
    along $\exp(Q, tE)$; exp obeys Gauss's lemma, so that it is the Riemannian one; log
    is its inverse; retractions agree with it to first order, by a fitted slope;
    curvature is that of small geodesic triangles; `point`, `coordinates` and
    `velocity` belong together; the gradient of every differentiable method is right in
    all of its arguments, by differences; samples are invariant under geodesic steps;
    batches are points one by one, and may be empty.

    Of a group, too: the algebra is closed under brackets; everything that has a closed
    form agrees with what follows from `algebra` alone; metric and samples are
    invariant under translations; the connection is free of torsion and metric; every
    point has a logarithm.

    Bounds are multiples of $n \varepsilon$. Slopes and differences are taken in double
    precision. It costs some seconds for small sizes, which are those to check.

    Args:
        manifold: an instance of your class.
        dtype: the precision to check; the double one of its field by default.
        generator: source of random numbers; seeded with 0 by default.

    Raises:
        AssertionError: if a contract is broken: which one, by how much, and the bound.
    """
    if dtype is None:
        dtype = torch.complex128 if manifold.is_complex else torch.float64
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    case = Case(manifold, manifold.dtype(dtype), generator)
    # a wrong algebra explains most of what else is wrong
    contracts = (
        (*_GROUP, *_MANIFOLD) if isinstance(manifold, AbstractGroup) else _MANIFOLD
    )
    for contract in contracts:
        contract(case)
