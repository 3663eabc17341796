"""Autograd functions that are defined by an equation, and their rule for `vmap`."""

from typing import Any

import torch
from torch import Tensor


def in_front(info: Any, in_dims: Any, inputs: tuple) -> list[Any]:
    """The inputs of a `vmap` rule, with the mapped axis first in each tensor."""

    def moved(X: Any, dim: int | None) -> Any:
        if dim is not None:
            return X.movedim(dim, 0)
        return X.expand(info.batch_size, *X.shape) if isinstance(X, Tensor) else X

    return list(map(moved, inputs, in_dims))


class Implicit(torch.autograd.Function):
    """A function of batches, defined by an equation between its inputs and its result.

    The implicit function theorem gives its derivative in terms of the result and of all
    inputs but the last. `ctx.saved_tensors` holds these inputs and then the result, for
    `backward` and `jvp`.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1], output)
        ctx.save_for_forward(*inputs[:-1], output)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return cls.apply(*in_front(info, in_dims, inputs)), 0
