"""Sharded tensors (FSDP2, DTensor): gathered for a map, and sharded again after it.

A map needs all entries of its coordinates. It is computed on every process, alike.
"""

from typing import Any

from torch import Tensor


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
