"""Records keep the numbers of different processors apart."""

import copy
import json
from collections import Counter

import pytest

from benchmarks import records, report
from isometry.lab import _process
from tests.recorders import Recorder, SeedRecorder, lacking_seeds


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        ("Intel(R) Xeon(R) Processor", "intel-xeon-processor"),
        ("AMD EPYC", "amd-epyc"),
        ("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", "intel-core-i7-8650u-cpu-1.90ghz"),
        ("", "unknown"),
    ],
)
def test_a_processor_names_its_file(processor, name):
    assert records.slug(processor) == name


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (
            "oneAPI Math Kernel Library Version 2024.2-Product; BLAS_INFO=mkl",
            "MKL 2024.2",
        ),
        ("Build settings: BLAS_INFO=open, USE_MKL=OFF", "open"),
        ("nothing", "unknown"),
    ],
)
def test_the_library_of_products_is_known_by_name(build, name):
    assert _process.blas(build) == name


def test_this_machine_says_what_numbers_depend_on():
    here = _process.machine()
    assert here.keys() == {"processor", "cores", "threads", "torch", "blas"}
    assert all(here.values())


def test_a_part_is_added_to_the_record_of_its_processor(tmp_path, monkeypatch):
    """Adding a part keeps the other parts, and the records of other processors."""
    for processor in ("One", "Other"):
        monkeypatch.setattr(_process, "processor", lambda name=processor: name)
        records.add({"kernel": [processor]}, tmp_path)
    before = (tmp_path / "one.json").read_bytes()
    records.add({"layers": records.environment(rounds=1)}, tmp_path)
    assert (tmp_path / "one.json").read_bytes() == before
    monkeypatch.setattr(_process, "processor", lambda: "Third, where data is missing")
    records.add({}, tmp_path)
    assert records.load(tmp_path).keys() == {"one", "other"}
    other = records.load(tmp_path)["other"]
    assert other["kernel"] == ["Other"]
    assert other["layers"]["processor"] == "Other"


def test_the_ledger_has_a_section_for_each_processor():
    """Each processor has a section, even if only some parts were measured on it."""
    records_by_name = records.load()
    # take the most complete record: on some processors only a part was measured
    one = max(records_by_name.values(), key=len)
    other = copy.deepcopy(one) | {"processor": "Another Processor"}
    part = {"layers": one["layers"] | {"processor": "Half a Processor"}}
    page = report.ledger({"half": part, "one": one, "other": other})
    for name in ("Half a Processor", one["processor"], "Another Processor"):
        assert f"\n## {name}\n" in page
    assert f"| ours over torch | {one['processor']} | Another Processor |" in page
    assert page.count("](assets/other/") == page.count("](assets/one/") > 3
    paragraph = report.paragraph({"half": part, "one": one, "other": other})
    assert "On Another Processor, 2 threads" in paragraph
    assert "Half" not in paragraph


def test_rows_of_another_processor_stay(tmp_path, monkeypatch):
    """A second processor adds its own rows to the record of the soak.

    There used to be one row per test, and one machine for all rows.
    """
    path = tmp_path / "soak.json"
    for processor, seconds in (("One", 1.0), ("Other", 2.0), ("One", 3.0)):
        monkeypatch.setattr(_process, "processor", lambda name=processor: name)
        recorder = Recorder(path)
        recorder.rows.append({"test": "a", "seconds": seconds})
        recorder.pytest_sessionfinish()
    record = json.loads(path.read_text())
    assert record["processors"].keys() == {"One", "Other"}
    rows = [(row["processor"], row["seconds"]) for row in record["tests"]]
    assert rows == [("One", 3.0), ("Other", 2.0)]


def test_tolerances_hold_for_200_seeds():
    """No seed makes a test of the library fail, by the record of `--seeds 200`."""
    rows = json.loads((records.ROOT / "records" / "seeds.json").read_text())
    folders = {"backend", "groups", "linalg", "nn", "optim", "parametrizations"}
    assert folders <= {row["folder"] for row in rows}
    for row in rows:
        assert row["seeds"] == 200
        assert row["failed"] == []
        assert row["fewer"] == {}


def test_a_continuation_adds_to_the_seeds_of_an_earlier_run(tmp_path, monkeypatch):
    """Functions that stopped early lack fewer seeds afterwards, or none."""
    monkeypatch.setattr(_process, "processor", lambda: "One")
    path = tmp_path / "seeds.json"
    calls = ({"a": 10, "b": 4, "c": 3}, {"b": 6, "c": 1})
    for is_continuation, counts in enumerate(calls):
        recorder = SeedRecorder(path, 10, is_continuation=bool(is_continuation))
        recorder.calls["folder"] = Counter(counts)
        recorder.pytest_sessionfinish()
    (row,) = json.loads(path.read_text())
    assert (row["functions"], row["functions with all seeds"]) == (3, 2)
    assert (row["fewer"], row["calls"]) == ({"c": 4}, 24)
    assert lacking_seeds(path, 10) == {"c": 6}
