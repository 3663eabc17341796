"""Contracts for points: membership, samples, coordinates, batches, derivatives."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from isometry.groups import AbstractGroup, AbstractManifold, AbstractRetraction, Pade
from isometry.groups._ambient import ambient_basis, flat
from isometry.groups._maps import KNOWN
from isometry.testing._case import Case, dot, norm

# the number of samples for a comparison of moments
_DRAWS = 2000
# The largest accepted z-score of a moment. If the distributions are equal, a z-score
# exceeds 6 with probability 2e-9.
_Z = 6.0

# the step of the fourth-order central differences
_STEP = 2e-4
# Central differences and autograd may differ by up to this number. On the manifolds of
# tests/groups they differ by at most 4e-11, except where two angles are nearly equal.
# If a term of a derivative is missing, they differ by 1e-3 or more.
_BOUND = 1e-8

_ARGUMENTS = ("Q", "P", "X", "Y")

#: a method, written as a function of two points and two arrays of the same shape as the
#: points
TensorMethod = Callable[..., Tensor]


def maps_of(manifold: AbstractManifold) -> list[AbstractRetraction]:
    """This package's retractions that a manifold supports; of Pade, degrees 1 to 3."""
    ours = [phi for phi in KNOWN.values() if isinstance(phi, AbstractRetraction)]
    candidates = [*ours, Pade(2), Pade(3)]
    return [phi for phi in candidates if isinstance(phi, manifold.maps)]


def equality(case: Case) -> None:
    """Copies are equal, with equal hashes."""
    M = case.manifold
    duplicate = copy.deepcopy(M)
    # a dataclass that is not frozen has no hash
    if duplicate != M or type(M).__hash__ is None or hash(duplicate) != hash(M):
        must = "hold between copies, with equal hashes"
        case.fail("__eq__", must, "it does not: make the class a frozen dataclass")


