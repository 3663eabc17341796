"""Contracts for derivatives: autograd agrees with finite differences."""

import torch
from torch import Tensor

from isometry.groups import AbstractGroup
from isometry.testing._case import Case, dot, norm
from isometry.testing._points import TensorMethod, methods

# The step of the fourth-order central differences, and the largest accepted error. The
# error is the difference between central differences and autograd. On the manifolds of
# tests/groups it is at most 4e-11, except where two angles are nearly equal. If a term
# of a derivative is missing, the error is 1e-3 or more.
_STEP, _BOUND = 2e-4, 1e-8

_ARGUMENTS = ("Q", "P", "X", "Y")


def derivatives(case: Case) -> None:
    """The gradient of each differentiable method is correct, for each argument.

    The points Q and P are near each other. log is also checked for equal points and, in
    a group, for points that are far apart.
    """
    wide = case.wide
    # Skip cases in single precision: finite differences are always computed in double
    # precision, so the check would be the same as for the case in double precision.
    if wide != case or case.manifold.dimension == 0:
        return
    M, Q = wide.manifold, wide.points(2)
    near = M.exp(Q, wide.tangent(Q, angle=1.2))
    table = dict(methods(M))
    for name, method in table.items():
        _check(wide, name, method, Q, near)
    _check(wide, "log", table["log"], Q, Q)
    _distance_to_itself(wide)
    if isinstance(M, AbstractGroup):
        # Here P is more than a half turn from Q. At such points, the logarithm of a
        # group such as SU(n) can differ from the principal logarithm.
        _check(wide, "log", table["log"], Q, M.exp(Q, wide.tangent(Q, angle=4.0)))


def _check(case: Case, name: str, method: TensorMethod, Q: Tensor, P: Tensor) -> None:
    """Compare autograd with finite differences along a curve in each argument."""
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


def _distance_to_itself(case: Case) -> None:
    """At equal points, where the distance has a kink, its gradient is set to 0."""
    M, Q = case.manifold, case.points(2)
    leaves = [Q.clone().requires_grad_() for _ in range(2)]
    for G in torch.autograd.grad(M.distance(*leaves).sum(), leaves):
        case.bound("distance", "have the gradient 0 at the point itself", norm(M, G), 0)


def _gradients(value: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradients with respect to all leaves; zero where autograd sees no dependence.

    If the value does depend on such a leaf, the comparison with differences fails.
    """
    if not value.requires_grad:
        return tuple(torch.zeros_like(X) for X in leaves)
    return torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)


def _sum(C: Tensor, value: Tensor) -> Tensor:
    return (C.conj() * value).real.sum()
