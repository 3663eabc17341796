"""Contracts for groups: the Lie algebra, and the methods that follow from it."""

import torch
from torch import Tensor

from isometry.groups import AbstractGroup
from isometry.groups._derived import basis
from isometry.linalg import expm_skew
from isometry.testing._case import Case, dot, norm
from isometry.testing._points import same_law


def _group(case: Case) -> AbstractGroup:
    assert isinstance(case.manifold, AbstractGroup)
    return case.manifold


def bracket(A: Tensor, B: Tensor) -> Tensor:
    """The commutator [A, B]."""
    return A @ B - B @ A


def batches(case: Case) -> None:
    """`algebra` keeps the shape, and treats the matrices of a batch separately."""
    G = _group(case)
    n = G.size
    must = f"map X of shape (*batch, {n}, {n}) to matrices of the same shape"
    # In no batch does the last axis have length n. If it did, an `algebra` that
    # mistakes this axis for a matrix axis could still return the right shape.
    for batch in ((), (n + 1,), (2, n + 2)):
        X = case.ambient(*batch)
        try:
            shape = tuple(G.algebra(X).shape)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            case.fail("algebra", must, f"{tuple(X.shape)} raises {error!r}")
        else:
            if shape != tuple(X.shape):
                case.fail("algebra", must, f"{tuple(X.shape)} gives {shape}")
    X = case.ambient(n + 1)
    alone = torch.stack([G.algebra(x) for x in X])
    must = "map each matrix of a batch as if it were alone"
    case.zero("algebra", must, G.algebra(X) - alone)


def algebra(case: Case) -> None:
    """`algebra` is linear, and its values form a Lie algebra of skew matrices."""
    G = _group(case)
    X, Y = case.ambient(3), case.ambient(3)
    A, B = G.algebra(X), G.algebra(Y)
    case.zero("algebra", "be linear", G.algebra(2 * X - Y) - 2 * A + B, scale=3)
    case.zero("algebra", "be skew", A + A.mH)
    rank = len(basis(G)[0])
    if rank != G.dimension:
        facts = f"it is {G.dimension}, the rank is {rank}"
        case.fail("dimension", "be the rank of `algebra`", facts)
    C = bracket(A, B)
    gap = C - AbstractGroup.algebra_projection(G, C)
    case.zero("algebra", "be closed under brackets", gap)


def closed_forms(case: Case) -> None:
    """A group's own formulas agree with the defaults, which use only `algebra`.

    Two formulas for `nearest` need to agree only to first order: at a distance t from
    the group, their results may differ by a multiple of t^2.
    """
    G, X = _group(case), case.ambient(3)
    A = G.algebra(X)
    gap = G.algebra_projection(X) - AbstractGroup.algebra_projection(G, X)
    must = "be the projection onto the values of `algebra`"
    case.zero("algebra_projection", must, gap)
    C = G.algebra_coordinates(A)
    case.zero("algebra_coordinates", "be undone by `algebra`", G.algebra(C) - A)
    gap = C - AbstractGroup.algebra_coordinates(G, A)
    case.zero("algebra_coordinates", "be the coordinates of least norm", gap)
    Q = expm_skew(case.tangent(G.origin(3, dtype=case.dtype), angle=1.5))
    gap = G.algebra_log(Q) - AbstractGroup.algebra_log(G, Q)
    must = "be the principal logarithm if all angles are below pi"
    case.zero("algebra_log", must, gap, scale=3)
    wide = case.wide
    # points of the identity component, because the algebra describes no other component
    Q = expm_skew(wide.tangent(G.origin(3, dtype=wide.dtype), angle=2.0))
    N = wide.ambient(3)

    def difference(t: float) -> Tensor:
        X = Q + t * N
        return norm(G, G.nearest(X) - AbstractGroup.nearest(G, X))

    must = "agree with the default that uses only `algebra`"
    wide.order("nearest", must, difference)


def multiplication(case: Case) -> None:
    """Products and inverses of points are points.

    The metric and the distribution of samples are invariant under translations.
    """
    G, Q, P = _group(case), case.points(3), case.points(3)
    for what, R in (("products", Q @ P), ("inverses", Q.mH)):
        must = f"be small for {what} of points"
        case.bound("defect", must, G.defect(R), G.tolerance(case.dtype))
    E, F = case.tangent(Q, angle=1.0), case.tangent(Q, angle=1.0)
    for side, move in (("left", lambda X: P @ X), ("right", lambda X: X @ P)):
        gap = G.inner(move(Q), move(E), move(F)) - G.inner(Q, E, F)
        case.require("inner", "be bi-invariant", gap, scale=3)
        gap = G.project(move(Q), move(E)) - move(E)
        case.zero("project", f"commute with {side} translations", gap, scale=3)
    Q = case.points(2000)
    for moved in (P[0] @ Q, Q @ P[0]):
        must = "sample the Haar measure, which is invariant under translations"
        same_law(case, Q, moved, must)


def connection(case: Case) -> None:
    """The connection of left-invariant fields is torsion-free and preserves the metric.

    It is torsion-free if nabla_X Y - nabla_Y X = [X, Y], and preserves the metric if
    <nabla_X Y, Z> + <Y, nabla_X Z> = 0. Only one connection has both properties.
    """
    G = _group(case)
    X, Y, Z = (G.algebra(case.ambient(3)) for _ in range(3))
    torsion = G.connection(X, Y) - G.connection(Y, X) - bracket(X, Y)
    case.zero("connection", "be free of torsion", torsion)
    change = dot(G, G.connection(X, Y), Z) + dot(G, Y, G.connection(X, Z))
    case.require("connection", "preserve the metric", change)


def torus(case: Case) -> None:
    """If a group has a `rank`, the values of `torus` are in the algebra and commute."""
    G = _group(case)
    if G.rank is None:
        return
    theta = torch.randn(2, G.rank, dtype=torch.float64, generator=case.generator)
    A, B = G.torus(theta.to(case.dtype.to_real())).to(case.dtype)
    case.zero("torus", "be in the algebra", G.algebra_projection(A) - A)
    case.zero("torus", "be abelian", bracket(A, B), scale=3)
