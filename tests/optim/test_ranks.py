"""Data-parallel training in two real processes, unsynchronized in geoopt#168."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import isometry
from isometry import declare
from isometry.groups import SO, Stiefel
from isometry.optim import RiemannianAdam
from tests.helpers import new_generator


def model() -> nn.Sequential:
    rng = new_generator(0)
    network = nn.Sequential(
        nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 2), nn.Linear(2, 6)
    ).double()
    for layer, manifold in ((0, SO(6)), (2, Stiefel(6, 2)), (3, None)):
        linear = network[layer]
        for p in linear.parameters():
            p.data = torch.randn(p.shape, dtype=p.dtype, generator=rng)
        if manifold is not None:
            Q = manifold.random(dtype=torch.float64, generator=rng)
            linear.weight = nn.Parameter(Q if layer == 0 else Q.mT.contiguous())
            declare(linear, "weight", manifold)
    return network


def data() -> tuple[torch.Tensor, torch.Tensor]:
    rng = new_generator(1)
    x, y = torch.randn(2, 8, 6, dtype=torch.float64, generator=rng)
    return x, y


def train(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = RiemannianAdam(isometry.param_groups(network, lr=0.1))
    # DDP puts "module." in front of names, and manifolds are still found
    assert sum(g["manifold"] is not None for g in optimizer.param_groups) == 2
    for _ in range(20):
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()


def work(rank: int, folder: str) -> None:
    """One rank trains on half of the batch."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    x, y = (t[rank * 4 : rank * 4 + 4] for t in data())
    network = DistributedDataParallel(model())
    train(network, x, y)
    torch.save(network.module.state_dict(), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_are_as_one(tmp_path):
    """Both ranks have the same bits, and the weights of one process."""
    spawn(work, (str(tmp_path),), nprocs=2)
    first, second = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)
    )
    alone = model()
    start = {key: value.clone() for key, value in alone.state_dict().items()}
    train(alone, *data())
    for key, value in alone.state_dict().items():
        assert torch.equal(first[key], second[key]), key
        # the mean of two halves rounds differently, and Adam divides; 2e-14 was
        # measured
        assert_close(first[key], value, rtol=0, atol=1e-11)
        assert not torch.equal(value, start[key])
