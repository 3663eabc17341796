"""Interleaved timing: this machine is noisy, so only ratios within a run are stated."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the best and the median over rounds."""

    best: float
    median: float


Run = Callable[[], object]


def interleave(
    contenders: Mapping[str, Run],
    *,
    rounds: int = 9,
    sample: float = 0.02,
) -> dict[str, Timing]:
    """Time all contenders in turn, `rounds` times, by samples of about `sample` s."""
    repeats = {}
    for name, call in contenders.items():
        call()
        once = min(_seconds(call, 1) for _ in range(3 if _seconds(call, 1) < 1 else 1))
        repeats[name] = max(1, min(200, round(sample / max(once, 1e-6))))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            # the thread pool of the contender before spins on for a while: SciPy's
            # doubled the time of whoever came next
            time.sleep(0.1)
            if repeats[name] > 1:
                call()
            samples[name].append(_seconds(call, repeats[name]))
    return {
        name: Timing(min(times), statistics.median(times))
        for name, times in samples.items()
    }


def _seconds(call: Run, repeats: int) -> float:
    _wait()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait()
    return (time.perf_counter() - start) / repeats


def _wait() -> None:
    """Until a graphics card, which works on after a call has returned, is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def random_skew(
    n: int,
    *,
    norm: float,
    dtype: torch.dtype,
    batch: tuple[int, ...] = (),
    seed: int = 5544,
    edge: bool = False,
) -> Tensor:
    """Gaussian skew matrices of a spectral norm; with `edge`, all angles equal it."""
    rng = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    X = torch.randn(*batch, n, n, dtype=wide, generator=rng)
    A = X - X.mH
    if edge:
        theta, V = torch.linalg.eigh(-1j * A)
        A = (V * (1j * theta.sign())[..., None, :]) @ V.mH
        A = A if dtype.is_complex else A.real
        A = (A - A.mH) / 2
    elif n > 1 or dtype.is_complex:
        A = A / torch.linalg.matrix_norm(A, 2)[..., None, None]
    return (norm * A).to(dtype)


def unit_cotangent(A: Tensor, *, seed: int = 7) -> Tensor:
    """Gaussian cotangents with ||G||_F = 1: torch's cost depends on their size."""
    rng = torch.Generator().manual_seed(seed)
    G = torch.randn(A.shape, dtype=A.dtype, generator=rng).to(A.device)
    return G / torch.linalg.matrix_norm(G)[..., None, None]
