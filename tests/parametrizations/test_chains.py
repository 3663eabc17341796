"""Gradients of a layer in chains: used twice, with a penalty, and in an inner step.

The first gradient must be the same with `create_graph=True` and without it.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

import isometry
from isometry.linalg import expm_skew, skew

N = 5
KEY = "parametrizations.weight.original"
# sizes below and above the one from which C computes a rotation in one piece
SIZES = [N, 40]


def make(n: int, rng: torch.Generator) -> nn.Linear:
    layer = isometry.orthogonal(nn.Linear(n, n, dtype=torch.float64))
    with torch.no_grad():
        X = layer.parametrizations.weight.original
        X.copy_(torch.randn(n, n, generator=rng, dtype=torch.float64) / n)
    return layer


def plain(layer: nn.Linear) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The coordinates, and a function that computes the weight in plain operations."""
    B = layer.parametrizations.weight[0].base
    X = layer.parametrizations.weight.original.detach().clone().requires_grad_()
    return X, lambda X: B @ expm_skew(skew(X))


def twice(x: Tensor, read: Callable[[], Tensor]) -> Tensor:
    """Apply the layer twice: the second input depends on the coordinates."""
    return ((x @ read().mT).tanh() @ read().mT).square().sum()


def penalty(x: Tensor, read: Callable[[], Tensor]) -> Tensor:
    """The squared gradient with respect to the input."""
    x = x.clone().requires_grad_()
    y = ((x @ read().mT).tanh() @ read().mT).pow(3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return y + g.square().sum()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("loss", [twice, penalty])
@pytest.mark.parametrize("create_graph", [False, True])
def test_the_gradient_of_a_chain(loss, create_graph, n, rng):
    layer = make(n, rng)
    x = torch.randn(3, n, generator=rng, dtype=torch.float64)
    coordinates = layer.parametrizations.weight.original
    X, weight = plain(layer)
    value = loss(x, lambda: layer.weight)
    (g,) = torch.autograd.grad(value, coordinates, create_graph=create_graph)
    expected_value = loss(x, lambda: weight(X))
    (expected,) = torch.autograd.grad(expected_value, X, create_graph=create_graph)
    assert_close(g, expected)
    if create_graph:
        (h,) = torch.autograd.grad(g.square().sum(), coordinates)
        assert_close(h, torch.autograd.grad(expected.square().sum(), X)[0])


@pytest.mark.parametrize("n", SIZES)
def test_a_step_of_meta_learning(n, rng):
    """Coordinates after an inner step depend on the coordinates before it."""
    layer = make(n, rng)
    x = torch.randn(3, n, generator=rng, dtype=torch.float64)
    first = layer.parametrizations.weight.original
    X, weight = plain(layer)

    def after_step(X: Tensor, read: Callable[[Tensor], Tensor]) -> Tensor:
        inner = twice(x, lambda: read(X))
        (g,) = torch.autograd.grad(inner, X, create_graph=True)
        moved = X - 0.1 * g
        return twice(x, lambda: read(moved)) + inner

    def call(X: Tensor) -> Tensor:
        bias = torch.zeros(n, dtype=torch.float64)
        eye = torch.eye(n, dtype=torch.float64)
        return functional_call(layer, {KEY: X, "bias": bias}, (eye,)).mT

    (g,) = torch.autograd.grad(after_step(first, call), first)
    (expected,) = torch.autograd.grad(after_step(X, weight), X)
    assert_close(g, expected)


@pytest.mark.parametrize("n", SIZES)
def test_two_layers_and_a_batch_of_cotangents(n, rng):
    """`is_grads_batched=True` pulls many cotangents back through two layers."""
    first, second = make(n, rng), make(n, rng)
    x = torch.randn(2, n, generator=rng, dtype=torch.float64)
    parameters = [layer.parametrizations.weight.original for layer in (first, second)]
    G = torch.randn(3, 2, n, generator=rng, dtype=torch.float64)
    y = second(first(x).tanh())
    many = torch.autograd.grad(y, parameters, G, is_grads_batched=True)
    for i, cotangent in enumerate(G):
        y = second(first(x).tanh())
        for one, all_ in zip(
            torch.autograd.grad(y, parameters, cotangent), many, strict=True
        ):
            assert_close(all_[i], one)
