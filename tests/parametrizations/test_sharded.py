"""Constrained weights as DTensors, outside of a forward pass.

Everything runs in a process of its own, since it used to crash (SIGSEGV).
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.multiprocessing.spawn import spawn
from torch.testing import assert_close

import isometry
from isometry.groups import Sphere

OPTIONS = [
    {},
    {"use_trivialization": False, "det": 1},
    {"orthogonal_map": "cayley"},
    {"orthogonal_map": "householder"},
]


def trained(n: int, options: dict[str, Any]) -> nn.Sequential:
    """A square and a tall weight, away from their starts."""
    torch.manual_seed(n)
    model = nn.Sequential(
        isometry.orthogonal(nn.Linear(n, n), **options),
        isometry.orthogonal(
            nn.Linear(n, 2 * n), **{k: v for k, v in options.items() if k != "det"}
        ),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(5, n)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model


def check_fully_shard(n: int, options: dict[str, Any], mesh: Any) -> None:
    """Reading, diagnosing, moving and folding agree with the plain model."""
    plain = trained(n, options)
    model = fully_shard(copy.deepcopy(plain), mesh=mesh)
    x = torch.randn(5, n)
    model(x).sum().backward()
    for layer, like in zip(model, plain, strict=True):
        assert type(layer.weight) is torch.Tensor
        assert_close(layer.weight, like.weight)
    expected = isometry.diagnose(plain)
    for key, diagnosis in isometry.diagnose(model).items():
        assert diagnosis.orthogonality_error < 1e-5
        assert diagnosis.border_distance == expected[key].border_distance
    isometry.rebase(model)
    assert_close(model(x), plain(x))
    isometry.fold(model)
    assert type(model[0].weight) is nn.Parameter
    assert_close(model(x), plain(x))


def check_distribute_module(n: int, options: dict[str, Any], mesh: Any) -> None:
    """With `distribute_module` all tensors are DTensors, including the weight."""
    plain = trained(n, options)
    model = distribute_module(copy.deepcopy(plain), mesh)
    x = torch.randn(5, n)
    y = model(distribute_tensor(x, mesh, [Replicate()]))
    assert_close(y.full_tensor(), plain(x))
    y.sum().backward()
    plain(x).sum().backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert_close(p.grad.full_tensor(), q.grad)
    assert isometry.diagnose(model)["0.weight"].orthogonality_error < 1e-5


def check_sphere(n: int, mesh: Any) -> None:
    """The nearest points of sharded vectors are sharded; zero goes to the origin."""
    X = torch.randn(3, n)
    X[1] = 0
    Q = Sphere(n).nearest(distribute_tensor(X, mesh, [Replicate()])).full_tensor()
    assert_close(Q, Sphere(n).nearest(X))


def work(_rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
    )
    mesh = init_device_mesh("cpu", (1,))
    check_sphere(4, mesh)
    for options in OPTIONS:
        # below and above the size from which C is used
        for n in (6, 64):
            check_fully_shard(n, options, mesh)
            check_distribute_module(n, options, mesh)
    dist.destroy_process_group()


@pytest.mark.once
def test_sharded_weights_are_read_diagnosed_moved_and_folded(tmp_path: Path):
    spawn(work, (str(tmp_path),), nprocs=1)
