"""Contracts of derivatives: autograd agrees with differences, in every argument."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from isometry.groups import (
    AbstractGroup,
    AbstractManifold,
    AbstractRetraction,
    Cayley,
)
from isometry.testing._case import Case, dot, norm
from isometry.testing._points import retractions

# Step of the central differences of fourth order, and the bound of their error. On the
# manifolds of tests/groups the error is 4e-11, and more where two angles nearly cross.
# A missing term makes an error of 1e-3 or more
_STEP, _BOUND = 2e-4, 1e-8

#: a method as a function of two points and of two matrices or vectors of their shape
Method = Callable[..., Tensor]
_ARGUMENTS = ("Q", "P", "X", "Y")


def derivatives(case: Case) -> None:
    """Every differentiable method has the right derivative in all of its arguments.

    The points are near each other. For log, they are also equal and, in a group, far
    apart.
    """
    wide = case.wide
    # differences need double precision, so a check in single precision adds nothing
    if wide != case or case.manifold.dimension == 0:
        return
    M, Q = wide.manifold, wide.points(2)
    near = M.exp(Q, wide.tangent(Q, angle=1.2))
    for name, method in _methods(M):
        _check(wide, name, method, Q, near)
    _check(wide, "log", _log(M), Q, Q)
    _distance_to_itself(wide)
    if isinstance(M, AbstractGroup):
        # beyond a half turn, where the logarithm need not be the principal one
        _check(wide, "log", _log(M), Q, M.exp(Q, wide.tangent(Q, angle=4.0)))


def _check(case: Case, name: str, method: Method, Q: Tensor, P: Tensor) -> None:
    """Compare the derivatives of one method along a random curve for each argument."""
    M = case.manifold
    inputs = [Q, P, case.ambient(len(Q)), case.ambient(len(Q))]
    directions = [case.tangent(Q, angle=1.0), case.tangent(P, angle=1.0)]
    directions += [case.ambient(len(Q)), case.ambient(len(Q))]
    leaves = [X.clone().requires_grad_() for X in inputs]
    value = method(*leaves)
    C = torch.randn(value.shape, dtype=value.dtype, generator=case.generator)
    gradients = _gradients(_sum(C, value), leaves)
    for i, argument in enumerate(_ARGUMENTS):

        def moved(t: float, i: int = i) -> Tensor:
            # points along geodesics, so that they stay on the manifold
            step = t * directions[i]
            at = M.exp(inputs[i], step) if i < 2 else inputs[i] + step
            arguments = [*inputs]
            arguments[i] = at
            return _sum(C, method(*arguments))

        inner, outer = (moved(h) - moved(-h) for h in (_STEP, 2 * _STEP))
        difference = (8 * inner - outer) / (12 * _STEP)
        analytic = dot(M, gradients[i], directions[i]).sum()
        # at a distance d from a fold of exp, the first derivative of log grows like
        # 1 / d, and the second like 1 / d^3
        scale = max(1.0, float(norm(M, gradients[i]).max())) ** 3
        must = f"have the right gradient in `{argument}`"
        case.bound(name, must, difference - analytic, _BOUND * scale)


def _distance_to_itself(case: Case) -> None:
    """The gradient of the distance is 0 at the point itself, where it has a kink."""
    M, Q = case.manifold, case.points(2)
    leaves = [Q.clone().requires_grad_() for _ in range(2)]
    for G in torch.autograd.grad(M.distance(*leaves).sum(), leaves):
        case.bound("distance", "have the gradient 0 at the point itself", norm(M, G), 0)


def _gradients(value: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradients, with zero where autograd sees no dependence.

    If there is one, the comparison with differences fails.
    """
    if not value.requires_grad:
        return tuple(torch.zeros_like(X) for X in leaves)
    return torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)


def _sum(C: Tensor, value: Tensor) -> Tensor:
    return (C.conj() * value).real.sum()


def _log(M: AbstractManifold) -> Method:
    return lambda Q, P, _X, _Y: M.log(Q, P)


def _methods(M: AbstractManifold) -> Iterator[tuple[str, Method]]:
    """All methods that are smooth functions of their arguments, by name."""
    tangent = M.project
    yield "log", _log(M)
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
    yield "nearest", lambda Q, _P, _X, _Y: M.nearest(Q)
    yield "polish", lambda Q, _P, _X, _Y: M.polish(Q)
    yield "defect", lambda Q, _P, X, _Y: M.defect(Q + 0.1 * X)
    for phi in retractions(M):
        yield f"retract({phi.name})", _retract(M, phi)
        yield f"point({phi.name})", _point(M, phi)
    if isinstance(Cayley(), M.maps) and isinstance(M, AbstractGroup):
        yield "coordinates(cayley)", lambda Q, P, _X, _Y: M.coordinates(P, Q, Cayley())


def _retract(M: AbstractManifold, phi: AbstractRetraction) -> Method:
    return lambda Q, _P, X, _Y: M.retract(Q, M.project(Q, X), phi)


def _point(M: AbstractManifold, phi: AbstractRetraction) -> Method:
    return lambda Q, _P, X, _Y: M.point(X, Q, phi)
