"""Measurements of the recurrent matrix: its angles, and how orthogonal it is."""

import math

import torch
from torch import Tensor, nn

from isometry._orthonormal import unitarity_defect
from isometry.lab.network import network_of
from isometry.nn._recurrent import AbstractRecurrent
from isometry.parametrizations._holder import constrained


@torch.no_grad()
def recurrent_matrix_of(model: nn.Module) -> Tensor | None:
    """The matrix that the first layer applies to its hidden state.

    Args:
        model: a network with its output layer.

    Returns:
        The matrix (n, n); if the cell has gates, the first of its matrices. None if the
        recurrent network is not from `isometry.nn`, or if the matrix is not finite.
    """
    network = network_of(model)
    if not isinstance(network, AbstractRecurrent):
        return None
    W = network.typed_cells()[0].recurrent_matrix().detach()
    return W if bool(W.isfinite().all()) else None


def orthogonality_error(model: nn.Module) -> float | None:
    r"""Orthogonality error of the recurrent matrix $W$.

    $$ \lVert W^H W - I \rVert_F / \sqrt n $$

    where $n$ is the number of rows of $W$.

    Args:
        model: a network with its output layer.

    Returns:
        The error; None if `recurrent_matrix_of` returns None.
    """
    W = recurrent_matrix_of(model)
    if W is None:
        return None
    return float(unitarity_defect(W)) / len(W) ** 0.5


def largest_angle(model: nn.Module) -> float | None:
    r"""Largest angle of the skew matrix $A$ that gives the first constrained weight.

    The weight is $B \exp(A)$, where the base $B$ is in a group and $A$ is in its Lie
    algebra. The coordinates of the weight determine $A$. The angles of $A$ are
    $|\theta|$ for its eigenvalues $i \theta$. The exponential is one-to-one on the set
    of all $A$ whose largest angle is below $\pi$. The paper calls this set $V$.

    Args:
        model: a network with its output layer.

    Returns:
        The angle; if the weight consists of several matrices, their largest angle. None
        if there is no constrained weight, or if the first constrained weight is not in
        a group, is not parametrized by the exponential, or has coordinates that are not
        finite.
    """
    entry = next(iter(constrained(model)), None)
    if entry is None:
        return None
    X, constraint = entry.coordinates.detach(), entry.constraint
    if not constraint.retraction.is_exponential:
        return None
    theta = constraint.manifold.angles(constraint.layout.points(X))
    angle = math.nan if theta is None else float(theta.abs().max())
    return angle if math.isfinite(angle) else None


def angles(model: nn.Module) -> list[float]:
    """Angles of the eigenvalues of the first layer's recurrent matrix, sorted.

    Args:
        model: a network with its output layer.

    Returns:
        The angles, in ascending order. Empty if `recurrent_matrix_of` returns None.
    """
    W = recurrent_matrix_of(model)
    if W is None:
        return []
    return torch.linalg.eigvals(W.cpu()).angle().sort().values.tolist()
