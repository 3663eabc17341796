"""Times contenders in turn. Machines are noisy, so compare times only within a run."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TextIO

import torch
from torch import Tensor

from isometry.lab._process import environment
from isometry.lab.bench import OURS, PEERS, installed

# a function whose calls are timed
Call = Callable[[], object]


@dataclass(frozen=True)
class Suite:
    """Contenders that do the same work, to be timed against each other.

    Attributes:
        title: what the work is.
        note: an explanation that is printed with the table.
        contenders: a function that takes a size and a device, and returns the
            contenders, keyed by name.
        ours: name of our contender; tables show all times as multiples of its time.
        sizes: the default sizes, in ascending order.
    """

    title: str
    note: str
    contenders: Callable[[int, torch.device], dict[str, Call]]
    ours: str = OURS
    sizes: Sequence[int] = (64, 128, 256, 512)


def interleave(
    contenders: Mapping[str, Call], *, rounds: int, sample: float = 0.02
) -> dict[str, dict[str, float]]:
    """Time all contenders in turn, round after round.

    Args:
        contenders: the functions to call, keyed by name.
        rounds: number of samples per contender.
        sample: approximate duration of a sample in seconds. A sample consists of 1 to
            200 calls.

    Returns:
        Two dictionaries with the seconds per call of each contender: "seconds" for the
        best round, and "median" for the median of all rounds.
    """
    repeats = {}
    for name, call in contenders.items():
        call()
        once = min(_seconds(call, 1) for _ in range(3 if _seconds(call, 1) < 1 else 1))
        repeats[name] = max(1, min(200, round(sample / max(once, 1e-6))))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            # wait, because the threads of the previous contender may keep cores busy
            # for a while after its last call
            time.sleep(0.1)
            if repeats[name] > 1:
                call()
            samples[name].append(_seconds(call, repeats[name]))
    return {
        "seconds": {name: min(times) for name, times in samples.items()},
        "median": {name: statistics.median(t) for name, t in samples.items()},
    }


def _seconds(call: Call, repeats: int) -> float:
    _wait()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait()
    return (time.perf_counter() - start) / repeats


def _wait() -> None:
    """Wait for the GPU, which may still be computing after a call has returned."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def random_skew(
    *sizes: int, norm: float, dtype: torch.dtype, seed: int = 5544
) -> Tensor:
    """Random Gaussian skew matrices (*sizes, n) of a given spectral norm.

    Here n, at least 2, is the last of the sizes. The other sizes are batch axes.
    """
    rng = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    X = torch.randn(*sizes, sizes[-1], dtype=wide, generator=rng)
    A = X - X.mH
    return (norm * A / torch.linalg.matrix_norm(A, 2)[..., None, None]).to(dtype)


def unit_cotangent(A: Tensor, *, seed: int = 7) -> Tensor:
    """Random cotangents of Frobenius norm 1, in the shape of `A`.

    The norm is fixed because the running time of torch's backward pass depends on the
    norm of the cotangent.
    """
    rng = torch.Generator().manual_seed(seed)
    G = torch.randn(A.shape, dtype=A.dtype, generator=rng).to(A.device)
    return G / torch.linalg.matrix_norm(G)[..., None, None]


def device_of(name: str, threads: int | None) -> torch.device:
    """Set the number of torch threads, and return the device to measure on.

    Args:
        name: "cpu" or "cuda".
        threads: number of torch threads; unchanged if None.

    Returns:
        The device.

    Raises:
        ValueError: if torch cannot use the device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        missing = (
            f"torch {torch.__version__} was built without CUDA. Install a build with "
            f"CUDA, as torch's web site explains"
            if torch.version.cuda is None and torch.version.hip is None
            else "torch finds no GPU. See whether `nvidia-smi` lists one, and whether "
            "CUDA_VISIBLE_DEVICES hides it"
        )
        raise ValueError(
            f"`--device` must be one that torch can use; got cuda, and {missing}; or "
            f"leave `--device` out to measure the CPU."
        )
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.device(name)


def surroundings(device: torch.device) -> dict[str, Any]:
    """A description of the machine and the device, with the versions of packages."""
    here = environment(ranks=1)
    here["versions"] |= {peer: version(peer) for peer in PEERS if installed(peer)}
    name = device.type
    if name != "cpu":
        hip, cuda = torch.version.hip, torch.version.cuda
        runtime = f"ROCm {hip}" if hip else f"CUDA {cuda}"
        name = f"{torch.cuda.get_device_name(device)}, {runtime}"
    return here | {"device": name}


_WIDTH = 24


class ProgressLine:
    """A progress bar that says what is measured next.

    On a terminal, each call overwrites the line; elsewhere, it writes a new line.

    Args:
        total: number of calls that will be made.
        stream: where to write; standard error if None.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self.stream = sys.stderr if stream is None else stream

    def __call__(self, what: str) -> None:
        """Say what is measured next."""
        self.done += 1
        filled = _WIDTH * self.done // self.total
        bar = "#" * filled + "." * (_WIDTH - filled)
        live = self.stream.isatty()
        # return to the start of the line, and erase the earlier text
        start = "\r\x1b[K" if live else ""
        end = "" if live and self.done < self.total else "\n"
        self.stream.write(f"{start}[{bar}] {self.done}/{self.total} {what}{end}")
        self.stream.flush()


def measure(
    suites: Mapping[str, Suite], sizes: Sequence[int], device: torch.device, rounds: int
) -> list[dict[str, Any]]:
    """Time suites, in float32, and show the progress.

    Args:
        suites: the suites, keyed by name.
        sizes: the sizes n to time; if empty, the default sizes of each suite.
        device: the device to measure on.
        rounds: number of samples per contender.

    Returns:
        For each suite its description and, for each size, the best and the median
        seconds per call of each contender.
    """
    chosen = sorted(set(sizes))
    say = ProgressLine(sum(len(chosen or suite.sizes) for suite in suites.values()))
    parts = []
    for name, suite in suites.items():
        rows = []
        for n in chosen or suite.sizes:
            say(f"{name}: n = {n}")
            times = interleave(suite.contenders(n, device), rounds=rounds, sample=0.1)
            rows.append({"n": n, **times})
        about = {"title": suite.title, "note": suite.note, "ours": suite.ours}
        parts.append({"suite": name, **about, "rows": rows})
    return parts
