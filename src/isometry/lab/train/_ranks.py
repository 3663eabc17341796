"""One process, or several under torchrun that train one model."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Ranks:
    """This process among all of them.

    Attributes:
        rank: the number of this one.
        count: how many there are.
        device: where this one computes.
    """

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model, whose gradients become the mean over all processes."""
        if self.count == 1:
            return model
        return nn.parallel.DistributedDataParallel(model)

    def sum(self, *numbers: float) -> list[float]:
        """Sums over all processes, in float64."""
        if self.count == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def share(self, data: bytes | None) -> bytes:
        """What the first process has, for all: they may not see one file system."""
        if self.count == 1:
            return data or b""
        size = torch.tensor(len(data or b""), device=self.device)
        dist.broadcast(size, 0)
        buffer = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        if self.is_first and data:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(buffer, 0)
        return buffer.cpu().numpy().tobytes()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The processes that torchrun has started, or this one alone.

    Args:
        device: cpu or cuda; under torchrun each process takes the card of its number.

    Yields:
        This process among them.

    Raises:
        ValueError: if torch has no such device here.
    """
    _check_device(device)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Ranks(0, 1, torch.device(device))
        return
    cuda = torch.device(device).type == "cuda"
    place = torch.device(device)
    if cuda:
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield Ranks(dist.get_rank(), count, place)
    finally:
        dist.destroy_process_group()


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    # what torch raises depends on how it was built
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"`device` must be one that torch has here; got {device!r}: {first}. "
            f"Leave it out to train on the processor."
        ) from error
