"""The Q of a point plus a tangent vector, by the factor of Cholesky."""

import torch
from torch import Tensor

from isometry.groups import AbstractManifold

# of the squared length; above, the factor would lose digits that Householder keeps
_LONG = 1.0


def retract_qr(manifold: AbstractManifold, Q: Tensor, E: Tensor) -> Tensor:
    r"""$X R^{-1}$ with $X = Q + E$ and $R^H R = X^H X$.

    As $E$ is tangent, $X^H X = I + E^H E$, whose condition number is at most
    $1 + \lVert E \rVert^2$: for steps below a radian no digit is lost that the
    decomposition of $X$ itself would keep. Longer ones are left to that.

    Cost: a product of $n k^2$, and half of one.
    """
    X = Q + E
    gram = X.mH @ X
    # tr X^H X = k + |E|^2, for every matrix; written so that NaN is long
    trace = gram.diagonal(dim1=-2, dim2=-1).real.sum(-1).max()
    if not float(trace) <= Q.shape[-1] + _LONG:
        return manifold.retract(Q, E, "qr")
    R = torch.linalg.cholesky_ex(gram, upper=True).L
    return torch.linalg.solve_triangular(R, X, upper=True, left=False)
