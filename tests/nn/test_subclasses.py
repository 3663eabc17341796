"""Recurrent layers compute on tensors whose memory C cannot read."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.multiprocessing.spawn import spawn
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor

from isometry.nn import URNN, ExpGRU, ExpLSTM, ExpRNN, ScoRNN
from tests.helpers import PlainSubclass, eps

LAYERS = {
    "exp": lambda: ExpRNN(3, 32),
    "exp unitary": lambda: ExpRNN(3, 32, unitary=True),
    "exp in chunks": lambda: ExpRNN(3, 32, last_only=True, chunk=2),
    "lstm": lambda: ExpLSTM(3, 32),
    "gru": lambda: ExpGRU(3, 32),
    "scornn": lambda: ScoRNN(3, 32),
    "urnn": lambda: URNN(3, 32),
}


def gradients(layer: Any, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The outputs, and the gradients of a loss for the input and the weights."""
    x = x.requires_grad_()
    out = layer(x)[0]
    value = (out.real * out.real).sum()
    dx, *others = torch.autograd.grad(value, [x, *layer.parameters()])
    return out, dx, others


def assert_near_in_eps(X: Tensor, expected: Tensor) -> None:
    # 14: twice the worst over 20 seeds, 7.0 (coordinates of ExpRNN)
    atol = 14 * eps(torch.float32) * float(expected.detach().abs().max())
    assert_close(X, expected, rtol=0, atol=atol)


def unwrapped(X: Tensor) -> Tensor:
    if not isinstance(X, TwoTensor):
        return X
    assert torch.equal(X.a, X.b)
    return X.a


@pytest.mark.parametrize("name", LAYERS)
def test_wrappers_without_memory_compute(name, rng):
    """Wrappers without memory work: their address is 0, and C must not read it."""
    layer, x = LAYERS[name](), torch.randn(5, 4, 3, generator=rng)
    out, dx, others = gradients(layer, x.clone())
    twin_out, twin_dx, twin_others = gradients(layer, TwoTensor(x.clone(), x.clone()))
    assert isinstance(twin_out, TwoTensor)
    assert_near_in_eps(unwrapped(twin_out), out)
    # `view_as_real` of a TwoTensor loses the flag for conjugation, so gradients of
    # complex numbers are wrong, also through torch's own operations.
    if out.is_complex():
        return
    for X, expected in zip((twin_dx, *twin_others), (dx, *others), strict=True):
        assert_near_in_eps(unwrapped(X), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_subclasses_with_memory_compute(name, rng):
    layer, x = LAYERS[name](), torch.randn(5, 4, 3, generator=rng)
    out, dx, _ = gradients(layer, x.clone())
    results = gradients(layer, x.clone().as_subclass(PlainSubclass))
    assert_near_in_eps(results[0].as_subclass(Tensor), out)
    assert_near_in_eps(results[1].as_subclass(Tensor), dx)


@pytest.mark.once
def test_sharded_layers_compute(tmp_path: Path):
    """Layers work with FSDP2 and `distribute_module`, in a process of their own."""
    spawn(_sharded, (str(tmp_path / "store"),), nprocs=1)


def _sharded(rank: int, store: str) -> None:
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    x = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    for make in (ExpRNN, ExpLSTM, ExpGRU):
        layer = make(3, 32)
        expected = layer(x)[0]
        expected.sum().backward()
        sharded = fully_shard(copy.deepcopy(layer), mesh=mesh)
        sharded.zero_grad()
        out = sharded(x)[0]
        out.sum().backward()
        assert_near_in_eps(out, expected)
        for p, q in zip(sharded.parameters(), layer.parameters(), strict=True):
            grad: Any = p.grad
            assert q.grad is not None
            assert_near_in_eps(grad.full_tensor(), q.grad)
        spread = distribute_module(layer, mesh)
        out = spread(distribute_tensor(x, mesh, [Replicate()]))[0]
        assert_near_in_eps(out.full_tensor(), expected)
    dist.destroy_process_group()
