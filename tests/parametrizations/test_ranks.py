"""Training in two real processes: data-parallel, and with sharded weights."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import isometry
from tests.helpers import new_generator, shifted_seed

STEPS = 12


def model(policy: dict) -> nn.Sequential:
    torch.manual_seed(shifted_seed(0))
    options = {"bias": False, "dtype": torch.float64}
    return nn.Sequential(
        isometry.orthogonal(nn.Linear(6, 6, **options), **policy),
        nn.Tanh(),
        isometry.orthogonal(nn.Linear(6, 9, **options), **policy),
        nn.Linear(9, 6, **options),
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    rng = new_generator(1)
    x, y = torch.randn(2, 8, 6, dtype=torch.float64, generator=rng)
    return x, y


def whole(X: Any) -> torch.Tensor:
    """A plain tensor, gathered if it is sharded."""
    return X.full_tensor() if hasattr(X, "full_tensor") else X


def train(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[int]:
    """Train; return the steps after which the first base was moved."""
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


POLICIES = [{}, {"rebase_every": 5}, {"rebase_radius": 0.15}]
CASES = [(kind, policy) for kind in ("DDP", "FSDP") for policy in POLICIES]


def work(rank: int, folder: str) -> None:
    """One rank of all cases trains on half of the batch."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    seen = [run(rank, f"{folder}/{i}", *case) for i, case in enumerate(CASES)]
    torch.save(seen, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def run(rank: int, checkpoint: str, kind: str, policy: dict) -> dict[str, Any]:
    """The state after training, and the steps at which the first base moved."""
    x, y = (t[rank * 4 : rank * 4 + 4] for t in data())
    network = model(policy)
    network = DistributedDataParallel(network) if kind == "DDP" else sharded(network)
    moved = train(network, x, y)
    plain = getattr(network, "module", network)
    state = {k: whole(v).clone() for k, v in plain.state_dict().items()}
    if kind == "FSDP":
        state_dict_saver.save(network.state_dict(), checkpoint_id=checkpoint)
        fresh = sharded(model(policy))
        restored = fresh.state_dict()
        state_dict_loader.load(restored, checkpoint_id=checkpoint)
        fresh.load_state_dict(restored)
        assert torch.equal(fresh(x), network(x)), (kind, policy)
    return {"state": state, "moved": moved}


def test_two_processes_are_as_one(tmp_path):
    """Both ranks have equal bits, and the numbers of one process up to rounding.

    All cases share the two processes, whose start takes longer than their training.
    """
    spawn(work, (str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for case, first, second in zip(CASES, *ranks, strict=True):
        policy = case[1]
        assert first["moved"] == second["moved"], case
        assert bool(first["moved"]) == bool(policy), case
        for key, value in first["state"].items():
            assert torch.equal(value, second["state"][key]), (case, key)
        alone = model(policy)
        assert train(alone, *data()) == first["moved"], case
        for key, value in alone.state_dict().items():
            assert_close(value, first["state"][key], rtol=0, atol=1e-12)
