"""Tools for autograd functions, and a base class for implicitly defined functions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def traceable(cls: type[Function]) -> Callable[..., Any]:
    """`cls.apply`, in a form that compilers can trace even though `cls` has a `jvp`.

    Dynamo does not support an autograd function that has a `jvp`. So graphs use a
    subclass of `cls` without a `jvp`, which does not support forward mode.
    """
    no_jvp = {"jvp": staticmethod(Function.jvp)}
    in_graphs: type[Function] = type(f"{cls.__name__}InGraphs", (cls,), no_jvp)

    def apply(*inputs: Any) -> Any:
        return (in_graphs if torch.compiler.is_compiling() else cls).apply(*inputs)

    return apply


def in_front(info: Any, in_dims: Any, inputs: tuple) -> list[Any]:
    """The inputs of a `vmap` rule, each tensor with the mapped axis first.

    A tensor that is not mapped is expanded along a new axis.
    """

    def moved(X: Any, dim: int | None) -> Any:
        if dim is not None:
            return X.movedim(dim, 0)
        return X.expand(info.batch_size, *X.shape) if isinstance(X, Tensor) else X

    return list(map(moved, inputs, in_dims))


class Implicit(Function):
    """A function of batches, defined by an equation between its inputs and its result.

    By the implicit function theorem, a subclass computes the derivative from the result
    and from all inputs but the last. `ctx.saved_tensors` holds these inputs, and then
    the result.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1], output)
        ctx.save_for_forward(*inputs[:-1], output)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return cls.apply(*in_front(info, in_dims, inputs)), 0
