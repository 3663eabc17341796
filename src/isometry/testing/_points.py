"""Contracts for points of a manifold: membership, samples, coordinates, batches."""

import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from isometry.groups import (
    QR,
    AbstractGroup,
    AbstractManifold,
    AbstractRetraction,
    Cayley,
    Exp,
    Pade,
    Polar,
)
from isometry.groups._derived import ambient_basis, flat
from isometry.testing._case import Case, dot, norm

# The number of samples for a comparison of moments, and the largest accepted z-score.
# If the distributions are equal, a z-score exceeds 6 with probability 2e-9.
_DRAWS, _Z = 2000, 6.0

#: a method, written as a function of two points and two arrays of the same shape as the
#: points
TensorMethod = Callable[..., Tensor]


def maps_of(manifold: AbstractManifold) -> list[AbstractRetraction]:
    """Our retractions that a manifold supports, with Pade of degrees 1 to 3."""
    candidates = [Exp(), Cayley(), Polar(), QR(), Pade(1), Pade(2), Pade(3)]
    return [phi for phi in candidates if isinstance(phi, manifold.maps)]


def equality(case: Case) -> None:
    """Copies are equal, with equal hashes."""
    M, other = case.manifold, copy.deepcopy(case.manifold)
    # a dataclass that is not frozen has no hash
    if other != M or type(M).__hash__ is None or hash(other) != hash(M):
        must = "hold between copies, with equal hashes"
        case.fail("__eq__", must, "it does not: make the class a frozen dataclass")


def description(case: Case) -> None:
    """`maps` contains the exponential, and `dimension` is the rank of `project`."""
    M = case.manifold
    if not isinstance(Exp(), M.maps):
        case.fail("maps", "contain `Exp`", f"they are {M.maps}")
    X = ambient_basis(M)
    rows = flat(M.project(case.wide.points().expand_as(X), X), M)
    rank = int((torch.linalg.svdvals(rows) > 0.5).sum()) if X.numel() else 0
    if rank != M.dimension:
        facts = f"it is {M.dimension}, and `project` has rank {rank}"
        case.fail("dimension", "be the dimension of the tangent spaces", facts)


def membership(case: Case) -> None:
    """`contains` accepts samples and the origin, and rejects other arrays and NaN."""
    M = case.manifold
    Q = torch.cat([case.points(4), M.origin(1, dtype=case.dtype)])
    case.bound("defect", "vanish on points", M.defect(Q), M.tolerance(case.dtype))
    if not M.contains(Q).all():
        case.fail("contains", "be true for `random` and `origin`", "it is false")
    if Q.numel() == 0:
        return
    bad = Q + 0.1 * case.ambient(5)
    for X in (bad, torch.full_like(Q, math.nan), torch.full_like(Q, math.inf)):
        if M.contains(X).any():
            case.fail("contains", "be false off the manifold", "it is true")


def sampling(case: Case) -> None:
    """Equal seeds give equal samples, and geodesic steps preserve the distribution."""
    M, rng = case.manifold, case.generator
    state = rng.get_state()
    Q = case.points(_DRAWS)
    rng.set_state(state)
    case.bound("random", "repeat itself for a seed", (Q - case.points(_DRAWS)).abs(), 0)
    # on a connected manifold, long geodesic steps change every distribution except the
    # uniform one
    X = torch.randn(Q.shape, dtype=case.dtype, generator=rng)
    moved = M.exp(Q, math.pi * M.project(Q, X))
    same_law(case, Q, moved, "be uniform: invariant under random geodesic steps")


def same_law(case: Case, Q: Tensor, moved: Tensor, must: str) -> None:
    """The samples `Q` and `moved` agree in their first and second moments.

    The moments of eight random linear functionals are compared.
    """
    for C in case.ambient(8):
        for power in (1, 2):
            here, there = (dot(case.manifold, C, P) ** power for P in (Q, moved))
            gap = here - there
            deviation = (gap.std() / math.sqrt(len(gap))).clamp(min=case.unit)
            case.bound("random", must, gap.mean() / deviation, _Z)


def nearest(case: Case) -> None:
    """`nearest` maps to the manifold along normals, and leaves its points unchanged."""
    M, Q = case.manifold, case.points(3)
    X = Q + 0.1 * case.ambient(3)
    for far, P in ((0, M.nearest(X)), (1, M.nearest(case.ambient(3)))):
        must = "end on the manifold" + (", from far away" if far else "")
        case.bound("nearest", must, M.defect(P), M.tolerance(case.dtype))
        case.zero("nearest", "be idempotent", M.nearest(P) - P)
    case.zero("nearest", "leave points alone", M.nearest(Q) - Q)
    case.zero("polish", "leave points alone", M.polish(Q) - Q)
    wide = case.wide
    Q, N = wide.points(3), wide.ambient(3)

    def tangential(t: float) -> Tensor:
        P = M.nearest(Q + t * N)
        return norm(M, M.project(P, Q + t * N - P))

    def polished(t: float) -> Tensor:
        return M.defect(M.polish(Q + t * N))

    wide.order("nearest", "move along normals", tangential, largest=0.1)
    wide.order("polish", "square the distance", polished, largest=0.1)


