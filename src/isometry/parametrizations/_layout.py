"""How a weight of any shape is seen as a batch of tall matrices.

A sharded weight (FSDP2, DTensor) is gathered first: a map needs all entries of its
coordinates. It is computed on every process, alike, and its result is sharded again.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from isometry.groups import AbstractManifold

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
        groups: how many matrices lie one above the other in a flattened weight, as in
            a grouped convolution. More than one are a batch.
    """

    shape: tuple[int, ...]
    flatten: bool = False
    transpose: bool = False
    groups: int = 1

    def points(self, W: Tensor) -> Tensor:
        """`W` as `(*batch, n, k)` with n >= k: a view."""
        X = W.flatten(1) if self.flatten else W
        if self.groups > 1:
            X = X.unflatten(0, (self.groups, -1))
        return X.mT if self.transpose else X

    def weight(self, Q: Tensor) -> Tensor:
        """The inverse of `points`."""
        W = Q.mT if self.transpose else Q
        return W.reshape(self.shape) if self.flatten else W


def matrix_layout(module: nn.Module, name: str, weight: Tensor) -> Layout:
    """How `orthogonal` sees a weight."""
    shape = tuple(weight.shape)
    if not (name == "weight" and isinstance(module, _CONVOLUTIONS)):
        return Layout(shape, transpose=shape[-2] < shape[-1])
    # the first axis holds the output channels, or the input channels if transposed.
    # Both come in groups that never meet
    rows, columns = shape[0] // module.groups, math.prod(shape[1:])
    return Layout(shape, True, rows < columns, module.groups)


def layout_of(
    module: nn.Module, name: str, weight: Tensor, manifold: AbstractManifold
) -> Layout:
    """How `constrain` sees a weight: as points of the manifold if they fit at all."""
    plain = Layout(tuple(weight.shape))
    if len(manifold.shape) < 2 or weight.ndim < 2:
        return plain
    layout = matrix_layout(module, name, weight)
    wide = replace(layout, transpose=True)
    for candidate in (plain, layout, wide):
        points = candidate.points(weight)
        if points.ndim >= 2 and tuple(points.shape[-2:]) == manifold.shape:
            return candidate
    return plain


def whole(X: Tensor) -> Tensor:
    """`X` itself, or what the shards of all processes make."""
    gather = getattr(X, "full_tensor", None)
    return X if gather is None else gather()


def sharded_like(value: Tensor, X: Tensor) -> Tensor:
    """`value` itself, or the shard of it that belongs here if `X` is sharded."""
    if not hasattr(X, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    shards: Any = X
    return distribute_tensor(value, shards.device_mesh, shards.placements)


def replicated_like(value: Tensor, X: Tensor) -> Tensor:
    """`value` itself, or a DTensor that is whole everywhere if `X` is a DTensor."""
    if not hasattr(X, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, Replicate

    mesh: Any = getattr(X, "device_mesh", None)
    return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim)
