"""Test accuracy against seconds of training: an MLP on MNIST."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import layers
from isometry.lab._data.catalogue import CATALOGUE, find
from isometry.lab.tasks.mnist import load_images
from isometry.linalg import skew

NAMES = (layers.OURS, layers.TORCH_EXP, layers.TORCH_CAYLEY, layers.UNCONSTRAINED)
WIDTH, DEPTH = 512, 3
# 400 steps with a batch of 300 are two epochs
BATCH, STEPS, SEEDS = 300, 400, 3
RATE = 1e-3
# steps in a turn: few, so that other load of the machine affects all contenders alike
TURN = 10
# steps after which the test accuracy is measured, besides the last step
TEST_STEPS = (10, 20, 40, 70, 110, 160, 220, 300)


def default_folder() -> Path:
    """The folder that the variable ISOMETRY_DATA names, or one beside the checkout."""
    beside = Path(__file__).parents[2] / "shared" / "data" / "mnist"
    return Path(os.environ.get("ISOMETRY_DATA", beside))


def missing(folder: Path) -> list[str]:
    """Names of the MNIST files that a folder lacks."""
    files = CATALOGUE["mnist"].files
    return [file.name for file in files if find(file, folder) is None]


def standardized(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images as rows with their labels, for training and for the test.

    Pixels are standardized by the mean and deviation of the training images.
    """
    train, test = load_images("mnist", folder)
    x, test_x = (images.pixels.float() / 255 for images in (train, test))
    mean, deviation = x.mean(), x.std()
    x, test_x = ((pixels - mean) / deviation for pixels in (x, test_x))
    return (x, train.labels), (test_x, test.labels)


def network(name: str, *, seed: int) -> nn.Module:
    """An MLP with 784 inputs, 10 outputs and the 512 x 512 layers of a contender."""
    parts: list[nn.Module] = []
    for depth in range(DEPTH):
        plain = layers.orthogonal_linear(WIDTH, WIDTH, seed=100 * seed + depth)
        parts += [layers.constrain_as(plain, name), nn.ReLU()]
    first = layers.orthogonal_linear(28 * 28, WIDTH, seed=100 * seed + 10)
    last = layers.orthogonal_linear(WIDTH, 10, seed=100 * seed + 11)
    return nn.Sequential(first, nn.ReLU(), *parts, last)


def batches(count: int, *, seed: int) -> Iterator[Tensor]:
    """Indices of the images of each step. No image repeats within an epoch."""
    rng = torch.Generator().manual_seed(seed)
    while True:
        for indices in torch.randperm(count, generator=rng).split(BATCH):
            if len(indices) == BATCH:
                yield indices


class Run:
    """One network in training, with its clock and its test results."""

    def __init__(self, name: str, seed: int, steps: int, x: Tensor, y: Tensor) -> None:
        self.name, self.seed, self.x, self.y = name, seed, x, y
        self.model = network(name, seed=seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, T_max=steps
        )
        self.batches = batches(len(x), seed=seed)
        self.step, self.clock = 0, 0.0
        self.points: list[dict[str, float]] = []

    def train(self, steps: int) -> None:
        """Take steps, with the clock running."""
        start = time.perf_counter()
        for _ in range(steps):
            i = next(self.batches)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.x[i]), self.y[i])
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
        self.clock += time.perf_counter() - start
        self.step += steps

    @torch.no_grad()
    def test(self, x: Tensor, y: Tensor) -> None:
        """Record the step, the seconds and the accuracy."""
        right = (self.model(x).argmax(-1) == y).float().mean()
        point = {"step": self.step, "seconds": self.clock, "accuracy": float(right)}
        self.points.append(point)

    @torch.no_grad()
    def outcome(self) -> dict[str, Any]:
        """The curve; for constrained layers also the worst defect and the largest norm.

        The norm is the spectral norm of the skew matrix of a layer's coordinates.
        """
        row = {"name": self.name, "seed": self.seed, "points": self.points}
        hidden = [m for m in self.model if hasattr(m, "parametrizations")]
        if hidden:
            row["defect"] = max(defect(layer.weight) for layer in hidden)
            X = torch.stack([m.parametrizations.weight.original for m in hidden])
            row["norm"] = float(torch.linalg.matrix_norm(skew(X), 2).max())
        return row


def defect(W: Tensor) -> float:
    """||W^T W - I||_F / sqrt(n), evaluated in double precision."""
    W = W.double()
    gram = W.mT @ W - torch.eye(W.shape[-1], dtype=W.dtype)
    return float(torch.linalg.matrix_norm(gram) / W.shape[-1] ** 0.5)


def race(
    seed: int,
    images: tuple[Tensor, Tensor],
    tests: tuple[Tensor, Tensor],
    *,
    steps: int,
    names: tuple[str, ...] = NAMES,
) -> list[dict[str, Any]]:
    """Train all contenders on the same batches, in turns of a few steps."""
    runs = [Run(name, seed, steps, *images) for name in names]
    while runs[0].step < steps:
        turn = min(TURN, steps - runs[0].step)
        for run in runs:
            run.train(turn)
            if run.step in TEST_STEPS or run.step == steps:
                run.test(*tests)
    return [run.outcome() for run in runs]


def measure(
    folder: Path,
    *,
    steps: int = STEPS,
    seeds: int = SEEDS,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every run of every seed."""
    images, tests = standardized(folder)
    rows = []
    for seed in range(seeds):
        say(f"quality: seed {seed + 1} of {seeds} (minutes)")
        rows += race(seed, images, tests, steps=steps)
    return {"batch": BATCH, "steps": steps, "runs": rows}