def coordinates(case: Case) -> None:
    """`point` and `coordinates` are inverses, and the default base is the origin."""
    M, B = case.manifold, case.points(3)
    P = M.exp(B, case.tangent(B, angle=1.0))
    zero = torch.zeros_like(B)
    for phi in maps_of(M):
        must = f"be the base at 0 ({phi.name})"
        case.zero("point", must, M.point(zero, B, phi) - B)
        X = _coordinates_or_none(M, P, B, phi)
        if X is None:
            continue
        back = M.point(X, B, phi)
        must = f"reach the point by its coordinates ({phi.name})"
        case.zero("point", must, back - P, scale=3)
        gap = M.coordinates(back, B, phi) - X
        case.zero("coordinates", f"undo `point` ({phi.name})", gap, scale=3)
    X = M.velocity(B, case.tangent(B, angle=1.0))
    origin = M.origin(3, dtype=case.dtype)
    gap = M.point(X, None) - M.point(X, origin)
    case.zero("point", "start from the origin if there is no base", gap)


def _coordinates_or_none(
    M: AbstractManifold, P: Tensor, B: Tensor, retraction: AbstractRetraction
) -> Tensor | None:
    """Coordinates of `P`; None if the map is not exp and has no inverse at `P`."""
    try:
        return M.coordinates(P, B, retraction)
    except ValueError:
        if retraction.is_exponential:
            raise
        return None


def velocities(case: Case) -> None:
    """`velocity` inverts the derivative of `point` at 0; `point` passes gradcheck."""
    wide = case.wide
    M, B = wide.manifold, wide.points(1)
    E = wide.tangent(B, angle=1.0)
    V = M.velocity(B, E)
    for phi in maps_of(M):

        def error(t: float, phi: AbstractRetraction = phi) -> Tensor:
            return norm(M, M.point(t * V, B, phi) - B - t * E)

        wide.order("velocity", f"be the derivative at 0 ({phi.name})", error)
        for X in (torch.zeros_like(B), wide.ambient(1)):
            must = f"have the right gradient ({phi.name})"
            wide.gradient("point", must, lambda X, phi=phi: M.point(X, B, phi), X)


def batches(case: Case) -> None:
    """A batch gives the same results as its points separately, and may be empty."""
    M = case.manifold
    for method, f in methods(M):
        Q = case.points(2, 2)
        E, F = case.tangent(Q, angle=0.5), case.tangent(Q, angle=0.5)
        # make F orthogonal to E: the curvature loses digits if they are nearly parallel
        if M.dimension > 1:
            F = F - case.times(M.inner(Q, E, F) / M.inner(Q, E, E), E)
        inputs = (Q, M.exp(Q, E), E, F)
        batched = f(*inputs)
        each = [f(*(X[i, j] for X in inputs)) for i in range(2) for j in range(2)]
        want = torch.stack(each).reshape(batched.shape)
        case.require(method, "take batches", (batched.to(want.dtype) - want).abs())
        if batched.dtype not in (case.dtype, want.real.dtype, torch.bool):
            case.fail(method, "keep the dtype", f"it is {batched.dtype}")
        none = f(*(X[:0] for X in inputs))
        if none.shape != (0, 2, *batched.shape[2:]):
            facts = f"the shape is {tuple(none.shape)}"
            case.fail(method, "take empty batches", facts)


def methods(M: AbstractManifold) -> Iterator[tuple[str, TensorMethod]]:
    """The name of each differentiable method, with the method as a `TensorMethod`."""
    tangent = M.project
    yield "log", lambda Q, P, _X, _Y: M.log(Q, P)
    yield "distance", lambda Q, P, _X, _Y: M.distance(Q, P)
    yield "coordinates", lambda Q, P, _X, _Y: M.coordinates(P, Q)
    yield "project", lambda Q, _P, X, _Y: M.project(Q, X)
    yield "inner", lambda Q, _P, X, Y: M.inner(Q, tangent(Q, X), tangent(Q, Y))
    yield "gradient", lambda Q, _P, X, _Y: M.gradient(Q, X)
    yield "exp", lambda Q, _P, X, _Y: M.exp(Q, tangent(Q, X))
    yield "transport", lambda Q, P, X, _Y: M.transport(Q, P, tangent(Q, X))
    yield "velocity", lambda Q, _P, X, _Y: M.velocity(Q, tangent(Q, X))
    yield "border_distance", lambda Q, _P, X, _Y: M.border_distance(Q, tangent(Q, X))
    if M.dimension > 1:
        yield (
            "curvature",
            lambda Q, _P, X, Y: M.curvature(Q, tangent(Q, X), tangent(Q, Y)),
        )
    yield "nearest", lambda Q, _P, X, _Y: M.nearest(Q + 0.1 * X)
    yield "nearest of a point", lambda Q, _P, _X, _Y: M.nearest(Q)
    yield "polish", lambda Q, _P, _X, _Y: M.polish(Q)
    yield "defect", lambda Q, _P, X, _Y: M.defect(Q + 0.1 * X)
    for phi in maps_of(M):
        yield (
            f"retract({phi.name})",
            lambda Q, _P, X, _Y, phi=phi: M.retract(Q, tangent(Q, X), phi),
        )
        yield f"point({phi.name})", lambda Q, _P, X, _Y, phi=phi: M.point(X, Q, phi)
    if isinstance(Cayley(), M.maps) and isinstance(M, AbstractGroup):
        yield "coordinates(cayley)", lambda Q, P, _X, _Y: M.coordinates(P, Q, Cayley())
