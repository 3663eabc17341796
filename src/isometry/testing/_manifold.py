"""The contract suite for groups and other manifolds."""

import torch

from isometry._declare import check_is_manifold
from isometry.groups import AbstractGroup, AbstractManifold
from isometry.testing import _algebra, _geometry, _points
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
    _points.velocities,
    _points.derivatives,
    _points.sampling,
    _points.batches,
)
_GROUP = (
    _algebra.batches,
    _algebra.algebra,
    _algebra.closed_forms,
    _algebra.multiplication,
    _algebra.connection,
    _algebra.torus,
)


def check_manifold(
    manifold: AbstractManifold,
    *,
    dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
) -> None:
    r"""Raise unless a group or manifold fulfils every contract of `isometry.groups`.

    Every manifold must fulfil these contracts:

    - Copies are equal and have equal hashes, as copies of a frozen dataclass do.
    - `contains` accepts samples and the origin, and rejects other arrays and NaN.
    - `dimension` is the dimension of the tangent spaces, and `project` projects onto
      them orthogonally.
    - `nearest` maps to the manifold along normals, and leaves points unchanged.
    - `inner` is symmetric, bilinear and positive.
    - $\langle \operatorname{grad} f, E \rangle$ is the derivative of $f$ along
      $\exp(Q, tE)$.
    - exp obeys Gauss's lemma, so it is the Riemannian exponential, and log inverts it.
    - `component` is constant along geodesics, and on all of a connected manifold.
    - Retractions agree with exp to first order, according to a fitted slope.
    - Transport is linear and gives tangent vectors.
    - The curvature agrees with small geodesic triangles.
    - `border_distance(Q, tE)` is $\pi$ at $t = 0$, and decreases linearly with $t$.
    - `point`, `coordinates` and `velocity` are consistent.
    - The gradients of every differentiable method, with respect to each argument, agree
      with finite differences.
    - Equal seeds give equal samples, and geodesic steps preserve the distribution.
    - A batch gives the same results as its points separately, and may be empty.

    A group must also fulfil these contracts:

    - `algebra` keeps the shape, and treats the matrices of a batch separately.
    - `algebra` is linear, its values are skew matrices, and they are closed under
      brackets.
    - If the group has a `rank`, the values of `torus` are in the algebra and commute.
    - `nearest`, and the methods of the algebra, agree with the defaults that use only
      `algebra`.
    - Products and inverses of points are points.
    - The metric and the distribution of samples are invariant under translations.
    - The connection is torsion-free and preserves the metric.
    - Every point of the identity component has a logarithm.

    Bounds on rounding errors are multiples of $n \varepsilon$. Slopes, gradients and
    finite differences are computed in double precision, even if `dtype` is a dtype of
    single precision. The check takes up to a few seconds for a small manifold, so
    choose small sizes.

    Args:
        manifold: an instance of your class.
        dtype: the dtype in which to check; float64 or complex128 by default.
        generator: source of random numbers; seeded with 0 by default. The checks are
            run on its device.

    Raises:
        TypeError: if `manifold` is not a manifold, or `dtype` is real and the manifold
            is complex, or the other way round.
        AssertionError: if a contract is broken. The message names the contract and what
            contradicts it, usually an error above its bound.
    """
    check_is_manifold(manifold, otherwise=", or of your own")
    if dtype is None:
        dtype = torch.complex128 if manifold.is_complex else torch.float64
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    case = Case(manifold, manifold.resolve_dtype(dtype), generator)
    # the contracts for the algebra come before the contracts for all manifolds, because
    # a wrong algebra breaks most of these too
    contracts = _GROUP if isinstance(manifold, AbstractGroup) else ()
    with generator.device:
        for contract in (_points.equality, *contracts, *_MANIFOLD):
            contract(case)
