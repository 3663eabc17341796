"""Loss after equally many steps, with a fixed base and with one that moves."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

import isometry
from isometry.groups import SO
from isometry.lab._process import machine
from isometry.lab.tasks import CopyingTask
from isometry.lab.tasks.mnist import load_images
from isometry.nn import ExpRNN

EVERY, STEPS = 100, 500
SEEDS = (1, 2, 3, 4, 5)

# the seed with which the rate is chosen for the fixed base; it is not in `SEEDS`
TRIAL_SEED = 0

# A number of steps that no run reaches. Without `rebase_every`, the base of ExpRNN
# would be the identity instead of the initial weight, so the contender with a fixed
# base sets it to this number. The two contenders then differ only in whether the base
# moves.
NEVER = 10**9

# a model, and a function from the number of a step to the loss of the model
Problem = tuple[nn.Module, Callable[[int], Tensor]]


def procrustes(n: int, seed: int, every: int | None) -> Problem:
    """Recover a random rotation from its effect on 2 n vectors."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * n, n, generator=generator)
    y = x @ SO(n).random(generator=generator).mT
    layer = nn.Linear(n, n, bias=False)
    isometry.orthogonal(layer, init="identity", rebase_every=every)
    return layer, lambda _: (layer(x) - y).square().mean()


def deep(n: int, seed: int, every: int | None) -> Problem:
    """Six orthogonal layers learn what six others compute."""
    generator = torch.Generator().manual_seed(seed)

    def network(**options: Any) -> nn.Sequential:
        layers = [
            isometry.orthogonal(
                nn.Linear(n, n), init="haar", generator=generator, **options
            )
            for _ in range(6)
        ]
        for layer in layers:
            nn.init.zeros_(layer.bias)
        parts = [part for layer in layers for part in (layer, nn.LeakyReLU(0.5))]
        return nn.Sequential(*parts)

    teacher, student = isometry.fold(network()), network(rebase_every=every)
    x = torch.randn(256, n, generator=generator)
    with torch.no_grad():
        y = teacher(x)
    return student, lambda _: (student(x) - y).square().mean()


def copying(n: int, seed: int, every: int | None) -> Problem:
    """Remember ten symbols over a lag of 20, with ExpRNN."""
    task = CopyingTask(lag=20)
    model = _Recurrent(10, n, task.output_size, seed, every)

    def loss(step: int) -> Tensor:
        batch = task.batch(step, size=32, seed=seed)
        return task.loss(model.head(model.layer(batch.x)[0]), batch)

    return model, loss


def pixels(n: int, seed: int, every: int | None) -> Problem:
    """Classify digits of 14 x 14 permuted pixels, read four at a time, with ExpRNN."""
    images, labels = _digits(seed)
    order = torch.randperm(196, generator=torch.Generator().manual_seed(92916))
    x = images[:, order].reshape(-1, 49, 4).transpose(0, 1)
    model = _Recurrent(4, n, 10, seed, every)

    def loss(step: int) -> Tensor:
        rows = _rows(step, len(labels), 50, seed)
        states, _ = model.layer(x[:, rows])
        return cross_entropy(model.head(states[-1]), labels[rows])

    return model, loss


def autoencoder(n: int, seed: int, every: int | None) -> Problem:
    """Encode digits of 14 x 14 pixels as n numbers, with three orthogonal layers."""
    images, _ = _digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        isometry.orthogonal(nn.Linear(196, n), rebase_every=every),
        nn.LeakyReLU(0.5),
        isometry.orthogonal(nn.Linear(n, n), rebase_every=every),
        nn.LeakyReLU(0.5),
        isometry.orthogonal(nn.Linear(n, 196), rebase_every=every),
    )

    def loss(step: int) -> Tensor:
        x = images[_rows(step, len(images), 50, seed)]
        return (model(x) - x).square().mean()

    return model, loss


