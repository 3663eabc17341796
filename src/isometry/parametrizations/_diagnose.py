"""Diagnosis of weights on manifolds: orthogonality, angles, condition of the map."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isometry._checks import check_has_numbers
from isometry._declare import declared_parameters, points
from isometry._dtypes import in_float32_or_wider
from isometry._nan import is_finite
from isometry._orthonormal import unitarity_defect
from isometry.groups import AbstractManifold, AbstractRetraction
from isometry.parametrizations._holder import Constrained, constrained
from isometry.parametrizations._layout import whole
from isometry.parametrizations._trivialization import Trivialization


@dataclass(frozen=True)
class Diagnosis:
    r"""Diagnosis of one constrained or declared weight.

    If the weight is a batch of matrices, `angles` has a row for each matrix, and every
    other number is the worst one in the batch.

    Attributes:
        manifold: the manifold of the weight.
        orthogonality_error: $\lVert Q^H Q - I \rVert_F / \sqrt{k}$ of the weight, as a
            tall matrix $Q$ with $k$ columns.
        angles: angles of the eigenvalues of each matrix, in ascending order; None if
            the matrices are not square.
        border_distance: $\pi$ minus the largest angle of the coordinates. If it is
            negative, the coordinates are outside the domain where the exponential is
            one-to-one; call `isometry.rebase`. None for reflections and declared
            weights.
        condition: largest over smallest singular value of the derivative of the map at
            the coordinates. None for reflections, for declared or empty weights, on
            manifolds that are not groups, and for a map that is not equivariant.
    """

    manifold: AbstractManifold
    orthogonality_error: float
    angles: Tensor | None
    border_distance: float | None
    condition: float | None


@torch.no_grad()
def diagnose(module: nn.Module) -> dict[str, Diagnosis]:
    r"""Diagnosis of every constrained or declared weight in `module`, keyed by name.

    Let $\phi$ be the map. Its derivative at $A = V \operatorname{diag}(i\theta) V^H$
    in the direction $E$ multiplies the entries of $V^H E V$ by divided differences, so
    its singular values are

    $$ \left| \frac{\phi(i\theta_j) - \phi(i\theta_l)}{\theta_j - \theta_l} \right|,
       \qquad \text{for exp } \left| \operatorname{sinc}
       \tfrac{\theta_j - \theta_l}{2} \right|. $$

    In $\mathfrak{u}(n)$, every pair of angles gives a singular value, and every angle
    gives one with itself. In $\mathfrak{so}(n)$ this holds too, except that an angle
    gives none with its opposite. Other Lie algebras have fewer directions, so there
    `condition` is only an upper bound. For exp, `condition` is finite while
    `border_distance` is positive. It can grow without bound as `border_distance` goes
    to zero, where some changes of the coordinates no longer change the weight. If the
    weight has a base, `isometry.rebase` sets `condition` to 1.

    If the weight or its coordinates contain NaN or infinity, as after a training run
    that has diverged, the numbers are NaN or infinite.

    Eigendecompositions are costly: diagnose now and then, not after every step.

    Args:
        module: the module; its submodules are visited too.

    Returns:
        A dictionary with one `Diagnosis` for each weight.

    Raises:
        TypeError: if `module` is not a module, or if a weight has no numbers (on the
            meta device or in FakeTensorMode).

    References:
        [LM19] section 3.3; [Hig08] theorem 3.11.
    """
    report: dict[str, Diagnosis] = {}
    for entry in constrained(module):
        constraint = entry.constraint
        W = in_float32_or_wider(whole(entry.holder.constrained_weight().detach()))
        check_has_numbers(W, name=entry.key)
        Q = constraint.layout.points(W)
        border, condition = _border_and_condition(entry)
        report[entry.key] = _diagnosis(constraint.manifold, Q, border, condition)
    for key, p, manifold in declared_parameters(module):
        W = in_float32_or_wider(whole(p.detach()))
        check_has_numbers(W, name=key)
        report[key] = _diagnosis(manifold, points(W, manifold), None, None)
    return report


def _diagnosis(
    manifold: AbstractManifold,
    Q: Tensor,
    border_distance: float | None,
    condition: float | None,
) -> Diagnosis:
    """The `Diagnosis` of a weight with the points `Q`, the distance and condition."""
    is_square = len(manifold.shape) == 2 and manifold.shape[0] == manifold.shape[1]
    frames = Q if len(manifold.shape) == 2 else Q[..., None]
    errors = unitarity_defect(frames) / max(frames.shape[-1], 1) ** 0.5
    error = float(errors.max()) if errors.numel() else 0.0
    angles = _eigenvalue_angles(Q) if is_square else None
    return Diagnosis(manifold, error, angles, border_distance, condition)


def _border_and_condition(entry: Constrained) -> tuple[float | None, float | None]:
    """The numbers `border_distance` and `condition` of a `Diagnosis`."""
    constraint = entry.constraint
    manifold = constraint.manifold
    if not isinstance(constraint, Trivialization):
        return None, None
    X = constraint.layout.points(whole(entry.coordinates.detach()))
    if X.numel() == 0:
        return math.pi, None
    theta = manifold.angles(X)
    if theta is None:
        angle = manifold.largest_angle(X, constraint.base_point())
        return math.pi - float(angle.max()), None
    border = math.pi - float(theta.abs().max())
    if not constraint.retraction.is_equivariant:
        return border, None
    real = not manifold.is_complex
    return border, map_condition(theta, constraint.retraction, real=real)


def _eigenvalue_angles(Q: Tensor) -> Tensor:
    """Ascending angles of the eigenvalues; NaN for a matrix that is not finite."""
    # replace a matrix that is not finite with zeros first, because MKL's eigenvalue
    # solver ends the process if it meets NaN
    finite = is_finite(Q)
    angles = torch.linalg.eigvals(torch.where(finite, Q, 0)).angle().sort(-1).values
    return torch.where(finite[..., 0], angles, math.nan)


def map_condition(
    theta: Tensor, retraction: AbstractRetraction, *, real: bool
) -> float:
    """Condition number of the derivative of a map at a skew matrix with these angles.

    Args:
        theta: all angles, in ascending order. For a real matrix they come in pairs of
            opposite sign.
        retraction: the map, which must be equivariant.
        real: whether the matrix and its directions are real.

    Returns:
        Largest over smallest singular value, for the worst matrix in the batch;
        infinite where the derivative is singular.
    """
    # the map takes the eigenvalue i theta to exp(i phase); `slope` is the derivative of
    # the phase with respect to theta
    phase, slope = retraction.phase(theta)
    gap = theta[..., :, None] - theta[..., None, :]
    chord = 2 * torch.sin((phase[..., :, None] - phase[..., None, :]) / 2)
    close = gap.abs() < 1e-8
    values = torch.where(close, slope[..., :, None], chord / torch.where(close, 1, gap))
    n = theta.shape[-1]
    keep = torch.ones(n, n, dtype=torch.bool, device=theta.device)
    if real:
        # Leave out the antidiagonal, which pairs each angle with its opposite. These
        # two angles belong to one plane, and in so(n) a plane has only one direction,
        # its rotation. The singular value of this direction is on the diagonal. If n is
        # odd, the middle angle is zero: it belongs to no plane, and has no direction.
        keep = ~torch.eye(n, dtype=torch.bool, device=theta.device).flip(0)
    values = values.abs()
    largest = torch.where(keep, values, -math.inf).amax((-2, -1))
    smallest = torch.where(keep, values, math.inf).amin((-2, -1))
    return float((largest / smallest).max()) if keep.any() else 1.0
