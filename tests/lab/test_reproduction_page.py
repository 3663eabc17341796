"""The page on reproduction shows the numbers of the records."""

import json
from pathlib import Path

from isometry.lab._report.runs import read_run
from isometry.lab.paper.protocol import plan
from tests.lab.fake_runs import fake_run
from tools.reproduction import __main__ as command
from tools.reproduction import charts, experiments, records
from tools.reproduction.charts import STEPS_PER_EPOCH
from tools.reproduction.claims import CLAIMS, REMARKS
from tools.reproduction.page import page

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


def pixel_run(name: str, *accuracies: float, **config: object) -> dict:
    """A record of a run on MNIST with these test accuracies, one for each epoch."""
    model, size = name.split("-")[1:3]
    steps = [STEPS_PER_EPOCH * (i + 1) for i in range(len(accuracies))]
    best = {"accuracy": max(accuracies), "mse": 1 - max(accuracies)}
    place = {"step": steps[-1], "test": best, "validation": best}
    return {
        "name": name,
        "command": "",
        "config": {"model": model, "hidden_size": int(size), "iterations": steps[-1]}
        | {"seed": 1, "model_options": {}}
        | config,
        "environment": {"cpu": "One"},
        "summary": {"steps": steps[-1], "best": place, "best_by_test": place}
        | {"status": "finished", "parameters": 1, "cpu_seconds": 1.0},
        "validation": {"step": steps},
        "test": {"step": steps, "accuracy": list(accuracies)},
    }


def by_name(*runs: dict) -> dict:
    return {run["name"]: run for run in runs}


def verdict_on(start: str, *runs: dict) -> str:
    """The verdict on the claim whose text begins like this."""
    (claim,) = (c for c in CLAIMS if c.text.startswith(start))
    return claim.verdict(by_name(*runs))


def test_the_accuracy_of_the_paper_needs_70_epochs_to_be_refuted():
    claim = "ExpRNN 170 reaches 0.949"
    assert verdict_on(claim) == "not run yet"
    for accuracies, word in (
        ((0.9, 0.9486), "confirmed"),
        ((0.9, 0.9484), "open"),
        ((0.9,) * 70, "not confirmed"),
    ):
        verdict = verdict_on(claim, pixel_run("pmnist-exprnn-170", *accuracies))
        assert verdict.startswith(f"{word}: ")


def test_networks_are_compared_at_equal_epochs():
    """One epoch in which another network is ahead refutes that ExpRNN is faster."""
    claim = "on permuted MNIST, ExpRNN learns faster"
    ours = pixel_run("pmnist-exprnn-170", *(0.9,) * 70)
    assert verdict_on(claim, ours) == "not run yet"
    slow = [pixel_run(f"pmnist-{n}", *(0.8,) * 10) for n in ("scornn-170", "rgd-116")]
    assert verdict_on(claim, ours, *slow).startswith("confirmed")
    early = pixel_run("pmnist-rgd-116", *(0.8,) * 4, 0.91, *(0.8,) * 5)
    verdict = verdict_on(claim, ours, slow[0], early)
    assert verdict.startswith("not confirmed: ExpRNN 170 / scoRNN 170 / RGD 116 have")
    assert "0.900 / 0.800 / 0.910 after 5" in verdict
    # an epoch that a network lacks says nothing
    short = pixel_run("pmnist-rgd-116", 0.8, 0.8)
    assert verdict_on(claim, ours, short) == (
        "confirmed: ExpRNN 170 / RGD 116 have 0.900 / 0.800 after 1 epochs"
    )


def test_gated_cells_are_compared_after_five_epochs():
    ours = pixel_run("pmnist-exprnn-170", *(0.9,) * 70)
    lstm, gru = (
        pixel_run(f"pmnist-{n}", *(0.95,) * 5) for n in ("explstm-87", "expgru-100")
    )
    claim = "gated cells"
    assert verdict_on(claim, ours, lstm, gru).startswith("confirmed")
    gru = pixel_run("pmnist-expgru-100", *(0.85,) * 5)
    assert verdict_on(claim, ours, lstm, gru).startswith("not confirmed")


