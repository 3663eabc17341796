"""The polar factor of a point plus a tangent vector, in matrix products only."""

import math

import torch
from torch import Tensor

from isometry.groups import AbstractGroup, AbstractManifold, Stiefel
from isometry.groups._nearest import newton_schulz


def retract(
    manifold: AbstractManifold, Q: Tensor, E: Tensor, retraction: str
) -> Tensor:
    """The manifold's retraction, but polar without a singular value decomposition."""
    if retraction == "polar" and isinstance(manifold, AbstractGroup | Stiefel):
        return retract_polar(manifold, Q, E)
    return manifold.retract(Q, E, retraction)


def retract_polar(manifold: AbstractManifold, Q: Tensor, E: Tensor) -> Tensor:
    r"""Polar factor of $X = Q + E$, by Newton and Schulz.

    As $E$ is tangent, $X^H X = I + E^H E$ with eigenvalues between $1$ and $1 + d$,
    $d = \lVert E^H E \rVert_F$. Of $\sqrt{c} X$ with $c = 2 / (2 + d)$ they are within
    $e = d / (2 + d) < 1$ of 1, and each step

    $$ X \leftarrow \tfrac12 X (3I - X^H X), \qquad
       e \leftarrow \tfrac14 e^2 (3 + e) $$

    takes them closer; the number of steps is known from $d$. One suffices in single
    precision up to $d = 4 \cdot 10^{-4}$, two up to 0.03. What rounding has left in $Q$
    goes with it. If $d > 1/\varepsilon$ the result is NaN.

    Cost: two products a step. It reads $d$ from the device.
    """
    X = Q + E
    gram = X.mH @ X
    eye = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    d = torch.linalg.matrix_norm(gram - eye, keepdim=True)
    eps = torch.finfo(X.dtype).eps
    d = torch.where(d < 1 / eps, d, math.nan)
    c = 2 / (2 + d)
    X = (X * c.sqrt()) @ (1.5 * eye - gram * (c / 2))
    # NaN is for one matrix, and the steps for all others
    farthest = float(d.nan_to_num(nan=0.0).max())
    e = closer(farthest / (2 + farthest))
    # the tangent vector is one up to rounding only: e may be three times as large
    while e > eps / 4:
        X = newton_schulz(X)
        e = closer(e)
    return X if manifold.is_free else manifold.polish(X)


def closer(e: float) -> float:
    r"""A bound of $\lVert X^H X - I \rVert$ after one more step."""
    return e * e * (3 + e) / 4
