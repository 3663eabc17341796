"""Training does not leave the manifold; `make soak` has the long version."""

import pytest

from tests.optim.drift import CASES, Case, drift


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_weight_stays_on_its_manifold(case: Case, rng):
    """||Q^H Q - I||_F / sqrt(k) < 1e-6 in 300 steps of float32."""
    seen = drift(case, steps=300, rng=rng)

    assert seen.defect < 1e-6
    # the target has moved by about 0.2, and the weight with it
    assert seen.travelled > 0.05
    assert seen.distance < 0.2


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_weight_stays_on_its_manifold_for_100_000_steps(
    case: Case, rng, record_property
):
    """The same behind a target that turns 16 times."""
    seen = drift(case, steps=100_000, rng=rng)

    record_property("worst defect", f"{seen.defect:.2e}")
    record_property("length of the path", round(seen.travelled, 1))
    record_property("largest distance to the target", f"{seen.distance:.2e}")
    assert seen.defect < 1e-6
    assert seen.travelled > 10
    assert seen.distance < 0.2
