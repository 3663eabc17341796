"""Substitutes for computations that look at the numbers in their tensors.

They are needed where there are no numbers to look at. A graph is recorded before the
numbers are known, and tensors on the meta device or in FakeTensorMode never have any.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from isometry._torch import in_forward_mode, is_fake


def needs_operator(X: Tensor) -> bool:
    """Whether a computation that looks at numbers in X must be an `opaque` operator.

    This is true in a graph, and for tensors without numbers. It is false in forward
    mode: the operator would drop the tangent, and a graph would go on with a tangent of
    zero. On the meta device it is always true.
    """
    in_graph = torch.compiler.is_compiling() or is_fake(X)
    return X.is_meta or (in_graph and not in_forward_mode())


def largest(X: Tensor, *, unknown: float) -> float:
    """The largest entry of X as a number, or `unknown` if X has no numbers.

    A caller that gets `unknown` back must choose operations that are right for every
    value, since the operations on a fake tensor may be recorded as a program.
    """
    return unknown if is_fake(X) else float(X.max())


def opaque(
    name: str,
    forward: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    adjoint: Callable[..., Tensor | tuple[Tensor, ...]],
    saves: Callable[[tuple, Any], tuple[Tensor | None, ...]],
) -> Callable[..., Any]:
    """Make a differentiable operator that graphs of torch cannot look into.

    A graph cannot trace a computation that looks at numbers, such as the choice of a
    polynomial. The graph calls an operator instead, and the operator looks at the
    numbers when the graph runs. Torch derives the schema from the annotations of
    `forward` and `adjoint`.

    Only the first arguments get gradients, as many as `adjoint` returns. These
    arguments must have the shape of the first output, and their gradients must be
    contiguous.

    Args:
        name: the operator is `isometry::name`, and its gradient
            `isometry::name_adjoint`.
        forward: computes the outputs; the first ones are differentiable.
        fake: makes empty outputs of the right shapes.
        adjoint: returns the gradient at the first argument, or a tuple of gradients at
            the first arguments. Its parameters are the tensors that `saves` returns,
            followed by the gradients at the first outputs.
        saves: returns the tensors that `adjoint` needs. Its two arguments are the tuple
            of all inputs, and the output or the tuple of outputs.
    """
    operator = torch.library.custom_op(f"isometry::{name}", forward, mutates_args=())
    gradient = torch.library.custom_op(
        f"isometry::{name}_adjoint", adjoint, mutates_args=()
    )
    arguments = len(inspect.signature(forward).parameters)
    parameters = len(inspect.signature(adjoint).parameters)
    several = get_args(inspect.signature(adjoint).return_annotation)

    # torch passes `inputs` and `output` by name, so they must be called this
    def save(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.save_for_backward(*saves(inputs, output))

    def pull_back(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        tensors = (*ctx.saved_tensors, *cotangents)[:parameters]
        gradients = gradient(*tensors) if several else (gradient(*tensors),)
        return *gradients, *(None,) * (arguments - len(gradients))

    def empty(*tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        G = tensors[-1]
        gradients = tuple(G.new_empty(G.shape) for _ in several or (Tensor,))
        return gradients if several else gradients[0]

    operator.register_fake(fake)
    gradient.register_fake(empty)
    operator.register_autograd(pull_back, setup_context=save)
    return operator
