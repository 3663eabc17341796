"""The defect of orthonormal columns, and the Newton-Schulz step that squares it."""

import torch
from torch import Tensor


def identity(X: Tensor) -> Tensor:
    """The matrix I with as many rows as `X` has columns, in its dtype and device."""
    return torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)


def defect(Q: Tensor) -> Tensor:
    r"""The matrix $I - Q^H Q$, which is zero if the columns of `Q` are orthonormal."""
    return identity(Q) - Q.mH @ Q


def unitarity_defect(Q: Tensor) -> Tensor:
    r"""$\lVert I - Q^H Q \rVert_F$."""
    return torch.linalg.matrix_norm(defect(Q))


def newton_schulz(Q: Tensor) -> Tensor:
    r"""A Newton-Schulz step, $Q (3I - Q^H Q) / 2$, which squares the defect.

    The exponential has its own form of this step, for $Q - I$ in the place of $Q$. The
    polar retraction has one for the first step, whose $Q^H Q$ it needs anyway.
    """
    return Q + Q @ (defect(Q) / 2)


def after_newton_schulz(e: float) -> float:
    r"""A bound on the defect after a Newton-Schulz step from a matrix of defect `e`."""
    return e * e * (3 + e) / 4
