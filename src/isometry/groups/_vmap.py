"""What the `vmap` rules of autograd functions share."""

from typing import Any

from torch import Tensor


def in_front(info: Any, in_dims: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The inputs of a `vmap` rule, with the mapped axis first in each."""
    return [
        X.expand(info.batch_size, *X.shape) if dim is None else X.movedim(dim, 0)
        for X, dim in zip(inputs, in_dims, strict=True)
    ]