def test_the_least_error_on_speech_wins():
    runs = [
        pixel_run(f"timit-{n}-next", 1 - error)
        for n, error in (("exprnn-224", 0.1), ("lstm-84", 0.2))
    ]
    for run in runs:
        run["name"] = run["name"].replace("timit-", "timit-sample-")
    claim = "ExpRNN predicts speech"
    assert verdict_on(claim, *runs).startswith("confirmed")
    runs[1]["summary"]["best"]["test"]["mse"] = 0.05
    assert verdict_on(claim, *runs).startswith("not confirmed")


def test_only_exprnn_may_be_solved_at_lag_2000(tmp_path):
    claim = "at lag 2000, only ExpRNN"
    ours = pixel_run("copying-exprnn-190", 1.0)
    other = pixel_run("copying-scornn-190", 1.0)
    for run in (ours, other):
        run["name"] = run["name"].replace("copying-", "copying-2000-")
    ours["summary"] |= {"status": "solved", "solved_at": 1700}
    for run, steps in ((ours, 1900), (other, 4000)):
        run["summary"] |= {"steps": steps, "baseline": 1.0}
        run["summary"]["final"] = {"validation": {"loss": 0.3}}
    assert verdict_on(claim, ours) == "not run yet"
    assert verdict_on(claim, other) == "not run yet"
    assert verdict_on(claim, ours, other) == (
        "confirmed: ExpRNN 190 solved after 1700 steps, scoRNN 190 at 0.30 of the "
        "baseline after 4000"
    )
    # it might have solved the task later
    other["summary"]["steps"] = 1500
    assert verdict_on(claim, ours, other).startswith("open: ")
    other["summary"] |= {"status": "solved", "solved_at": 1400}
    assert verdict_on(claim, ours, other).startswith("not confirmed: ")


def test_runs_beyond_the_paper_have_a_part_of_their_own():
    """The search is ordered by validation, and not shown among the paper's runs."""
    usual = {"optimizer": "Adam", "lr": 1e-3, "lr_ratio": 0.1, "decay": "cosine"}
    runs = by_name(
        pixel_run("pmnist-exprnn-170", *(0.9,) * 70),
        *(
            pixel_run(f"pmnist-exprnn-170-{note}", value, **usual, clip_norm=None)
            for note, value in (
                ("search-a", 0.91),
                ("search-b", 0.93),
                ("long-b", 0.92),
            )
        ),
    )
    drawn = {chart.name: chart for chart in charts.charts(runs, {})}
    assert [line.label for line in drawn["pmnist"].series] == ["ExpRNN 170"]
    assert [line.label for line in drawn["beyond"].series] == [
        "ExpRNN 170, long-b",
        "ExpRNN 170",
    ]
    part = page(runs, list(drawn.values())).partition("## Beyond the paper")[2]
    assert "does not reach the goal: test accuracy 0.9200 at its best" in part
    rows = [line.split(" |")[0] for line in part.splitlines() if "| Adam |" in line]
    assert rows == ["| search-b", "| long-b", "| search-a"]


def test_the_long_run_is_trained_like_the_best_short_run():
    """Validation images chose the options of the long run, among ten short runs."""
    start = "pmnist-exprnn-170-search-"
    runs = {n: r for n, r in records.read(RECORDS).items() if n.startswith(start)}
    accuracies = {
        name.removeprefix(start): run["summary"]["best"]["validation"]["accuracy"]
        for name, run in runs.items()
    }
    *short, long = plan("beyond")
    assert {run.name for run in short} == {*runs}
    assert long.note == f"long-{max(accuracies, key=accuracies.__getitem__)}"


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
    assert text.count("No run of this part is recorded yet") == 7
    assert "not run yet" in text


def test_remarks_show_the_losses_of_their_variants():
    def variant(name: str, loss: float) -> dict:
        final = {"validation": {"loss": loss}}
        return {"name": name, "summary": {"final": final, "baseline": 2.0}}

    runs = by_name(
        variant("copying-200-exprnn-190-reference", 0.2),
        variant("copying-200-exprnn-190-ratio-10", 3.0),
    )
    (remark,) = (r for r in REMARKS if "10 times larger" in r.text)
    assert remark.verdict(runs) == "a tenth 0.1, ten times 1.5"
    assert remark.verdict({}) == "not run yet"
