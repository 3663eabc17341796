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

    For any manifold: `dimension` is the dimension of the tangent spaces; projections
    are orthogonal; $\langle \operatorname{grad} f, E \rangle$ is the derivative of $f$
    along $\exp(Q, tE)$; exp obeys Gauss's lemma, so it is the Riemannian exponential;
    log is its inverse; retractions agree with it to first order, by a fitted slope; the
    curvature agrees with small geodesic triangles; `point`, `coordinates` and
    `velocity` fit together; the gradient of every differentiable method is right in all
    of its arguments, by differences; samples are invariant under geodesic steps; a
    batch gives the same results as its points one by one, and may be empty.

    For a group, also: the algebra is closed under brackets; every closed form agrees
    with the default that uses only `algebra`; metric and samples are invariant under
    translations; the connection is torsion-free and metric; every point has a
    logarithm.

    Bounds are multiples of $n \varepsilon$. Slopes and differences are computed in
    double precision. The check takes some seconds for small sizes; use these.

    Args:
        manifold: an instance of your class.
        dtype: the precision to check; float64 or complex128 by default.
        generator: source of random numbers; seeded with 0 by default.

    Raises:
        AssertionError: if a contract is broken. The message names the contract, the
            error and its bound.
    """
    if dtype is None:
        dtype = torch.complex128 if manifold.is_complex else torch.float64
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    case = Case(manifold, manifold.dtype(dtype), generator)
    # the algebra first, because a wrong algebra breaks most other contracts too
    contracts = (
        (*_GROUP, *_MANIFOLD) if isinstance(manifold, AbstractGroup) else _MANIFOLD
    )
    for contract in contracts:
        contract(case)
