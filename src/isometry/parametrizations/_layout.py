"""How a weight of any shape is seen as a batch of tall matrices."""

from dataclasses import dataclass

from torch import Tensor, nn

from isometry.groups import AbstractManifold
from isometry.groups._sphere import Sphere

_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


@dataclass(frozen=True)
class Layout:
    """A weight as points of a manifold, and back.

    Args:
        shape: that of the weight.
        flatten: whether the first axis is the rows and all others are the columns, as
            for the kernel of a convolution; else the last two axes are a matrix.
        transpose: whether the matrices are wide, so that their rows are orthonormal.
    """

    shape: tuple[int, ...]
    flatten: bool = False
    transpose: bool = False

    def points(self, W: Tensor) -> Tensor:
        """`W` as `(*batch, n, k)` with n >= k: a view."""
        X = W.flatten(1) if self.flatten else W
        return X.mT if self.transpose else X

    def weight(self, Q: Tensor) -> Tensor:
        """The inverse of `points`."""
        W = Q.mT if self.transpose else Q
        return W.reshape(self.shape) if self.flatten else W


def matrix_layout(module: nn.Module, name: str, weight: Tensor) -> Layout:
    """How `orthogonal` sees a weight."""
    flatten = name == "weight" and isinstance(module, _CONVOLUTIONS)
    rows = weight.shape[0] if flatten else weight.shape[-2]
    columns = weight[0].numel() if flatten and rows else weight.shape[-1]
    return Layout(tuple(weight.shape), flatten, transpose=rows < columns)


def layout_of(
    module: nn.Module, name: str, weight: Tensor, manifold: AbstractManifold
) -> Layout:
    """How `constrain` sees a weight: as points of the manifold if they fit at all."""
    plain = Layout(tuple(weight.shape))
    if isinstance(manifold, Sphere) or weight.ndim < 2:
        return plain
    layout = matrix_layout(module, name, weight)
    wide = Layout(layout.shape, layout.flatten, transpose=True)
    for candidate in (plain, layout, wide):
        points = candidate.points(weight)
        if points.ndim >= 2 and tuple(points.shape[-2:]) == manifold.shape:
            return candidate
    return plain
