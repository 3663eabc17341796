"""`isometry train --device cuda`, as far as it can be shown without a card."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import needs_torch


@pytest.mark.once
@needs_torch("2.13", "devices that are written in Python")
@pytest.mark.parametrize("task", ["adding", "tests.lab.own:OrderTask"])
def test_outputs_and_answers_are_on_one_device(task):
    """A model on a card is evaluated, with the results that it has on the CPU.

    Its outputs used to stay on the card, so that the loss raised an error.
    """
    process = subprocess.run(
        [sys.executable, "-m", "tests.lab.evaluate_on_a_card", task],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.returncode == 0, process.stderr
    here, card = map(json.loads, process.stdout.splitlines())
    assert set(here) == {"validation", "test"}
    for split, means in here.items():
        # measured: equal
        assert card[split] == pytest.approx(means, rel=1e-5)
