"""Rounding errors do not add up in the longest training."""

import pytest

from tests.parametrizations.moving_target import CASES, Case, drift


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_weight_stays_orthogonal_for_100_000_steps(
    case: Case, rng, record_property
):
    """||W^T W - I||_F / sqrt(k) < 1e-6 behind a target that never rests."""
    seen = drift(case, steps=100_000, rng=rng)

    record_property("worst defect", f"{seen.defect:.2e}")
    record_property("length of the path", round(seen.travelled, 1))
    record_property("largest distance to the target", f"{seen.distance:.2e}")
    record_property("largest coordinates", round(seen.norm, 3))
    assert seen.defect < 1e-6
    # the target moves by about 50, and the weight with it
    assert seen.travelled > 20
    assert seen.distance < 0.1
