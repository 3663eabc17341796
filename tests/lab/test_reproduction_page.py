"""The page on reproduction shows the numbers of the records."""

import json
from pathlib import Path

from isometry.lab._report.runs import read_run
from tests.lab.fake_runs import fake_run
from tools.reproduction import __main__ as command
from tools.reproduction import charts, experiments, records
from tools.reproduction.page import page
from tools.reproduction.texts import CLAIMS

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / records.FOLDER


def test_the_page_is_generated():
    """The page is what `python -m tools.reproduction page` writes, byte by byte."""
    known = records.read(RECORDS)
    text = (ROOT / command.DOCS / "reproduction.md").read_text()
    assert (
        page(
            known,
            list(charts.charts(known, experiments.read(ROOT / experiments.FOLDER))),
        )
        == text
    )


def test_figures_plot_the_records():
    """The committed figures plot the data of the records.

    Only data are compared, since a drawing also depends on fonts.
    """
    known = records.read(RECORDS)
    drawn = list(charts.charts(known, experiments.read(ROOT / experiments.FOLDER)))
    plotted = json.loads((ROOT / command.ASSETS / "data.json").read_text())
    assert json.loads(json.dumps(charts.data(drawn))) == plotted
    for chart in drawn:
        assert (ROOT / command.ASSETS / f"{chart.name}.svg").exists()


def known_runs(tmp_path: Path, *, status: str, jumps: int) -> dict:
    """A record of ExpRNN at lag 1000 whose curve has some spikes."""
    name = "copying-1000-exprnn-190"
    folder = fake_run(tmp_path / name, status=status)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"log_every": 1}))
    entry = records.record(read_run(folder))
    entry["spikes"]["count"] = jumps
    return {name: entry}


def test_claims_are_judged_by_the_records(tmp_path):
    verdict = CLAIMS[0].verdict
    assert verdict({}) == "not run yet"
    solved = known_runs(tmp_path / "a", status="solved", jumps=0)
    assert verdict(solved).startswith("confirmed: 1 of 1")
    for i, (status, jumps) in enumerate((("finished", 0), ("solved", 5))):
        other = known_runs(tmp_path / f"b{i}", status=status, jumps=jumps)
        assert verdict(other).startswith("not confirmed")


def test_minutes_are_those_of_the_processor(tmp_path):
    """Minutes are processor time if a run recorded it, else clock time with a mark."""
    runs = known_runs(tmp_path, status="solved", jumps=0)
    (summary,) = (run["summary"] for run in runs.values())
    summary |= {"seconds": 7200.0, "cpu_seconds": 3600.0}
    summary["final"] = {"validation": {"loss": 1.0}}
    assert page(runs, []).count("| 60 |") == 2
    del summary["cpu_seconds"]
    assert page(runs, []).count(r"| 120\* |") == 2


def test_parts_without_runs_say_so():
    text = page({}, [])
    assert text.count("No run of this part is recorded yet") == 6
    assert "not run yet" in text
