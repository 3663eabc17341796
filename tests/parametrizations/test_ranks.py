"""Rebasing in a real data-parallel run of two processes."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import isometry

STEPS = 12


def model(policy: dict) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(6, 6, bias=False, dtype=torch.float64)
    return isometry.orthogonal(layer, **policy)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 8, 6, dtype=torch.float64, generator=rng)
    return x, y


def train(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[int]:
    """Returns the steps after which the base was moved."""
    layer = getattr(network, "module", network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    moved = []
    for step in range(STEPS):
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()
        if (layer.parametrizations.weight.original == 0).all():
            moved.append(step)
    return moved


def work(rank: int, folder: str, policy: dict) -> None:
    """One rank: half of the batch."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    network = DistributedDataParallel(model(policy))
    x, y = (t[rank * 4 : rank * 4 + 4] for t in data())
    moved = train(network, x, y)
    state = {k: v.clone() for k, v in network.module.state_dict().items()}
    torch.save({"state": state, "moved": moved}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "policy", [{"rebase_every": 5}, {"rebase_radius": 0.15}], ids=str
)
def test_all_ranks_rebase_alike_and_as_one_process_would(policy, tmp_path):
    """Base, counter and coordinates are the same bits on both ranks."""
    spawn(work, (str(tmp_path), policy), nprocs=2)
    first, second = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)
    )
    assert first["moved"] == second["moved"] != []
    for key, value in first["state"].items():
        assert torch.equal(value, second["state"][key]), key
    alone = model(policy)
    assert train(alone, *data()) == first["moved"]
    for key, value in alone.state_dict().items():
        assert_close(value, first["state"][key], rtol=0, atol=1e-12)
