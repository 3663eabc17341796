"""What reading a constrained weight costs: in evaluation, many times, and compiled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.layers import OURS, PLAIN, data, layer_at, training_step
from isometry.lab.bench._timing import interleave

# lines of progress that `measure` writes
STEPS = 3


def evaluation(name: str, *, n: int, batch: int) -> Callable[[], object]:
    """A forward pass without gradients."""
    layer = layer_at(n, name, norm=1.0).eval()
    x, _ = data(batch, n, n)

    def forward() -> Tensor:
        with torch.no_grad():
            return layer(x)

    return forward


def reading(times: int, *, n: int) -> Callable[[], object]:
    """A training pass that reads the weight as often, for next to no other work."""
    layer = layer_at(n, OURS, norm=1.0)
    x = torch.ones(1, n)

    def step() -> None:
        total = torch.zeros(())
        for _ in range(times):
            total = total + (x @ layer.weight).sum()
        total.backward()

    return step


def unconstrained_reading(times: int, *, n: int) -> Callable[[], object]:
    """The same of a plain weight: the work that is not reading."""
    layer = nn.Linear(n, n)
    x = torch.ones(1, n)

    def step() -> None:
        total = torch.zeros(())
        for _ in range(times):
            total = total + (x @ layer.weight).sum()
        total.backward()

    return step


def compiled_step(n: int, batch: int) -> dict[str, Callable[[], object]]:
    """A training step, eager and compiled."""
    x, y = data(batch, n, n)
    eager = layer_at(n, OURS, norm=1.0)
    compiled = torch.compile(layer_at(n, OURS, norm=1.0), fullgraph=True)
    return {
        "eager": training_step(eager, x, y),
        "compiled": training_step(compiled, x, y),  # type: ignore[arg-type] # a callable
    }


def seconds(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, Any]:
    """Best and median of each."""
    times = interleave(contenders, rounds=rounds, sample=0.25)
    return {
        "seconds": {name: t.best for name, t in times.items()},
        "median": {name: t.median for name, t in times.items()},
    }


def measure(*, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All three."""
    say("reads: evaluation")
    n, batch = 512, 256
    passes = {name: evaluation(name, n=n, batch=batch) for name in (PLAIN, OURS)}
    record = {"n": n, "batch": batch, "evaluation": seconds(passes, rounds)}
    say("reads: a hundred times")
    record["reads"] = seconds(
        {
            "once": reading(1, n=n),
            "a hundred times": reading(100, n=n),
            "once, plain": unconstrained_reading(1, n=n),
            "a hundred times, plain": unconstrained_reading(100, n=n),
        },
        rounds,
    )
    say("reads: compiled")
    record["compiled"] = seconds(compiled_step(n, 64), rounds)
    return record


def section(part: dict[str, Any]) -> str:
    """The section of docs/results.md."""
    evaluation, compiled = part["evaluation"]["seconds"], part["compiled"]["seconds"]
    reads = part["reads"]["seconds"]
    over = 100 * (evaluation[OURS] / evaluation[PLAIN] - 1)
    extra = reads["a hundred times"] - reads["a hundred times, plain"]
    once = reads["once"] - reads["once, plain"]
    ratio = compiled["compiled"] / compiled["eager"]

    def reached(holds: bool) -> str:
        return "yes" if holds else "**no**"

    n = part["n"]
    return f"""## Reading a weight

A constrained weight is computed once per autograd graph, and without gradients once
until something changes.

- Evaluation of `nn.Linear({n}, {n})`, batch {part["batch"]}: {over:+.1f} percent of the
  plain layer's time ({1e6 * evaluation[OURS]:.0f} against
  {1e6 * evaluation[PLAIN]:.0f} µs); at most 5 percent more is asked. Reached:
  {reached(over <= 5)}.
- Reading it a hundred times in one training pass costs {extra / once:.2f} times what
  reading it once does ({1e3 * extra:.1f} against {1e3 * once:.1f} ms beyond the same
  work with a plain weight).
- A compiled training step (fullgraph, batch 64) takes {ratio:.2f} times the eager one;
  it must not be slower. Reached: {reached(ratio <= 1)}.
"""
