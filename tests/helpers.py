"""Inputs for tests. Every random number comes from an explicit generator."""

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
#: The environment variable for `--seed N` of pytest, so that child processes see it.
SEED_VARIABLE = "ISOMETRY_TEST_SEED"


class PlainSubclass(Tensor):
    """A subclass of tensors with memory of its own, and no other behaviour."""


def relative_path(path: Path) -> str:
    """The path of a file from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def needs_torch(version: str, feature: str) -> pytest.MarkDecorator:
    """Skip a test of a feature that came to torch with `version`."""
    here = torch.__version__.split("+")[0]
    lacks = version_numbers(here) < version_numbers(version)
    reason = f"torch {here} lacks {feature}, which torch {version} has"
    return pytest.mark.skipif(lacks, reason=reason)


def version_numbers(version: str) -> list[int]:
    """The numbers of a version, which compare as versions do."""
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def shifted_seed(seed: int) -> int:
    """The seed to use in place of `seed`; it is the same unless `--seed` is set."""
    # far above the seeds 0, 1, 2, ... of the tests, so that shifted seeds are others
    return seed + 100_003 * int(os.environ.get(SEED_VARIABLE, "0"))


# the seeds of all generators so far; their number tells whether a test has drawn
SEEDS_IN_USE: list[int] = []


def new_generator(seed: int) -> torch.Generator:
    """A generator whose draws change with the option `--seed`."""
    SEEDS_IN_USE.append(shifted_seed(seed))
    return torch.Generator().manual_seed(shifted_seed(seed))


def double_dtype(dtype: torch.dtype) -> torch.dtype:
    """The double-precision dtype of the same kind."""
    return torch.complex128 if dtype.is_complex else torch.float64


def random_skew(
    n: int,
    *,
    norm: float,
    dtype: torch.dtype,
    rng: torch.Generator,
    batch: tuple[int, ...] = (),
) -> Tensor:
    """Gaussian skew matrices of the given spectral norm, rounded from double."""
    X = torch.randn(*batch, n, n, dtype=double_dtype(dtype), generator=rng)
    A = X - X.mH
    if A.numel() and (n > 1 or dtype.is_complex):
        A = A * (norm / torch.linalg.matrix_norm(A, 2))[..., None, None]
    return A.to(dtype)


def skew_with_angles(
    theta: Tensor, *, dtype: torch.dtype, rng: torch.Generator
) -> Tensor:
    """Skew matrix with eigenvalues i theta (complex) or pairs +-i theta (real)."""
    pairs = theta.numel()
    n = pairs if dtype.is_complex else 2 * pairs
    X = torch.randn(n, n, dtype=double_dtype(dtype), generator=rng)
    V = torch.linalg.qr(X).Q
    if dtype.is_complex:
        D = torch.diag(1j * theta.to(torch.float64))
    else:
        J = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
        D = torch.kron(torch.diag(theta.to(torch.float64)), J)
    A = V @ D.to(V.dtype) @ V.mH
    return ((A - A.mH) / 2).to(dtype)


def random_unitary(
    n: int,
    *,
    dtype: torch.dtype,
    rng: torch.Generator,
    batch: tuple[int, ...] = (),
    k: int | None = None,
) -> Tensor:
    """Haar unitary (orthogonal if real) n x k matrices, rounded from double."""
    X = torch.randn(
        *batch, n, n if k is None else k, dtype=double_dtype(dtype), generator=rng
    )
    Q, R = torch.linalg.qr(X)
    phase = R.diagonal(dim1=-2, dim2=-1).sgn()
    return (Q * phase[..., None, :].conj()).to(dtype)


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def edge_angles(n: int, *, norm: float, dtype: torch.dtype) -> Tensor:
    """Angles of a skew matrix, all equal to the norm, which random ones rarely are."""
    pairs = n if dtype.is_complex else n // 2
    return torch.full((pairs,), 0.999 * norm if norm == math.pi else norm)


def gradcheck_options(dtype: torch.dtype) -> dict[str, Any]:
    """Options of `gradcheck`: compare each entry if real, random sums if complex.

    Random sums need a few evaluations instead of two for each entry. With torch's
    tolerances they missed an error of 1% in one entry, which a comparison of entries
    shows. With the tolerances below they show an error of 0.1%, which a comparison of
    entries misses.
    """
    if not dtype.is_complex:
        return {}
    # far above the error of differences in double precision
    return {"fast_mode": True, "atol": 1e-7, "rtol": 1e-5}
