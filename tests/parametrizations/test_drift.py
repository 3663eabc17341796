"""Training does not leave the manifold; test_soak.py has the long version."""

import pytest

from tests.parametrizations.moving_target import CASES, Case, drift


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_weight_stays_orthogonal(case: Case, rng):
    """||W^T W - I||_F / sqrt(k) < 1e-6 in 2,000 steps behind a moving target."""
    seen = drift(case, steps=2000, rng=rng)

    assert seen.defect < 1e-6
    # the target has moved by about 1, and the weight with it
    assert seen.travelled > 0.5
    assert seen.distance < 0.1
