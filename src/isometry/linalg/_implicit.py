"""The base class of autograd functions that are defined by an equation."""

from typing import Any

import torch
from torch import Tensor


def in_front(info: Any, in_dims: Any, inputs: tuple) -> list[Any]:
    """The inputs of a `vmap` rule, each tensor with the mapped axis first."""

    def moved(X: Any, dim: int | None) -> Any:
        if dim is not None:
            return X.movedim(dim, 0)
        return X.expand(info.batch_size, *X.shape) if isinstance(X, Tensor) else X

    return list(map(moved, inputs, in_dims))


class Implicit(torch.autograd.Function):
    """A function of batches, defined by an equation between its inputs and its result.

    The implicit function theorem gives the derivative in terms of all inputs but the
    last and of the result. `ctx.saved_tensors` holds them in this order.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1], output)
        ctx.save_for_forward(*inputs[:-1], output)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return cls.apply(*in_front(info, in_dims, inputs)), 0
