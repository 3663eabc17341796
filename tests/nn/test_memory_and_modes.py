"""Memory that somebody else still reads, and the modes of torch."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset

from isometry._backend import memory
from isometry.linalg import skew
from isometry.nn import ExpGRU, ExpLSTM, ExpRNN

# a storage of 2^19 bytes or more is remembered, to be used again
SHAPE = (300, 1000)


class States(Dataset):
    """States computed by a worker; the i-th are i + 1 times the first.

    They are so large that their storage is remembered.
    """

    def __init__(self) -> None:
        self.layer = ExpRNN(3, 64, nonlinearity="identity", bias=False)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Tensor:
        with torch.no_grad():
            return self.layer(torch.full((40, 64, 3), i + 1.0))[0]


def test_batches_of_a_worker_stay_what_they_are():
    """Batches of a worker keep their values.

    They all used to become equal to the last one: the worker wrote to memory that the
    other process still read.
    """
    loader = DataLoader(
        States(), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    first, *others = list(loader)
    for i, states in enumerate(others, start=2):
        assert_close(states, i * first, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "hold",
    [Tensor.untyped_storage, Tensor.numpy, Tensor.detach, lambda X: X[3]],
    ids=["storage", "numpy", "detach", "view"],
)
def test_memory_is_not_free_while_somebody_holds_it(hold: Callable):
    """Memory is not recycled while a storage, array or view refers to it.

    A reference to the storage itself used not to count, since Python has only one
    object for a storage.
    """
    memory.release_memory()
    like = torch.empty(0)
    X = memory.recycled(SHAPE, like)
    place, held = X.data_ptr(), hold(X)
    del X
    assert memory.recycled(SHAPE, like).data_ptr() != place
    del held
    assert place in {memory.recycled(SHAPE, like).data_ptr() for _ in range(2)}
    memory.release_memory()


def test_lengths_that_differ_do_not_fill_the_memory(monkeypatch):
    """Sequences of many lengths do not fill the memory.

    Eight storages of any size used to be remembered, even of half a gigabyte each.
    """
    monkeypatch.setattr(memory, "_MOST_BYTES", 2**22)
    memory.release_memory()
    like = torch.empty(0)
    for rows in range(1000, 1008):
        memory.recycled((rows, 300), like)
    # three of them are below 2^22 bytes
    expected = [rows * 1200 for rows in (1005, 1006, 1007)]
    assert [len(s) for s in memory._pool[0]] == expected
    # a larger storage is not remembered at all, and does not replace the others
    memory.recycled((10_000, 300), like)
    assert [len(s) for s in memory._pool[0]] == expected
    memory.release_memory()


def test_backward_passes_under_vmap(engine, rng):
    """`vmap` of `torch.autograd.grad` agrees with a loop.

    It used to raise an error about storage.
    """
    layer = ExpRNN(3, 40)
    x = torch.randn(5, 4, 3, generator=rng).requires_grad_()
    last = layer(x)[1]
    inputs = [x, *layer.parameters()]

    def gradients(G: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(last, inputs, G, retain_graph=True)

    G = torch.randn(3, *last.shape, generator=rng)
    loop = zip(*(gradients(g) for g in G), strict=True)
    for batched, rows in zip(torch.func.vmap(gradients)(G), loop, strict=True):
        expected = torch.stack(rows)
        # twice the worst over 25 seeds; inside `vmap` torch computes instead of C
        atol = 1.2e-6 * float(expected.abs().max())
        assert_close(batched, expected, rtol=0, atol=atol)


def test_a_minus_that_is_put_off_is_seen(rng):
    """A lazily negated tensor is read correctly: torch keeps X and a flag for -X."""
    neg_view: Any = vars(torch)["_neg_view"]
    X = torch.randn(64, 64, generator=rng)
    assert torch.equal(skew(neg_view(X)), -skew(X))


def test_backward_inside_autocast_is_the_same(engine, rng):
    """A backward pass inside autocast gives the same gradients, of second order too.

    They used to be computed in bfloat16: 3 to 9 percent off.
    """
    layer, x = ExpRNN(3, 40), torch.randn(30, 4, 3, generator=rng)
    results = []
    for enabled in (False, True):
        layer.zero_grad()
        y = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = layer(y)[0].square().sum()
            out.backward(retain_graph=True)
            once = [p.grad.clone() for p in layer.parameters()]
            (g,) = torch.autograd.grad(out, y, create_graph=True)
        twice = torch.autograd.grad(g.square().sum(), list(layer.parameters()))
        results.append([*once, *twice])
    assert_close(results[1], results[0], rtol=0, atol=0)


def test_fake_tensors_have_shapes_only():
    """Layers run on fake tensors, as tools that estimate memory do; C does not."""
    layer = ExpRNN(3, 64, last_only=True)
    mode = FakeTensorMode()
    state = {k: mode.from_tensor(X) for k, X in layer.state_dict().items()}
    with mode:
        x = torch.empty(40, 64, 3)
        out, last = torch.func.functional_call(layer, state, (x,))
    assert out.shape == (1, 64, 64)
    assert last.shape == (1, 64, 64)


@pytest.mark.parametrize("layer", [ExpRNN, ExpLSTM, ExpGRU])
def test_what_code_for_torchs_layers_asks_for(layer):
    """`flatten_parameters` and torch's option names work, as code for torch expects."""
    network = layer(3, 5, 2, bias=False)
    network.flatten_parameters()
    assert (network.hidden_size, network.num_layers, network.bias) == (5, 2, False)
    if layer is ExpRNN:
        assert network.nonlinearity == "modrelu"


@pytest.mark.errors
@pytest.mark.parametrize(("layer", "hx"), [(ExpRNN, 0), (ExpLSTM, (0, 0))])
def test_a_state_that_is_no_tensor_is_an_error(layer, hx):
    with pytest.raises(TypeError, match=r"`hx` must be a torch.Tensor; got int"):
        layer(3, 5)(torch.zeros(7, 4, 3), hx)


def test_import_does_not_load_the_compiler():
    """`import isometry` does not import Dynamo, which took 5.3 of 9.5 seconds."""
    code = "import isometry.nn, sys; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
