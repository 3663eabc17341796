"""A task and networks as a user would write them, in a module of their own."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

import isometry
from isometry.lab import AbstractEndlessTask, Batch, OptimizerRecipe, Schedule


# With slots, `OrderTask.steps` is not the default of the field. The help lacked it.
@dataclass(frozen=True, slots=True)
class OrderTask(AbstractEndlessTask):
    """Tell which of two tones came first.

    Attributes:
        steps: time steps of a sequence.
        held_out: sequences for validation, and as many for test.
    """

    name: ClassVar[str] = "order"
    last_only: ClassVar[bool] = True
    metric: ClassVar[str] = "right"
    larger_is_better: ClassVar[bool | None] = True

    steps: int = 6
    held_out: int = 8

    @property
    def input_size(self) -> int:
        return 3

    @property
    def output_size(self) -> int:
        return 2

    def draw(self, rng, size) -> Batch:
        first = torch.from_numpy(rng.integers(2, size=size))
        x = torch.zeros(self.steps, size, dtype=torch.int64)
        x[0], x[2] = 1 + first, 2 - first
        return Batch(x, first)

    def loss(self, outputs, batch) -> Tensor:
        return cross_entropy(outputs[-1], batch.y)

    def metrics(self, outputs, batch) -> dict[str, float]:
        return {"right": (outputs[-1].argmax(-1) == batch.y).float().mean().item()}


class Layer(nn.Module):
    """A layer that is called like torch's, without an output layer."""

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.read = nn.Linear(input_size, hidden_size, bias=bias)
        hidden = nn.Linear(hidden_size, hidden_size, bias=False)
        self.turn = isometry.orthogonal(hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, states = x.new_zeros(()), []
        for u in self.read(x):
            h = torch.tanh(self.turn(h.expand_as(u)) + u)
            states.append(h)
        return torch.stack(states), h


class Whole(nn.Module):
    """A network with its own input and output layers, and its own optimizer."""

    reads_classes = True
    schedule = Schedule((OptimizerRecipe(SGD, {"lr": 0.125}),), "tests")

    def __init__(self, *, hidden_size: int, output_size: int, input_size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(input_size, hidden_size)
        self.layer = nn.GRU(hidden_size, hidden_size)
        self.head = nn.Linear(hidden_size, output_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x))[0])


class Plain(nn.Module):
    """A network with its own output layer, which reads features."""

    def __init__(self, input_size: int, hidden_size: int, output_size: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(input_size, hidden_size)
        self.head = nn.Linear(hidden_size, output_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


class OneTensor(Layer):
    """A layer that forgets to return its last state."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[0]


class Failing(Layer):
    """A layer with a mistake inside."""

    def forward(self, x: Tensor) -> Any:
        raise ValueError(f"a scale of {x.ndim} went wrong")


class NoSizes(nn.Module):
    """A network that does not take sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


@dataclass(frozen=True)
class ListTask(OrderTask):
    """A task with an option that a command line cannot spell."""

    places: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class NumberTask(OrderTask):
    """A task with a choice among numbers, which a command line reads as strings."""

    level: Literal[1, 2] = 1


@dataclass(frozen=True)
class RateTask(OrderTask):
    """A task with an option that training already has."""

    lr: float = 0.5


@dataclass(frozen=True)
class ShortTask(OrderTask):
    """A task whose options begin like several options of training."""

    mode: Literal["all", "some"] = "some"
    h: float = 0.5
    s: int = 1
    o: bool = False


@dataclass(frozen=True)
class TableTask(OrderTask):
    """A task with an option that is a table."""

    table: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NoHeldOutTask(AbstractEndlessTask):
    """A task that forgets `held_out`."""

    steps: int = 6
    input_size: ClassVar[int] = 3
    output_size: ClassVar[int] = 2
    draw, loss = OrderTask.draw, OrderTask.loss


@dataclass(frozen=True)
class OutTask(OrderTask):
    """A task with options that the command already has."""

    out: int = 1
    config: str = ""
    task: str = ""


@dataclass(frozen=True)
class FolderTask(OrderTask):
    """A task whose option `root` is not a folder, and whose `folder` is one."""

    paths: ClassVar[frozenset[str]] = frozenset({"folder"})

    root: str | int = "C"
    folder: str | None = None


@dataclass(frozen=True)
class OutlivedTask(OrderTask):
    """A task whose run fails, while a thread lives on until the file `released` exists.

    The message of the error has 100,000 characters.
    """

    released: str = ""

    def check(self) -> None:
        threading.Thread(target=self.wait).start()
        raise ValueError("x" * 100_000)

    def wait(self) -> None:
        # if the test fails, it must not leave this process behind
        end = time.monotonic() + 60
        while time.monotonic() < end and not Path(self.released).exists():
            time.sleep(0.02)


@dataclass(frozen=True)
class NoFolderTask(OrderTask):
    """A task whose `paths` name `folder`, which is no option, and `steps`, a number."""

    paths: ClassVar[frozenset[str]] = frozenset({"folder", "steps"})
