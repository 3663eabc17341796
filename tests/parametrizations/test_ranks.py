"""Training in real runs of two processes: data-parallel, and with sharded weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import isometry

STEPS = 12


def model(policy: dict) -> nn.Sequential:
    torch.manual_seed(0)
    options = {"bias": False, "dtype": torch.float64}
    return nn.Sequential(
        isometry.orthogonal(nn.Linear(6, 6, **options), **policy),
        nn.Tanh(),
        isometry.orthogonal(nn.Linear(6, 9, **options), **policy),
        nn.Linear(9, 6, **options),
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 8, 6, dtype=torch.float64, generator=rng)
    return x, y


def whole(X: Any) -> torch.Tensor:
    """A plain tensor, gathered if it is sharded."""
    return X.full_tensor() if hasattr(X, "full_tensor") else X


def train(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[int]:
    """Returns the steps after which the first base was moved."""
    layer = getattr(network, "module", network)[0]
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    moved = []
    for step in range(STEPS):
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()
        if (whole(layer.parametrizations.weight.original) == 0).all():
            moved.append(step)
    return moved


def sharded(network: nn.Sequential) -> nn.Sequential:
    for layer in network:
        if not isinstance(layer, nn.Tanh):
            fully_shard(layer)
    fully_shard(network)
    return network


def work(rank: int, folder: str, kind: str, policy: dict) -> None:
    """One rank: half of the batch."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    x, y = (t[rank * 4 : rank * 4 + 4] for t in data())
    network = model(policy)
    network = DistributedDataParallel(network) if kind == "DDP" else sharded(network)
    moved = train(network, x, y)
    plain = getattr(network, "module", network)
    state = {k: whole(v).clone() for k, v in plain.state_dict().items()}
    torch.save({"state": state, "moved": moved}, Path(folder) / f"{rank}.pt")
    if kind == "FSDP":
        state_dict_saver.save(
            network.state_dict(), checkpoint_id=f"{folder}/checkpoint"
        )
        fresh = sharded(model(policy))
        restored = fresh.state_dict()
        state_dict_loader.load(restored, checkpoint_id=f"{folder}/checkpoint")
        fresh.load_state_dict(restored)
        assert torch.equal(fresh(x), network(x))
    dist.destroy_process_group()


POLICIES = [{}, {"rebase_every": 5}, {"rebase_radius": 0.15}]


@pytest.mark.parametrize("kind", ["DDP", "FSDP"])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_two_processes_are_as_one(policy, kind, tmp_path):
    """Base, counter and coordinates: the same bits on both ranks, as of one process."""
    spawn(work, (str(tmp_path), kind, policy), nprocs=2)
    first, second = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)
    )
    assert first["moved"] == second["moved"]
    assert bool(first["moved"]) == bool(policy)
    for key, value in first["state"].items():
        assert torch.equal(value, second["state"][key]), key
    alone = model(policy)
    assert train(alone, *data()) == first["moved"]
    for key, value in alone.state_dict().items():
        assert_close(value, first["state"][key], rtol=0, atol=1e-12)
