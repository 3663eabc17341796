"""A constrained weight is computed once, and is never stale."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import isometry
from isometry.linalg import expm_skew, skew
from tests.parametrizations.cases import CASES, ROWS, Weight


class Counted:
    """Counts how often the weight of a layer is computed."""

    def __init__(self, layer: nn.Module, name: str = "weight") -> None:
        self.calls = 0
        layer.parametrizations[name][0].register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.calls += 1


def make(**options) -> tuple[nn.Linear, Counted]:
    layer = isometry.orthogonal(nn.Linear(6, 6), **options)
    layer.parametrizations.weight.original.data.normal_(std=0.1)
    return layer, Counted(layer)


def expected(layer: nn.Module) -> torch.Tensor:
    """The weight, computed by hand."""
    X = layer.parametrizations.weight.original
    return layer.parametrizations.weight[0].base @ expm_skew(skew(X))


X = torch.linspace(-1, 1, 12).reshape(2, 6)


def loss(layer: nn.Module) -> torch.Tensor:
    return layer(X).pow(3).sum()


def gradient(layer: nn.Module) -> Any:
    return layer.parametrizations.weight.original.grad


def reference_gradient(layer: nn.Module, times: int = 1) -> torch.Tensor:
    twin = copy.deepcopy(layer)
    twin.zero_grad()
    original = twin.parametrizations.weight.original
    y = nn.functional.linear(X, expected(twin), twin.bias).pow(3).sum()
    (g,) = torch.autograd.grad(times * y, original)
    return g


def test_reading_many_times_in_training_computes_once():
    """Many reads in training, as in a loop over a cell, compute the weight once."""
    layer, counted = make()
    total = sum(loss(layer) for _ in range(100))
    assert counted.calls == 1
    total.backward()
    assert_close(gradient(layer), reference_gradient(layer, 100), rtol=1e-4, atol=1e-3)


def test_forward_backward_forward_backward_without_a_step():
    """Two forward and backward passes without a step work.

    pytorch#71062: a naive cache raised "backward a second time".
    """
    layer, counted = make()
    for _ in range(3):
        loss(layer).backward()
    assert counted.calls == 3
    assert_close(gradient(layer), reference_gradient(layer, 3), rtol=1e-4, atol=1e-4)


def test_two_forwards_and_one_backward():
    layer, counted = make()
    first, second = loss(layer), loss(layer)
    (first + second).backward()
    assert counted.calls == 1
    assert_close(gradient(layer), reference_gradient(layer, 2), rtol=1e-4, atol=1e-4)


def test_two_backwards_through_one_graph():
    layer, counted = make()
    y = loss(layer)
    y.backward(retain_graph=True)
    y.backward()
    loss(layer).backward()
    # once for the graph, once more for its second pass, once for the new graph
    assert counted.calls == 3
    assert_close(gradient(layer), reference_gradient(layer, 3), rtol=1e-4, atol=1e-4)


def test_gradients_of_the_input_alone_do_not_consume_the_weight():
    layer, counted = make()
    x = X.clone().requires_grad_()
    torch.autograd.grad(layer(x).sum(), x)
    loss(layer).backward()
    assert counted.calls == 1
    assert_close(gradient(layer), reference_gradient(layer), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_read_without_gradients_does_not_disturb_training(mode):
    layer, _ = make()
    with mode():
        first = layer.weight
    loss(layer).backward()
    with mode():
        second = layer.weight
    assert torch.equal(first, second)
    assert_close(gradient(layer), reference_gradient(layer), rtol=1e-4, atol=1e-4)


def test_evaluation_computes_once_until_something_changes():
    layer, counted = make()
    layer.eval()
    with torch.no_grad():
        for _ in range(10):
            layer(X)
    assert counted.calls == 1
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(0.5)
        layer(X)
        assert counted.calls == 2
        assert_close(layer.weight, expected(layer))


OPTIMIZERS = {
    "fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_any_optimizer_is_seen(name):
    """A step of any optimizer is noticed.

    Fused ones change the coordinates without changing their version.
    """
    layer, _ = make()
    optimizer = OPTIMIZERS[name](layer.parameters())
    for _ in range(3):
        with torch.no_grad():
            stale = layer.weight.clone()
        optimizer.zero_grad()
        loss(layer).backward()
        optimizer.step()
        with torch.no_grad():
            assert_close(layer.weight, expected(layer))
            assert torch.dist(layer.weight, stale) > 1e-3


def test_rebase_load_cast_and_assignment_are_seen():
    layer, _ = make()
    other, _ = make()
    with torch.no_grad():
        assert torch.dist(layer.weight, other.weight) > 0.1
        layer.load_state_dict(other.state_dict())
        assert torch.equal(layer.weight, other.weight)
        isometry.rebase(layer)
        assert_close(layer.weight, expected(layer))
        assert layer.double().weight.dtype == torch.float64
        layer.weight = torch.eye(6, dtype=torch.float64)
        assert_close(layer.weight, torch.eye(6, dtype=torch.float64))


def test_writing_into_a_handed_out_weight_does_not_stay():
    """A write to a weight, as by `nn.init.orthogonal_(layer.weight)`, has no effect."""
    layer, _ = make()
    with torch.no_grad():
        W = layer.weight
        W.zero_()
        assert_close(layer.weight, expected(layer))


def test_a_copy_has_its_own_weight():
    layer, _ = make()
    loss(layer)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.parametrizations.weight.original.mul_(0.5)
    assert_close(copied.weight, expected(copied))
    assert_close(layer.weight, expected(layer))


def test_functional_call_sees_its_own_coordinates():
    layer, _ = make()
    loss(layer)
    key = "parametrizations.weight.original"
    zero = {key: torch.zeros(6, 6)}
    y = functional_call(layer, zero, (X,))
    base = layer.parametrizations.weight[0].base
    assert_close(y, nn.functional.linear(X, base, layer.bias))
    g = torch.func.grad(lambda c: functional_call(layer, {key: c}, (X,)).pow(3).sum())
    current = layer.parametrizations.weight.original.detach()
    assert_close(g(current), reference_gradient(layer), rtol=1e-4, atol=1e-4)
    assert_close(layer.weight, expected(layer))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    """The gradient is right if a checkpointed region reads the weight again."""
    layer, _ = make()
    x = X.clone().requires_grad_()

    def region(x):
        return layer(layer(x))

    before = layer(x).pow(3).sum()
    y = checkpoint(region, x, use_reentrant=reentrant).sum() + layer(x).sum() + before
    y.backward()
    twin = copy.deepcopy(layer)
    twin.zero_grad()
    original = twin.parametrizations.weight.original

    def plain(x):
        return nn.functional.linear(x, expected(twin), twin.bias)

    total = plain(plain(X)).sum() + plain(X).sum() + plain(X).pow(3).sum()
    (g,) = torch.autograd.grad(total, original)
    assert_close(gradient(layer), g, rtol=1e-4, atol=1e-4)


def test_double_backward():
    layer, _ = make()
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
    g.square().sum().backward()
    assert gradient(layer).abs().sum() > 0
    loss(layer).backward()


def test_threads_read_the_same_weight():
    layer, _ = make()
    layer.eval()
    results: list[torch.Tensor] = []

    def read() -> None:
        with torch.no_grad():
            results.append(layer(X))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        y = nn.functional.linear(X, expected(layer), layer.bias)
    assert all(torch.allclose(result, y, atol=1e-6) for result in results)


def test_shared_list_of_coordinates_ties_two_layers():
    """Layers that share their coordinates have one weight and one computation."""
    first, counted = make()
    second = isometry.orthogonal(nn.Linear(6, 6))
    second.parametrizations["weight"] = first.parametrizations["weight"]
    (loss(first) + loss(second)).backward()
    assert counted.calls == 1
    assert torch.equal(first.weight, second.weight)


def test_compiled_and_eager_reads_do_not_mix():
    layer, _ = make()
    loss(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    compiled(X).pow(3).sum().backward()
    assert_close(gradient(layer), reference_gradient(layer), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "retraction"), ROWS)
def test_every_map_is_computed_once(name, retraction, rng):
    case = CASES[name]
    module = case.constrain(Weight(case.random(rng, case.dtype(False))), retraction)
    counted = Counted(module)
    W = [module.weight for _ in range(5)]
    assert counted.calls == 1
    assert all(w is W[0] for w in W)
    with parametrize.cached():
        assert_close(module.weight, W[0])


@pytest.mark.parametrize("again", [False, True], ids=["two losses", "retain_graph"])
def test_backward_passes_through_one_weight(again):
    """Two losses that share only the weight can be differentiated separately."""
    layer = isometry.orthogonal(nn.Linear(8, 8, dtype=torch.float64))
    x, y = torch.randn(2, 3, 8, dtype=torch.float64)
    (layer(x).square().sum() + layer(y).pow(3).sum()).backward()
    X = layer.parametrizations.weight.original
    expected, X.grad = X.grad, None
    first, second = layer(x).square().sum(), layer(y).pow(3).sum()
    first.backward(retain_graph=again)
    second.backward(retain_graph=again)
    assert_close(X.grad, expected)
    if again:
        first.backward()
        second.backward()
        assert_close(X.grad, 2 * expected)


def test_a_second_backward_pass_after_a_step():
    """A second backward pass after a step is an error, as for a plain weight.

    The weight of the old graph no longer exists.
    """
    layer = isometry.orthogonal(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    first, second = layer(torch.randn(3, 8)).sum(), layer(torch.randn(3, 8)).sum()
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="Call `backward` on all losses before"):
        second.backward()


def test_a_backward_pass_frees_what_made_the_weight():
    """A backward pass frees the graph of the weight, while the loss is still held."""
    layer = isometry.orthogonal(nn.Linear(64, 64))
    loss = layer(torch.randn(3, 64)).sum()
    node: Any = layer.weight.grad_fn
    assert node.graph
    loss.backward()
    assert not hasattr(node, "graph")
