"""Time of the loop over time steps, against the bare products that it needs."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import isometry
from benchmarks.records import reached, table
from isometry._backend import TimeSteps, only_torch
from isometry._backend.nonlinearities import Sigma, modrelu
from isometry.lab.bench import BARE, TORCH_RNN
from isometry.lab.bench.suites import bare, whole_step
from isometry.lab.bench.timing import Call, interleave
from isometry.nn import ExpRNN
from isometry.nn._scan import Weights, scan
from isometry.nn._sequence import Pass

COMPILED = "isometry, C"
PURE = "isometry, torch"
LOOP = "Python loop, autograd"


class Case(NamedTuple):
    """A training step, and the required ratio to its bare products."""

    steps: int
    n: int
    batch: int = 128
    every: bool = False
    must_pure: float | None = None
    must_compiled: float | None = None


CASES = (
    Case(784, 170, must_pure=1.9, must_compiled=1.3),
    Case(784, 512, must_pure=1.35, must_compiled=1.2),
    Case(1020, 190, every=True, must_pure=2.0, must_compiled=1.6),
    Case(100, 32, batch=16),
)
# hidden sizes at which a whole training step is timed, and the required ratio to a step
# of the same layer with a plain weight
WHOLE = (170, 512)
MUST_WHOLE = 1.05
# lines of progress that `measure` writes
STEPS = len(CASES) + len(WHOLE)


def loss_of(every: Tensor, last: Tensor, *, case: Case) -> Tensor:
    """Loss of all outputs, or of the last output alone."""
    return (every if case.every else last).square().sum()


def ours(case: Case, x: Tensor, weights: Weights) -> Call:
    """Forward and backward pass of `scan`, our loop over time steps."""
    run = Pass(TimeSteps.equal(case.steps, case.batch))
    h0 = torch.zeros(case.batch, case.n)

    def step() -> None:
        H, last = scan(x, weights, h0, run)
        assert H is not None
        loss_of(H, last, case=case).backward()

    return step


def loop(case: Case, x: Tensor, weights: Weights) -> Call:
    """Forward and backward pass of a plain Python loop, by autograd."""
    T, W, b = weights[:3]
    assert b is not None

    def step() -> None:
        u = T.mT[x] if x.ndim == 1 else x @ T.mT
        h, states = torch.zeros(case.batch, case.n), []
        for u_t in u.view(case.steps, case.batch, case.n):
            h = modrelu(h @ W.mT + u_t, b)
            states.append(h)
        loss_of(torch.stack(states), h, case=case).backward()

    return step


def torch_rnn(case: Case, x: Tensor) -> Call:
    """Forward and backward pass of `nn.RNN`, on dense inputs."""
    dense = nn.functional.one_hot(x, 10).float() if x.ndim == 1 else x
    dense = dense.view(case.steps, case.batch, -1)
    layer = nn.RNN(dense.shape[-1], case.n)

    def step() -> None:
        H, last = layer(dense)
        loss_of(H, last, case=case).backward()

    return step


def measure_case(case: Case, rounds: int) -> dict[str, Any]:
    """Seconds of all contenders in one case."""
    torch.manual_seed(5544)
    rows, d = case.steps * case.batch, 10 if case.every else 1
    x = torch.randint(d, (rows,)) if case.every else torch.rand(rows, d)
    W = torch.linalg.qr(torch.randn(case.n, case.n))[0].contiguous()
    T, b = torch.randn(case.n, d), torch.full((case.n,), -0.005)
    T, W, b = (X.requires_grad_() for X in (T, W, b))
    weights = Weights(T, W, b, Sigma("modrelu"))
    run = ours(case, x, weights)

    def in_torch() -> None:
        with only_torch():
            run()

    contenders = {
        BARE: bare(case.steps, case.n, case.batch),
        COMPILED: run,
        PURE: in_torch,
        TORCH_RNN: torch_rnn(case, x),
        LOOP: loop(case, x, weights),
    }
    return case._asdict() | interleave(contenders, rounds=rounds, sample=0.1)


def measure_whole(n: int, rounds: int) -> dict[str, Any]:
    """Seconds of ExpRNN, of the same layer with a plain weight, and of `nn.RNN`."""
    torch.manual_seed(5544)
    layer = ExpRNN(1, n, init="cayley")
    free = isometry.fold(copy.deepcopy(layer))
    x = torch.rand(784, 128, 1)
    contenders = {
        "ExpRNN": whole_step(layer, n, x),
        "unconstrained": whole_step(free, n, x),
        TORCH_RNN: whole_step(nn.RNN(1, n), n, x),
    }
    return {"n": n} | interleave(contenders, rounds=rounds, sample=0.1)


def measure(*, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything about recurrent layers."""
    cases, whole = [], []
    for case in CASES:
        say(f"recurrent: {case.steps} steps, n = {case.n}")
        cases.append(measure_case(case, rounds))
    for n in WHOLE:
        say(f"recurrent: ExpRNN, n = {n}")
        whole.append(measure_whole(n, rounds))
    return {"cases": cases, "whole": whole}


def _verdict(ratio: float, must: float | None) -> str:
    if must is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} (at most {must:g}: {reached(ratio <= must)})"


def section(part: dict[str, Any]) -> str:
    """The section of docs/ledger.md."""
    body = []
    for row in part["cases"]:
        t = row["seconds"]
        body.append(
            [
                f"{row['steps']}, {row['n']}, {row['batch']}",
                "every" if row["every"] else "last",
                f"{1e3 * t[BARE]:.1f}",
                _verdict(t[COMPILED] / t[BARE], row["must_compiled"]),
                _verdict(t[PURE] / t[BARE], row["must_pure"]),
                *(f"{t[name] / t[BARE]:.2f}" for name in (TORCH_RNN, LOOP)),
                *(f"{t[name] / t[COMPILED]:.1f}" for name in (TORCH_RNN, LOOP)),
                f"{t[TORCH_RNN] / t[PURE]:.2f}",
            ]
        )
    header = [
        "steps, n, batch",
        "output",
        "bare, ms",
        "C / bare",
        "torch / bare",
        "nn.RNN / bare",
        "loop / bare",
        "nn.RNN / C",
        "loop / C",
        "nn.RNN / torch",
    ]
    whole = [
        [
            str(row["n"]),
            f"{1e3 * row['seconds']['ExpRNN']:.0f}",
            _verdict(
                row["seconds"]["ExpRNN"] / row["seconds"]["unconstrained"], MUST_WHOLE
            ),
            f"{row['seconds'][TORCH_RNN] / row['seconds']['ExpRNN']:.2f}",
        ]
        for row in part["whole"]
    ]
    return f"""## Recurrent layers

Forward and backward pass of $h_t = \\sigma(W h_{{t-1}} + T x_t)$ with modReLU, float32.
"Bare" is the time that torch takes for the products alone: three for each time step,
one after the other, which no implementation can avoid. The C kernel is faster than
that, because each thread takes some of the sequences through all time steps and never
waits for another. {part["threads"]} threads; contenders take turns; best of
{part["rounds"]} rounds.

{table(header, body)}

A whole training step on MNIST, pixel by pixel (784 time steps, batch 128; exponential,
output layer, loss and RMSprop included), as a multiple of the same step with an
unconstrained weight. The paper calls the difference negligible.

{
        table(
            ["n", "ExpRNN, ms", "ExpRNN / unconstrained", "nn.RNN / ExpRNN"],
            whole,
        )
    }
"""
