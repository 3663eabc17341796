"""Time of one forward and backward pass of the exponential, against peers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.linalg import matrix_exp

from benchmarks import peers
from isometry.lab.bench import TORCH_HOUSEHOLDER
from isometry.lab.bench.suites import both_passes, exponential
from isometry.lab.bench.timing import interleave, random_skew, unit_cotangent
from isometry.linalg import expm_skew


@dataclass(frozen=True)
class Case:
    """A row of the table, with the required and the desired speedup over torch."""

    name: str
    n: int
    must: float
    goal: float
    dtype: torch.dtype = torch.float32
    norm: float = 3.0
    batch: tuple[int, ...] = ()


CASES = [
    Case("float32, n = 64", 64, 2.3, 4),
    Case("float32, n = 128", 128, 4, 6),
    Case("float32, n = 256", 256, 5, 7),
    Case("float32, n = 512", 512, 5, 7),
    Case("float32, n = 1024", 1024, 5, 7),
    Case("complex64, n = 512", 512, 4.5, 6, dtype=torch.complex64),
    Case("float64, n = 512", 512, 3.5, 5, dtype=torch.float64),
    Case("float32, 1024 x 32 x 32", 32, 4, 8, batch=(1024,)),
    Case("float32, 4096 x 8 x 8", 8, 4, 8, batch=(4096,)),
    Case("float32, n = 512, norm 0.1", 512, 4.5, 6, norm=0.1),
]

Progress = Callable[[str], None]

# above this size, Householder's backward pass and SciPy take seconds
SLOW_ABOVE = 512


def measure(case: Case, *, rounds: int) -> dict[str, object]:
    """Time `expm_skew` (also with `norm_bound`), `matrix_exp` and bare products."""
    A = random_skew(*case.batch, case.n, norm=case.norm, dtype=case.dtype)
    G = unit_cotangent(A)
    bounded = partial(expm_skew, norm_bound=1.01 * case.norm)
    contenders = {
        "ours": both_passes(expm_skew, A, G),
        "ours with norm_bound": both_passes(bounded, A, G),
        "torch": both_passes(matrix_exp, A, G),
    }
    size = (case.n, A[..., 0, 0].numel())
    count = {
        name: peers.count_products(call, *size) for name, call in contenders.items()
    }
    contenders["products"] = peers.bare_products(A, round(count["ours"]))
    times = interleave(contenders, rounds=rounds)
    best, median = times["seconds"], times["median"]
    return {
        "case": case.name,
        "must": case.must,
        "goal": case.goal,
        **times,
        "ratio": best["torch"] / best["ours"],
        "median_ratio": median["torch"] / median["ours"],
        "bounded_ratio": best["torch"] / best["ours with norm_bound"],
        "products": count["ours"],
        "bounded_products": count["ours with norm_bound"],
        "torch_products": count["torch"],
    }


def measure_all(*, rounds: int, say: Progress) -> list[dict[str, object]]:
    """Measure all cases of the table."""
    rows = []
    for case in CASES:
        say(f"kernel: {case.name}")
        rows.append(measure(case, rounds=rounds))
    return rows


def measure_peers(n: int, *, rounds: int, say: Progress) -> dict[str, object]:
    """Time all peers that are fast enough for size n, in float32, at norm 3."""
    say(f"peers: n = {n}")
    contenders = exponential(n, torch.device("cpu"))
    A = random_skew(n, norm=3.0, dtype=torch.float32)
    out = torch.empty_like(A)
    contenders["one product"] = lambda: torch.mm(A, A, out=out)
    if n <= SLOW_ABOVE:
        contenders["SciPy"] = peers.scipy_expm(A, unit_cotangent(A))
    else:
        del contenders[TORCH_HOUSEHOLDER]
    times = interleave(contenders, rounds=rounds)
    return {"n": n, "seconds": times["seconds"]}


def measure_cotangent_scale(*, rounds: int, say: Progress) -> list[dict[str, float]]:
    """Time against the norm of the incoming gradient, on which torch's time depends."""
    say("size of the incoming gradient")
    A = random_skew(512, norm=3.0, dtype=torch.float32)
    rows = []
    for scale in (1e-4, 1e-2, 1.0, 1e2):
        G = scale * unit_cotangent(A)
        contenders = {
            "ours": both_passes(expm_skew, A, G),
            "torch": both_passes(matrix_exp, A, G),
        }
        seconds = interleave(contenders, rounds=rounds)["seconds"]
        products = peers.count_products(contenders["torch"], 512)
        rows.append({"scale": scale, **seconds, "torch_products": products})
    return rows


def measure_outlier(*, rounds: int, say: Progress) -> dict[str, float]:
    """Time of 10,000 matrices of norm 1, with and without one of norm 1000."""
    say("one outlier in a batch of 10,000")
    A = random_skew(10_000, 8, norm=1.0, dtype=torch.float32)
    B = A.clone()
    B[4321] *= 1000
    G = unit_cotangent(A)
    contenders = {
        "plain": both_passes(expm_skew, A, G),
        "outlier": both_passes(expm_skew, B, G),
        "torch plain": both_passes(matrix_exp, A, G),
        "torch outlier": both_passes(matrix_exp, B, G),
    }
    return interleave(contenders, rounds=rounds)["seconds"]
