"""Custom operators for computations that depend on the numbers in a tensor.

A compiler records a graph before the numbers are known. So such a computation is a
custom operator in the graph, and the operator reads the numbers when the graph runs.
Tensors on the meta device and in FakeTensorMode have no numbers at all. For them, the
operator returns empty tensors of the right shapes.
"""

import functools
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast, get_args

import torch
from torch import Tensor

from isometry._torch import AnyFunction, in_forward_mode, is_fake, outside_graphs


def needs_operator(X: Tensor) -> bool:
    """Whether a computation that depends on the numbers in X must be a custom operator.

    The result is True while a graph is recorded, and for tensors without numbers. But
    in forward mode, an operator would drop the tangent, and the graph would continue
    with a tangent of zero. So in forward mode the result is False, except on the meta
    device.
    """
    in_graph = torch.compiler.is_compiling() or is_fake(X)
    return X.is_meta or (in_graph and not in_forward_mode())


def traced_as(stand_in: Callable[..., Any]) -> Callable[[AnyFunction], AnyFunction]:
    """A decorator: calls of the function become calls of `stand_in` inside graphs.

    More precisely, `stand_in` is called if `needs_operator` is true for the first
    argument, which must be a tensor. Compilers never trace the decorated function. In
    forward mode, where an operator would drop the tangent, compilers call the decorated
    function between two graphs. So this function may read numbers, and may call
    autograd functions that Dynamo does not support.

    Args:
        stand_in: computes the same as the decorated function, in a way that compilers
            can trace. It takes the same arguments, by position.
    """

    def decorate(function: AnyFunction) -> AnyFunction:
        untraced = outside_graphs(function)

        @functools.wraps(function)
        def call(X: Tensor, *args: Any) -> Any:
            return stand_in(X, *args) if needs_operator(X) else untraced(X, *args)

        return cast("AnyFunction", call)

    return decorate


def largest(X: Tensor, *, unknown: float) -> float:
    """The largest entry of X as a float, or `unknown` if X has no numbers.

    If `unknown` is returned, the caller must choose operations that are correct for all
    values of X, since the operations may be recorded as a program that runs later.
    """
    return unknown if is_fake(X) else float(X.max())


class Maximum(torch.autograd.Function):
    """Largest entry of a tensor, as a tensor that Python can read even inside `vmap`.

    Inside `vmap`, it is the maximum over the whole batch.
    """

    @staticmethod
    def forward(X: Tensor) -> Tensor:
        return X.max()

    @staticmethod
    def setup_context(ctx: Any, _inputs: tuple, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(_info: Any, _in_dims: tuple, X: Tensor) -> tuple[Tensor, None]:
        return Maximum.apply(X), None


def opaque(
    name: str,
    forward: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    adjoint: Callable[..., Tensor | tuple[Tensor, ...]],
    saves: Callable[[tuple, Any], tuple[Tensor | None, ...]],
) -> Callable[..., Any]:
    """Register a differentiable operator that compilers call but do not trace.

    A compiler cannot trace a computation that depends on the numbers in a tensor, such
    as the choice of a polynomial. The compiled graph calls the operator instead, and
    the operator reads the numbers when the graph runs. Torch derives the schema from
    the annotations of `forward` and `adjoint`.

    If `adjoint` returns m gradients, they belong to the first m arguments of `forward`;
    the other arguments get none. A graph is traced under the assumption that these m
    gradients are contiguous, with the shape and dtype of the last argument of
    `adjoint`.

    Args:
        name: the operator is called `isometry::name`, and its gradient
            `isometry::name_adjoint`.
        forward: computes the outputs. Only the outputs whose gradients `adjoint` takes
            are differentiable.
        fake: makes empty outputs of the right shapes.
        adjoint: returns the gradient with respect to the first argument, or a tuple of
            gradients with respect to the first arguments. Its parameters are the
            tensors that `saves` returns, followed by the gradients with respect to the
            first outputs.
        saves: returns the tensors that `adjoint` needs. Its two arguments are the tuple
            of all inputs, and the output or the tuple of outputs.
    """
    operator = torch.library.custom_op(
        f"isometry::{name}", _with_lazy_conjugates(forward), mutates_args=()
    )
    gradient = torch.library.custom_op(
        f"isometry::{name}_adjoint", _with_lazy_conjugates(adjoint), mutates_args=()
    )
    arguments = len(inspect.signature(forward).parameters)
    parameters = len(inspect.signature(adjoint).parameters)
    several = get_args(inspect.signature(adjoint).return_annotation)

    # torch passes `inputs` and `output` by keyword, so these names are fixed
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


def _with_lazy_conjugates(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function`, so that `X.mH` is correct for complex X even in a new graph.

    Torch computes `X.mH` lazily: it marks a view, and each operation that reads the
    view conjugates its numbers. While AOTAutograd runs a graph for the first time, its
    thread does not conjugate inside operators, so `X - X.mH` is wrong (seen in torch
    2.13). A new thread conjugates, so `function` is then called in a new thread.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        is_complex = any(isinstance(X, Tensor) and X.is_complex() for X in args)
        if not is_complex or _conjugates():
            return function(*args)
        # A new thread starts with gradients on, but torch calls an operator with
        # gradients off, so turn them off in the new thread too.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(torch.no_grad()(function), *args).result()

    return call


def _conjugates() -> bool:
    """Whether operations of this thread conjugate the numbers of a lazy conjugate."""
    return (torch.full((), 1j).conj() + 0).imag.item() < 0
