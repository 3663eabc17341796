"""`python -m benchmarks wheel`: its table, and the libraries that it compares."""

import sys

import pytest

from benchmarks import wheel

# two rows whose ratios have the geometric mean 1 for one library, and 2 for the other
RECORD = {
    "rounds": 9,
    "rows": [
        {"case": "a", "seconds": 0.002, "ratios": {wheel.AGAIN: 0.5, "avx2": 1.0}},
        {"case": "b", "seconds": 0.00004, "ratios": {wheel.AGAIN: 2.0, "avx2": 4.0}},
    ],
    "means": {wheel.AGAIN: 1.0, "avx2": 2.0},
}


def test_the_table_has_rows_and_means():
    lines = wheel.section(RECORD).splitlines()
    assert "| case | native, ms | native again | avx2 |" in lines
    assert "| a | 2 | 0.50 | 1.00 |" in lines
    assert "| b | 0.04 | 2.00 | 4.00 |" in lines
    assert "| geometric mean |  | 1.000 | 2.000 |" in lines


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="there is no such wheel")
def test_every_library_of_this_processor_takes_part():
    """All libraries that this processor can run take part, the baseline last.

    Each process is asked which library it has.
    """
    messages: list[str] = []
    record = wheel.measure(rounds=1, say=messages.append, cases=["kernels: 16"])
    names = [variant.name for variant in wheel.variants()]
    assert names[-1] == "baseline"
    (row,) = record["rows"]
    assert list(row["ratios"]) == [wheel.AGAIN, *names]
    assert row["ratios"] == pytest.approx(record["means"])
    assert all(ratio > 0 for ratio in row["ratios"].values())
    assert messages == ["wheel: kernels: 16"]