class _Recurrent(nn.Module):
    """ExpRNN and a linear map of its states."""

    def __init__(
        self, features: int, n: int, classes: int, seed: int, every: int | None
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        self.layer = ExpRNN(
            features, n, rebase_every=every or NEVER, generator=generator
        )
        self.head = nn.Linear(n, classes)


def _digits(seed: int) -> tuple[Tensor, Tensor]:
    """2,000 images of MNIST at half their size, and their classes."""
    train, _ = load_images("mnist", None)
    rows = torch.arange(2000) + 2000 * seed
    images = train.pixels[rows].reshape(-1, 1, 28, 28).float() / 255
    return avg_pool2d(images, 2).flatten(1), train.labels[rows].long()


def _rows(step: int, number: int, batch: int, seed: int) -> Tensor:
    """Indices of the images in a batch; each epoch has a random order of its own."""
    epoch, place = divmod(step * batch, number)
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    return torch.randperm(number, generator=generator)[place : place + batch]


# for each problem, the function that makes it, its sizes, and the rate of coordinates
# over the rate of other parameters
PROBLEMS: dict[str, tuple[Callable[..., Problem], tuple[int, int], float]] = {
    "Procrustes": (procrustes, (16, 64), 1.0),
    "deep network": (deep, (16, 32), 1.0),
    "copying": (copying, (32, 64), 0.1),
    "permuted digits": (pixels, (32, 64), 0.1),
    "autoencoder": (autoencoder, (16, 32), 0.1),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "Adam": torch.optim.Adam,
}
# for each problem and optimizer, three rates, of which the best is used
RATES = {
    "Procrustes": {"SGD": (1.0, 3.0, 10.0), "Adam": (0.01, 0.03, 0.1)},
    "deep network": {"SGD": (0.3, 1.0, 3.0), "Adam": (0.003, 0.01, 0.03)},
    "copying": {"SGD": (0.003, 0.01, 0.03), "Adam": (0.003, 0.01, 0.03)},
    "permuted digits": {"SGD": (0.001, 0.003, 0.01), "Adam": (0.001, 0.003, 0.01)},
    "autoencoder": {"SGD": (1.0, 3.0, 10.0), "Adam": (0.003, 0.01, 0.03)},
}


def rebase(*, steps: int = STEPS, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    """Train each problem with each optimizer, with a fixed base and a moving one.

    Both bases get the same data, initial weights and rate. The rate is the best of
    three for the fixed base, found with `TRIAL_SEED`.

    Args:
        steps: number of steps of the optimizer.
        seeds: seeds of the data and of the initial weights.

    Returns:
        A row for each problem, size and optimizer: the rate, and for both bases the
        final loss of each seed and the curve of medians over the seeds.
    """
    rows = []
    for name, (_, sizes, _) in PROBLEMS.items():
        for n in sizes:
            for optimizer in OPTIMIZERS:
                rows.append(_row(name, n, optimizer, steps, seeds))
                print(
                    name, n, optimizer, rows[-1]["rate"], rows[-1]["final"], flush=True
                )
    return {"machine": machine(), "every": EVERY, "steps": steps, "rows": rows}


def _row(
    name: str, n: int, optimizer: str, steps: int, seeds: tuple[int, ...]
) -> dict[str, Any]:
    def train(rate: float, seed: int, every: int | None) -> list[float]:
        return _train(name, n, optimizer, rate, steps, seed, every)

    rate = min(
        RATES[name][optimizer], key=lambda rate: final(train(rate, TRIAL_SEED, None))
    )
    curves = {
        label: [train(rate, seed, every) for seed in seeds]
        for label, every in (("fixed", None), ("moving", EVERY))
    }
    return {
        "problem": name,
        "n": n,
        "optimizer": optimizer,
        "rate": rate,
        "final": {
            label: [_digits3(final(c)) for c in runs] for label, runs in curves.items()
        },
        "median": {
            label: [_digits3(statistics.median(at)) for at in zip(*runs, strict=True)]
            for label, runs in curves.items()
        },
    }


def _train(  # noqa: PLR0917 - the coordinates of a run, in order
    name: str,
    n: int,
    optimizer: str,
    rate: float,
    steps: int,
    seed: int,
    every: int | None,
) -> list[float]:
    """Mean loss of every ten steps, or infinity where it is not finite."""
    make, _, ratio = PROBLEMS[name]
    torch.manual_seed(seed)
    model, loss_at = make(n, seed, every)
    groups = isometry.param_groups(model, lr=rate, orthogonal_lr_ratio=ratio)
    descent = OPTIMIZERS[optimizer](groups)
    losses = []
    for step in range(steps):
        descent.zero_grad()
        loss = loss_at(step)
        loss.backward()
        descent.step()
        losses.append(loss.detach())
    means = torch.stack(losses).double().reshape(-1, 10).mean(1)
    return torch.where(means.isfinite(), means, torch.inf).tolist()


def final(curve: list[float]) -> float:
    """Mean loss of the last 50 steps."""
    return statistics.fmean(curve[-5:])


def _digits3(number: float) -> float:
    return float(f"{number:.3g}")
