"""The cost of reading a weight: in evaluation, many times in a pass, and compiled."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.layers import (
    OURS,
    UNCONSTRAINED,
    data,
    layer_at,
    tall_layer_at,
    timed,
    training_step,
)
from benchmarks.records import reached, table
from isometry.lab.bench.timing import Call

# rows and columns of weights in evaluation; small weights show the overhead
SHAPES = ((16, 16), (64, 64), (512, 512), (4096, 64))
# number of samples of each pass in evaluation, and seconds of one sample
_PAIRS, _SAMPLE = 150, 0.004
# lines of progress that `measure` writes
STEPS = len(SHAPES) + 2


def evaluation(name: str, *, rows: int, columns: int, batch: int) -> Call:
    """A forward pass without gradients."""
    square = rows == columns
    layer = (
        layer_at(rows, name, norm=1.0)
        if square
        else tall_layer_at(rows, columns, name, norm=1.0)
    ).eval()
    x, _ = data(batch, columns, rows)

    def forward() -> Tensor:
        with torch.no_grad():
            return layer(x)

    return forward


def reading(times: int, name: str, *, n: int) -> Call:
    """A training pass that reads a weight `times` times and does little else."""
    layer = layer_at(n, name, norm=1.0)
    x = torch.ones(1, n)

    def step() -> None:
        total = torch.zeros(())
        for _ in range(times):
            total = total + (x @ layer.weight).sum()
        total.backward()

    return step


def compiled_step(n: int, batch: int) -> dict[str, Call]:
    """A training step, eager and compiled."""
    x, y = data(batch, n, n)
    eager = layer_at(n, OURS, norm=1.0)
    compiled = torch.compile(layer_at(n, OURS, norm=1.0), fullgraph=True)
    return {
        "eager": training_step(eager, x, y),
        "compiled": training_step(compiled, x, y),  # type: ignore[arg-type] # a callable
    }


def paired(passes: dict[str, Call]) -> dict[str, Any]:
    """Best and median seconds of two calls that alternate.

    A constrained weight adds a few percent to a pass, so noise matters. The calls
    alternate in 150 short samples each, so that noise of the machine affects both.
    """
    calls = [*passes.values()]
    repeats = []
    for call in calls:
        call()
        repeats.append(max(1, round(_SAMPLE / max(_time(call, 3), 1e-6))))
    samples: list[list[float]] = [[], []]
    for i in range(_PAIRS):
        for j in (0, 1) if i % 2 else (1, 0):
            # do not time the first call, since the other function has filled the caches
            calls[j]()
            samples[j].append(_time(calls[j], repeats[j]))
    return {
        "seconds": dict(zip(passes, map(min, samples), strict=True)),
        "median": dict(zip(passes, map(statistics.median, samples), strict=True)),
    }


def _time(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(*, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure evaluation, many reads in one pass, and a compiled step."""
    n, batch = 512, 256
    record: dict[str, Any] = {"n": n, "batch": batch, "evaluation": []}
    for rows, columns in SHAPES:
        say(f"reads: evaluation, {rows} x {columns}")
        passes = {
            name: evaluation(name, rows=rows, columns=columns, batch=batch)
            for name in (UNCONSTRAINED, OURS)
        }
        row = {"rows": rows, "columns": columns} | paired(passes)
        record["evaluation"].append(row)
    say("reads: a hundred times")
    # the passes with a plain weight show the cost of all work except reading
    passes = {
        "once": reading(1, OURS, n=n),
        "a hundred times": reading(100, OURS, n=n),
        "once, plain": reading(1, UNCONSTRAINED, n=n),
        "a hundred times, plain": reading(100, UNCONSTRAINED, n=n),
    }
    record["reads"] = timed(passes, rounds=rounds)
    say("reads: compiled")
    record["compiled"] = timed(compiled_step(n, 64), rounds=rounds)
    return record


def evaluation_table(rows: list[dict[str, Any]]) -> str:
    """Table of the time of evaluation, with a plain and with a constrained weight."""
    body = []
    for row in rows:
        plain, ours = row["seconds"][UNCONSTRAINED], row["seconds"][OURS]
        over = 100 * (ours / plain - 1)
        body.append(
            [
                f"{row['rows']} x {row['columns']}",
                f"{1e6 * plain:.1f}",
                f"{1e6 * ours:.1f}",
                f"{over:+.1f}",
                reached(over <= 5),
            ]
        )
    return table(["weight", "plain, µs", "ours, µs", "percent", "within 5"], body)


def section(part: dict[str, Any]) -> str:
    """The section of docs/ledger.md."""
    compiled, reads = part["compiled"]["seconds"], part["reads"]["seconds"]
    extra = reads["a hundred times"] - reads["a hundred times, plain"]
    once = reads["once"] - reads["once, plain"]
    ratio = compiled["compiled"] / compiled["eager"]
    return f"""## Reading a weight

A constrained weight is computed once per autograd graph. Without gradients it is
computed again only after something has changed.

Evaluation of `nn.Linear`, batch {part["batch"]}, may take at most 5 percent longer than
with a plain weight:

{evaluation_table(part["evaluation"])}

- Reading a weight of n = {part["n"]} a hundred times in one training pass costs
  {extra / once:.2f} times as much as reading it once: {1e3 * extra:.1f} instead of
  {1e3 * once:.1f} ms, each in addition to the same work with a plain weight.
- A compiled training step (fullgraph, batch 64) takes {ratio:.2f} times as long as an
  eager one; it must not take longer. Reached: {reached(ratio <= 1)}.
"""
