"""The estimate of the largest angle by a Krylov space."""

import math

import pytest
import torch

from isometry.groups._ambient import fixed_gaussian
from isometry.linalg._norms import krylov_norm
from tests.helpers import DTYPES, eps


@pytest.mark.parametrize("n", [2, 5, 20, 100])
@pytest.mark.parametrize("planes", [1, 2])
def test_the_estimate_of_a_rotation_in_few_planes_is_its_angle(planes, n, rng):
    """For a skew matrix of rank 2 or 4, the estimate is the norm.

    The Krylov space is then exhausted after a few steps. The estimate used to be up to
    5.5 times the norm, because the basis lost its orthogonality.
    """
    x = torch.randn(n, planes, generator=rng)
    y = torch.randn(n, planes, generator=rng)
    A = x @ y.mT - y @ x.mT
    norm = torch.linalg.matrix_norm(A, 2)
    start = fixed_gaussian(n, 1, dtype=A.dtype, seed=0)
    # 12 eps: twice the worst over 200 seeds, 6.8e-7
    assert krylov_norm(A, start) == pytest.approx(float(norm), rel=1.4e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [2, 3, 16, 64, 256])
@pytest.mark.parametrize("planes", [1, 3])
def test_the_estimate_is_at_most_the_norm(planes, n, dtype):
    """The estimate is at most the norm, also if most rows of A are zero.

    Here A rotates planes of the standard basis. The estimate used to be up to 4.5 times
    the norm, because both passes of the orthogonalization left only rounding errors.
    """
    A = torch.zeros(n, n, dtype=dtype)
    for i in range(min(planes, n // 2)):
        A[2 * i, 2 * i + 1], A[2 * i + 1, 2 * i] = 1 + i, -1 - i
    norm = float(torch.linalg.matrix_norm(A, 2))
    estimate = float(krylov_norm(A, fixed_gaussian(n, 1, dtype=dtype, seed=0)))
    # 10 eps: twice the worst case for n < 80, 5.0 eps (complex128, n = 78)
    assert norm * 0.98 <= estimate <= norm * (1 + 10 * eps(dtype))


def test_nan_stays_in_its_matrix(rng):
    """NaN in one matrix used to raise an error for the whole batch."""
    A = torch.randn(3, 6, 6, generator=rng)
    A = A - A.mT
    A[1, 2, 3] = math.nan
    estimates = krylov_norm(A, torch.ones(6, 1))
    assert estimates.isnan().tolist() == [False, True, False]