def description(case: Case) -> None:
    """`maps` contains the exponential, and `dimension` is the rank of `project`."""
    M = case.manifold
    if not isinstance(KNOWN["exp"], M.maps):
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
    """Raise unless the samples `Q` and `moved` have the same distribution.

    The first and second moments of eight random linear functionals are compared.
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
    must = "end on the manifold"
    for where, Y in (("", X), (", from far away", case.ambient(3))):
        P = M.nearest(Y)
        case.bound("nearest", must + where, M.defect(P), M.tolerance(case.dtype))
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

    wide.order("nearest", "move along normals", tangential)
    wide.order("polish", "square the distance", polished)


def coordinates(case: Case) -> None:
    """`point` and `coordinates` are inverses, and the default base is the origin."""
    M, B = case.manifold, case.points(3)
    P = M.exp(B, case.tangent(B, angle=1.0))
    zero = torch.zeros_like(B)
    for phi in maps_of(M):
        case.zero("point", f"be the base at 0 ({phi.name})", M.point(zero, B, phi) - B)
        try:
            X = M.coordinates(P, B, phi)
        except ValueError:
            if phi.is_exponential:
                raise
            # the map has no inverse, or does not reach P
            continue
        back = M.point(X, B, phi)
        must = f"reach the point by its coordinates ({phi.name})"
        case.zero("point", must, back - P, scale=3)
        gap = M.coordinates(back, B, phi) - X
        case.zero("coordinates", f"undo `point` ({phi.name})", gap, scale=3)
    X = M.velocity(B, case.tangent(B, angle=1.0))
    gap = M.point(X, None) - M.point(X, M.origin(3, dtype=case.dtype))
    case.zero("point", "start from the origin if there is no base", gap)


def velocities(case: Case) -> None:
    """`velocity` inverts the derivative of `point` at zero coordinates."""
    wide = case.wide
    M, B = wide.manifold, wide.points(1)
    E = wide.tangent(B, angle=1.0)
    V = M.velocity(B, E)
    for phi in maps_of(M):

        def error(t: float, phi: AbstractRetraction = phi) -> Tensor:
            return norm(M, M.point(t * V, B, phi) - B - t * E)

        wide.order("velocity", f"be the derivative at 0 ({phi.name})", error)


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
    # T(Q, X) is the tangent part of X
    T = M.project
    yield "log", lambda Q, P, _X, _Y: M.log(Q, P)
    yield "distance", lambda Q, P, _X, _Y: M.distance(Q, P)
    yield "coordinates", lambda Q, P, _X, _Y: M.coordinates(P, Q)
    yield "project", lambda Q, _P, X, _Y: M.project(Q, X)
    yield "inner", lambda Q, _P, X, Y: M.inner(Q, T(Q, X), T(Q, Y))
    yield "gradient", lambda Q, _P, X, _Y: M.gradient(Q, X)
    yield "exp", lambda Q, _P, X, _Y: M.exp(Q, T(Q, X))
    yield "transport", lambda Q, P, X, _Y: M.transport(Q, P, T(Q, X))
    yield "velocity", lambda Q, _P, X, _Y: M.velocity(Q, T(Q, X))
    yield "border_distance", lambda Q, _P, X, _Y: M.border_distance(Q, T(Q, X))
    if M.dimension > 1:
        yield "curvature", lambda Q, _P, X, Y: M.curvature(Q, T(Q, X), T(Q, Y))
    yield "nearest", lambda Q, _P, X, _Y: M.nearest(Q + 0.1 * X)
    yield "nearest of a point", lambda Q, _P, _X, _Y: M.nearest(Q)
    yield "polish", lambda Q, _P, _X, _Y: M.polish(Q)
    yield "defect", lambda Q, _P, X, _Y: M.defect(Q + 0.1 * X)
    for phi in maps_of(M):
        name = phi.name
        yield (
            f"retract({name})",
            lambda Q, _P, X, _Y, phi=phi: M.retract(Q, T(Q, X), phi),
        )
        yield f"point({name})", lambda Q, _P, X, _Y, phi=phi: M.point(X, Q, phi)
    if isinstance(KNOWN["cayley"], M.maps) and isinstance(M, AbstractGroup):
        yield "coordinates(cayley)", lambda Q, P, _X, _Y: M.coordinates(P, Q, "cayley")


def derivatives(case: Case) -> None:
    """The gradient of each differentiable method is correct, for each argument.

    The points Q and P are near each other. log is also checked for equal points and, in
    a group, for points that are far apart. Everything is computed in double precision,
    which finite differences need, whatever the dtype of the case.
    """
    wide = case.wide
    if case.manifold.dimension == 0:
        return
    M, Q = wide.manifold, wide.points(2)
    near = M.exp(Q, wide.tangent(Q, angle=1.2))
    table = dict(methods(M))
    X, Y = wide.ambient(2), wide.ambient(2)
    for name, method in table.items():
        _check(wide, name, method, [Q, near, X, Y])
        # at zero coordinates, formulas such as sin(t) / t need their limits
        if name.startswith("point"):
            _check(wide, name, method, [Q, near, 0 * X, Y])
    _check(wide, "log", table["log"], [Q, Q, X, Y])
    # the distance has a kink at equal points, where its gradient is defined as 0
    leaves = [Q.clone().requires_grad_() for _ in range(2)]
    for G in torch.autograd.grad(M.distance(*leaves).sum(), leaves):
        wide.bound("distance", "have the gradient 0 at the point itself", norm(M, G), 0)
    if isinstance(M, AbstractGroup):
        # Here P is more than a half turn from Q. At such points, the logarithm of a
        # group such as SU(n) can differ from the principal logarithm.
        far = M.exp(Q, wide.tangent(Q, angle=4.0))
        _check(wide, "log", table["log"], [Q, far, X, Y])


def _check(case: Case, name: str, method: TensorMethod, inputs: list[Tensor]) -> None:
    """Compare autograd with finite differences along a curve in each argument."""
    M = case.manifold
    directions = [case.tangent(Q, angle=1.0) for Q in inputs[:2]]
    directions += [case.ambient(len(X)) for X in inputs[2:]]
    leaves = [X.clone().requires_grad_() for X in inputs]
    value = method(*leaves)
    C = torch.randn(value.shape, dtype=value.dtype, generator=case.generator)
    # If autograd sees no dependence on an argument, it returns None, which becomes a
    # gradient of zero. If the value does depend on the argument, the comparison fails.
    gradients: Sequence[Tensor] = [torch.zeros_like(X) for X in leaves]
    if value.requires_grad:
        gradients = torch.autograd.grad(
            _sum(C, value), leaves, allow_unused=True, materialize_grads=True
        )
    for i, argument in enumerate(_ARGUMENTS):

        def moved(t: float, i: int = i) -> Tensor:
            # points move along geodesics, so that they stay on the manifold
            step = t * directions[i]
            arguments = [*inputs]
            arguments[i] = M.exp(inputs[i], step) if i < 2 else inputs[i] + step
            return _sum(C, method(*arguments))

        inner, outer = (moved(h) - moved(-h) for h in (_STEP, 2 * _STEP))
        difference = (8 * inner - outer) / (12 * _STEP)
        analytic = dot(M, gradients[i], directions[i]).sum()
        # At a distance d from a point where the derivative of exp is singular, the
        # first derivative of log is of order 1 / d. Higher derivatives, which cause the
        # error of the finite differences, grow faster: the second like 1 / d^3. So the
        # bound grows with the cube of the gradient.
        scale = max(1.0, float(norm(M, gradients[i]).max())) ** 3
        must = f"have the right gradient with respect to `{argument}`"
        case.bound(name, must, difference - analytic, _BOUND * scale)


def _sum(C: Tensor, value: Tensor) -> Tensor:
    return (C.conj() * value).real.sum()
