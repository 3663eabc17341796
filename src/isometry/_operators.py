"""What replaces a computation that depends on the values of tensors without values.

A graph is made before the values are known. Tensors on the meta device and in
FakeTensorMode never have values.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from isometry._torch import in_forward_mode, is_fake


def needs_operator(X: Tensor) -> bool:
    """Whether a computation that looks at its numbers must be an `opaque` operator.

    It must in a graph, and for tensors without numbers. It must not in forward mode,
    where the operator would drop the tangent and a graph would go on with zero; but on
    the meta device it always must.
    """
    in_graph = torch.compiler.is_compiling() or is_fake(X)
    return X.is_meta or (in_graph and not in_forward_mode())


def largest(X: Tensor, *, unknown: float) -> float:
    """The largest entry as a number, or `unknown` for tensors without numbers.

    Given `unknown`, the caller must choose operations that are right for every value,
    since the operations on a fake tensor may be recorded as a program.
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

    A graph cannot trace a computation that looks at its numbers, as the choice of a
    polynomial does. It calls an operator instead, which looks when the graph runs.
    Torch derives the schema from the annotations of `forward` and `adjoint`. Gradients
    are contiguous and go to the first arguments, all of which have the shape of the
    first output.

    Args:
        name: the operator is `isometry::name`, and its gradient
            `isometry::name_adjoint`.
        forward: computes the outputs; the first ones are differentiable.
        fake: makes empty outputs of the right shapes.
        adjoint: returns the gradient at the first argument, or a tuple of gradients at
            the first arguments. Its parameters are what `saves` returns, followed by
            the gradients at the first outputs.
        saves: returns what `adjoint` needs, given all inputs and the outputs.
    """
    operator = torch.library.custom_op(f"isometry::{name}", forward, mutates_args=())
    gradient = torch.library.custom_op(
        f"isometry::{name}_adjoint", adjoint, mutates_args=()
    )
    arguments = len(inspect.signature(forward).parameters)
    parameters = len(inspect.signature(adjoint).parameters)
    several = get_args(inspect.signature(adjoint).return_annotation)

    # torch passes these arguments by name
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
