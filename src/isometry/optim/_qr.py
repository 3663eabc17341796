"""The Q of a point plus a tangent vector, by the factor of Cholesky."""

import torch
from torch import Tensor

from isometry.groups import AbstractManifold

# radians; above, the factor would lose digits that Householder keeps
_LONG = 1.0


def retract_qr(manifold: AbstractManifold, Q: Tensor, E: Tensor) -> Tensor:
    r"""$X R^{-1}$ with $X = Q + E$ and $R^H R = X^H X$.

    As $E$ is tangent, $X^H X = I + E^H E$, whose condition number is at most
    $1 + \lVert E \rVert^2$: for steps below a radian no digit is lost that the
    decomposition of $X$ itself would keep. Longer ones are left to that.

    Cost: a product of $n k^2$, and half of one.
    """
    # written so that NaN is long
    if not float(torch.linalg.matrix_norm(E).max()) <= _LONG:
        return manifold.retract(Q, E, "qr")
    X = Q + E
    R = torch.linalg.cholesky_ex(X.mH @ X, upper=True).L
    return torch.linalg.solve_triangular(R, X, upper=True, left=False)
