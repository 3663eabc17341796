"""Layouts: how a weight of any shape is arranged as points of a manifold.

Sharded coordinates (FSDP2, DTensor) are gathered before a weight is computed, because a
map needs all their entries. So every process computes the whole weight. When
coordinates are replaced, each process stores its own shard of the new coordinates.
"""

import math
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, nn

from isometry.groups import AbstractManifold

_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d
_TRANSPOSED = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


@dataclass(frozen=True)
class Layout:
    """How a weight is arranged as points of a manifold.

    Args:
        shape: shape of the weight.
        flatten: True if the first axis holds the rows, and all other axes together hold
            the columns, as in the kernel of a convolution. Otherwise the last two axes
            are a matrix, or the last axis is a vector.
        transpose: True if the matrices are wide, so that their rows are orthonormal.
        blocks: number of matrices that are stacked along the rows of the weight, such
            as the gates of a recurrent layer. They become a batch axis.
    """

    shape: tuple[int, ...]
    flatten: bool = False
    transpose: bool = False
    blocks: int = 1

    def points(self, W: Tensor) -> Tensor:
        """The points of the weight `W`: `(*batch, n, k)`, or vectors `(*batch, n)`."""
        X = W.flatten(1) if self.flatten else W
        if self.blocks > 1:
            X = X.unflatten(-2, (self.blocks, -1))
        return X.mT if self.transpose else X

    def weight(self, Q: Tensor) -> Tensor:
        """The weight made of the points `Q`: the inverse of `points`."""
        W = Q.mT if self.transpose else Q
        return W.reshape(self.shape) if self.flatten or self.blocks > 1 else W


def matrix_layout(
    module: nn.Module, name: str, weight: Tensor, blocks: int = 1
) -> Layout:
    """The layout that `orthogonal` uses for a weight.

    Raises:
        ValueError: if the weight has fewer than two axes, or if its rows do not split
            into `blocks` blocks of equal size.
    """
    shape = tuple(weight.shape)
    if len(shape) < 2:
        raise ValueError(
            f"`{name}` must have two or more axes to be orthogonal; got shape {shape}. "
            f"For a unit vector use `isometry.constrain` with `groups.Sphere`."
        )
    if name == "weight" and isinstance(module, _CONVOLUTIONS | _TRANSPOSED):
        # The first axis of a kernel holds the output channels or, in a transposed
        # convolution, the input channels. Each group of channels has its own weights.
        flatten = True
        groups = module.groups
        rows, columns = shape[0], math.prod(shape[1:])
    else:
        flatten = False
        groups = 1
        rows, columns = shape[-2:]
    if type(blocks) is not int or blocks < 1 or rows % (blocks * groups):
        each = f" in each of {groups} groups" if groups > 1 else ""
        raise ValueError(
            f"`blocks` must divide the rows of the weight into equal parts; got "
            f"{blocks!r} for {rows // groups} rows{each}, `{name}` of shape {shape}. "
            f"nn.MultiheadAttention has 3 in `in_proj_weight`; the weights of nn.LSTM "
            f"have 4, and the weights of nn.GRU have 3."
        )
    blocks *= groups
    is_wide = rows // blocks < columns
    return Layout(shape, flatten=flatten, transpose=is_wide, blocks=blocks)


def layout_of(
    module: nn.Module,
    name: str,
    weight: Tensor,
    manifold: AbstractManifold,
    blocks: int = 1,
) -> Layout:
    """The layout that `constrain` uses for a weight: the first that fits the manifold.

    If no layout fits, the first one that was tried is returned. `constrain` then
    raises, because the points do not have the shape of the manifold.
    """
    plain = Layout(tuple(weight.shape))
    if len(manifold.shape) < 2 or weight.ndim < 2:
        if blocks != 1:
            raise ValueError(
                f"`blocks` must be 1 unless the weight is made of matrices; got "
                f"{blocks!r} for {manifold} and `{name}` of shape "
                f"{tuple(weight.shape)}. A stack of vectors has one vector per row."
            )
        return plain
    upright = replace(matrix_layout(module, name, weight, blocks), transpose=False)
    wide = replace(upright, transpose=True)
    # try the plain layout first: with it, every 3 x 3 kernel of a convolution can be a
    # point of SO(3)
    candidates = (plain, upright, wide) if blocks == 1 else (upright, wide)
    for candidate in candidates:
        if tuple(candidate.points(weight).shape[-2:]) == manifold.shape:
            return candidate
    return candidates[0]


def whole(X: Tensor) -> Tensor:
    """`X` itself, or the whole tensor gathered from all processes if `X` is sharded."""
    gather = getattr(X, "full_tensor", None)
    return X if gather is None else gather()


def sharded_like(value: Tensor, X: Tensor) -> Tensor:
    """`value` itself, or `value` as a DTensor sharded like `X` if `X` is a DTensor."""
    if not hasattr(X, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    sharded = cast("DTensor", X)
    return distribute_tensor(value, sharded.device_mesh, sharded.placements)


def replicated_like(value: Tensor, X: Tensor) -> Tensor:
    """`value` itself, or if `X` is a DTensor, `value` as a replicated DTensor.

    Each process must pass the same `value`.
    """
    if not hasattr(X, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, Replicate

    mesh = cast("DTensor", X).device_mesh
    return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim)
