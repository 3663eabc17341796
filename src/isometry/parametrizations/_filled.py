"""Coordinates that an initializer has filled as if they were the weight.

`for name, p in rnn.named_parameters(): if "weight_hh" in name: nn.init.orthogonal_(p)`
reaches the coordinates of a constrained weight, because their name contains the name of
the weight. The weight would become the exponential of the matrix that the user wanted.
"""

import torch
from torch import Tensor, nn

from isometry._torch import is_fake, transforms

# The gains of `nn.init.calculate_gain`, and the norms of columns of three or four
# orthogonal matrices one above the other, as in the gates of nn.GRU and nn.LSTM. Other
# gains must not count: after the first step of Adam all coordinates are equal in size,
# and columns of equal entries with different signs can be orthogonal too.
_GAINS = (1.0, 5 / 3, 2**0.5, 0.75, 3**0.5, 2.0)


def can_look(X: Tensor) -> bool:
    """Whether the values of `X` can be read now: outside of graphs and transforms."""
    if transforms() or type(X) not in (Tensor, nn.Parameter) or is_fake(X):
        return False
    return not (X.is_cuda and torch.cuda.is_current_stream_capturing())


def looks_initialized(X: Tensor, points: Tensor) -> bool:
    """Whether `X` is what `nn.init.orthogonal_` or `eye_` leaves, and is not skew.

    Args:
        X: coordinates.
        points: the coordinates, arranged like points of the manifold.

    Returns:
        True for an orthogonal matrix, or for a multiple of it that `nn.init` makes.
    """
    # the matrix as `nn.init.orthogonal_` sees it
    M = X.flatten(1) if X.ndim > 1 else X[None]
    M = M.mH if M.shape[0] < M.shape[1] else M
    n, k = M.shape
    # the first two columns exclude nearly all coordinates; a single column says nothing
    if k < 2:
        return False
    squares = torch.linalg.vector_norm(M[:, :2], dim=0).square().tolist()
    gains = [g for g in _GAINS if all(abs(s / g**2 - 1) < 1e-3 for s in squares)]
    if not gains:
        return False
    # skew matrices can be orthogonal, too, and are good coordinates
    if points.shape[-2] == points.shape[-1] and torch.equal(points, -points.mH):
        return False
    eye = torch.eye(k, dtype=M.dtype, device=M.device)
    defect = torch.linalg.matrix_norm(M.mH @ M / gains[0] ** 2 - eye)
    return float(defect) <= 10 * k * n**0.5 * torch.finfo(M.dtype).eps
