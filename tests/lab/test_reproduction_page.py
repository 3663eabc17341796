"""The page on reproduction shows the numbers of the records."""

import json
from pathlib import Path

from isometry.lab._report.runs import read_run
from isometry.lab.paper.protocol import plan
from tests.lab.fake_runs import fake_run
from tools.reproduction import __main__ as command
from tools.reproduction import charts, experiments, records
from tools.reproduction.chart import data
from tools.reproduction.claims import CLAIMS, REMARKS
from tools.reproduction.page import page
from tools.reproduction.runs import STEPS_PER_EPOCH, groups
from tools.reproduction.verdicts import Verdict

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / records.FOLDER


def test_the_page_is_generated():
    """The page is what `python -m tools.reproduction page` writes, byte by byte."""
    known = records.read(RECORDS)
    measured = experiments.read(ROOT / experiments.FOLDER)
    text = (ROOT / command.DOCS / "reproduction.md").read_text()
    assert page(known, measured, list(charts.charts(known, measured))) == text


def test_figures_plot_the_records():
    """The committed figures plot the data of the records.

    Only data are compared, since a drawing also depends on fonts.
    """
    known = records.read(RECORDS)
    drawn = list(charts.charts(known, experiments.read(ROOT / experiments.FOLDER)))
    plotted = json.loads((ROOT / command.ASSETS / "data.json").read_text())
    assert json.loads(json.dumps(data(drawn))) == plotted
    # a figure that is not drawn any more would stay behind
    names = {chart.name for chart in drawn} | {"rebase"}
    assert {path.stem for path in (ROOT / command.ASSETS).glob("*.svg")} == names


def test_every_run_says_how_it_was_trained():
    """Maps, bases and rates are on the page, also where the command leaves them out."""
    known = records.read(RECORDS)
    every = page(known, {}, []).partition("## Every run")[2]
    rows = [line for line in every.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(known)
    for row in rows:
        name, training = (row.split(" | ")[i].strip("| ") for i in (0, 6))
        assert "all else: " in training, name
        if any(network in name for network in ("exprnn", "explstm", "expgru")):
            assert training.startswith("map exp; "), name
            assert "base" in training, name
            assert "init" in training, name


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
    """ExpRNN must solve the task, without three spikes or more."""
    judge = CLAIMS[0].verdict
    assert judge({}, {}).word == "not run yet"
    for i, (loss, jumps, verdict) in enumerate(
        (
            (
                1e-4,
                0,
                Verdict("confirmed", "seed 5544 solved at step 100, no spike"),
            ),
            (
                1e-4,
                1,
                Verdict(
                    "confirmed",
                    "seed 5544 solved at step 100, 1 spike, the worst to 1,200 times "
                    "the median",
                ),
            ),
            (0.1, 0, Verdict("not confirmed", "seed 5544 not solved, no spike")),
            (
                1e-4,
                5,
                Verdict(
                    "not confirmed",
                    "seed 5544 solved at step 100, 5 spikes, the worst to 1,200 times "
                    "the median",
                ),
            ),
        )
    ):
        runs = known_runs(tmp_path / f"{i}", status="solved", jumps=jumps)
        (run,) = runs.values()
        run["summary"]["baseline"] = 1.0
        run["spikes"]["worst"] = 1200.4
        run["validation"]["loss"] = [loss] * len(run["validation"]["step"])
        assert judge(runs, {}) == verdict


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
        | {"seed": 1, "model_options": {}, "task_options": {"target": "next"}}
        | {"recipe": {"options": {}, "optimizers": []}}
        | config,
        "environment": {"cpu": "One"},
        "summary": {"steps": steps[-1], "best": place, "best_by_test": place}
        | {"status": "finished", "parameters": 1, "cpu_seconds": 1.0, "seconds": 1.0},
        "validation": {"step": steps},
        "test": {"step": steps, "accuracy": list(accuracies)},
    }


def by_name(*runs: dict) -> dict:
    return {run["name"]: run for run in runs}


def verdict_on(start: str, *runs: dict, **measured: dict) -> Verdict:
    """The verdict on the claim whose text begins like this."""
    (claim,) = (c for c in CLAIMS if c.text.startswith(start))
    return claim.verdict(by_name(*runs), measured)


def test_the_accuracy_of_the_paper_needs_70_epochs_to_be_refuted():
    claim = "ExpRNN 170 reaches 0.949"
    assert verdict_on(claim).word == "not run yet"
    for accuracies, word in (
        ((0.9, 0.9486), "confirmed"),
        ((0.9, 0.9484), "open"),
        ((0.9,) * 70, "not confirmed"),
    ):
        verdict = verdict_on(claim, pixel_run("pmnist-exprnn-170", *accuracies))
        assert verdict.word == word
    # standard deviation of 10,000 coin tosses with probability 0.9
    assert verdict.evidence.startswith("0.9000 ± 0.0030, the best of 70 epochs")


def test_only_the_longest_run_is_compared_with_the_paper():
    """Other seeds with fewer epochs do not change what the 70 epochs reached."""
    long = pixel_run("pmnist-exprnn-170", *(0.9,) * 70)
    short = pixel_run("pmnist-exprnn-170-seed2", 0.96, seed=2)
    verdict = verdict_on("ExpRNN 170 reaches 0.949", short, long)
    assert verdict.word == "not confirmed"


def test_networks_are_compared_at_equal_epochs():
    """The claim holds if ExpRNN leads after every epoch, and fails if after half."""
    claim = "on permuted MNIST, ExpRNN learns faster than RGD"
    ours = pixel_run("pmnist-exprnn-170", *(0.9,) * 70)
    assert verdict_on(claim, ours).word == "not run yet"
    for behind, word in (
        (0, "confirmed"),
        (1, "open"),
        (4, "open"),
        (5, "not confirmed"),
    ):
        other = pixel_run("pmnist-rgd-116", *(0.91,) * behind, *(0.8,) * (10 - behind))
        verdict = verdict_on(claim, ours, other)
        assert verdict.word == word
        assert verdict.evidence == (
            f"ahead after {10 - behind} of 10 epochs; accuracy after 10: "
            f"ExpRNN 170 0.900 (one seed), RGD 116 0.800 (one seed)"
        )
    # epochs that a network lacks say nothing
    short = pixel_run("pmnist-rgd-116", 0.8, 0.8)
    assert verdict_on(claim, ours, short).evidence.startswith("ahead after 2 of 2")


def test_seeds_are_averaged():
    """The mean of all seeds counts, not a single lucky one."""
    claim = "on permuted MNIST, ExpRNN learns faster than RGD"
    ours = [
        pixel_run(f"pmnist-exprnn-170{note}", *(value,) * 10, seed=seed)
        for note, value, seed in (("", 0.95, 1), ("-seed2", 0.75, 2))
    ]
    other = pixel_run("pmnist-rgd-116", *(0.9,) * 10)
    verdict = verdict_on(claim, *ours, other)
    assert verdict.word == "not confirmed"
    assert "ExpRNN 170 0.850 (0.750 to 0.950, 2 seeds)" in verdict.evidence
    (group,) = groups(ours)
    assert len(group) == 2
    drawn = {chart.name: chart for chart in charts.charts(by_name(*ours), {})}
    (line,) = drawn["pmnist"].series
    assert line.label == "ExpRNN 170, 2 seeds"
    assert (line.y[0], line.low[0], line.high[0]) == (0.85, 0.75, 0.95)
    assert "| 0.8500 (0.7500 to 0.9500) |" in page(by_name(*ours), {}, [])


def test_gated_cells_are_compared_after_five_epochs():
    ours = pixel_run("pmnist-exprnn-170", *(0.9,) * 70)
    for accuracy, word in ((0.95, "confirmed"), (0.85, "not confirmed")):
        gru = pixel_run("pmnist-expgru-100", *(accuracy,) * 5)
        assert verdict_on("ExpGRU", ours, gru).word == word
    short = pixel_run("pmnist-expgru-100", *(0.95,) * 4)
    assert verdict_on("ExpGRU", ours, short).word == "not run yet"


def test_the_sample_of_speech_decides_nothing():
    runs = [
        pixel_run(f"timit-{n}-next", 1 - error)
        for n, error in (("exprnn-224", 0.2), ("lstm-84", 0.1))
    ]
    for run in runs:
        run["name"] = run["name"].replace("timit-", "timit-sample-")
    verdict = verdict_on("ExpRNN predicts speech", *runs)
    assert verdict.word == "open"
    assert verdict.evidence.endswith("LSTM 84 0.1, ExpRNN 224 0.2")


def copying_run(network: str, lag: int, losses: list[float]) -> dict:
    """A record on the copying task with these losses, one for every 50 steps."""
    run = pixel_run(f"copying-{network}", 1.0)
    steps = [50 * (i + 1) for i in range(len(losses))]
    run["name"] = f"copying-{lag}-{network}"
    run["validation"] = {"step": steps, "loss": losses}
    run["summary"] |= {"steps": steps[-1], "baseline": 1.0}
    run["summary"]["final"] = {"validation": {"loss": losses[-1]}}
    return run


def test_only_exprnn_may_be_solved_at_lag_2000():
    claim = "at lag 2000, only ExpRNN"
    solved, unsolved = [1.0] * 10 + [0.001] * 10, [0.3] * 20
    ours = copying_run("exprnn-190", 2000, solved)
    others = [
        copying_run(name, 2000, unsolved)
        for name in ("scornn-190", "rgd-128", "scurnn-130")
    ]
    assert verdict_on(claim, ours).word == "not run yet"
    assert verdict_on(claim, *others).word == "not run yet"
    verdict = verdict_on(claim, ours, *others)
    assert verdict.word == "confirmed"
    assert verdict.evidence.startswith(
        "ExpRNN 190 solved at step 550, scoRNN 190 at 0.30 of the baseline after 1,000"
    )
    # a network that was not run, or not long enough, might have solved the task
    missing = verdict_on(claim, ours, others[0])
    assert missing.word == "open"
    assert missing.evidence.endswith("were not run")
    short = copying_run("scornn-190", 2000, unsolved[:-1])
    assert verdict_on(claim, ours, short, *others[1:]).word == "open"
    rival = copying_run("scornn-190", 2000, solved)
    assert verdict_on(claim, ours, rival, *others[1:]).word == "not confirmed"


def test_the_network_that_solves_the_task_first_is_faster():
    claim = "ExpRNN converges faster"
    ours = copying_run("exprnn-190", 1000, [1.0] * 5 + [0.05] * 5 + [0.001] * 10)
    for wait, word in ((9, "not confirmed"), (10, "not confirmed"), (11, "confirmed")):
        losses = [1.0] * wait + [0.001] * 10
        verdict = verdict_on(claim, ours, copying_run("rgd-128", 1000, losses))
        assert verdict.word == word
    assert verdict.evidence == (
        "steps until solved: ExpRNN 190 550 (a tenth of the baseline: 300), "
        "RGD 128 600 (a tenth of the baseline: 600)"
    )


def test_the_constraint_may_cost_five_percent():
    for ratio, word in ((1.04, "confirmed"), (1.06, "not confirmed")):
        name = "ExpRNN, 128 sequences of 784 time steps"
        record = {"n": [256, 512], "ratio": {name: [[2, 2, 2], [1.0, ratio, 1.2]]}}
        verdict = verdict_on(
            "the constraint costs nothing that one notices: pixels", cheapness=record
        )
        assert verdict.word == word
        assert "quartiles 0.0 % and 20.0 %" in verdict.evidence


def test_an_angle_above_pi_has_left_the_domain():
    claim = "the coordinates never leave"
    for angle, word in ((3.1415, "confirmed"), (3.1417, "not confirmed")):
        run = copying_run("exprnn-190", 1000, [1.0] * 3)
        run["validation"]["largest_angle"] = [1.0, angle, 1.0]
        moved = copying_run("exprnn-190-rebase100", 1000, [1.0] * 3)
        moved["validation"]["largest_angle"] = [1.0, 4.0, 1.0]
        assert verdict_on(claim, run, moved).word == word


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
        "training chosen by the search",
        "the paper's training",
    ]
    part = page(runs, {}, list(drawn.values())).partition("## Beyond the paper")[2]
    assert "does not reach the goal" in part
    assert "its test accuracy is 0.9200" in part
    rows = [line.split(" |")[0] for line in part.splitlines() if "| Adam |" in line]
    assert rows == ["| search-b", "| long-b", "| search-a"]


def test_the_long_run_is_trained_like_the_best_short_run():
    """The long run has the options of the short run that validated best."""
    start = "pmnist-exprnn-170-search-"
    runs = {n: r for n, r in records.read(RECORDS).items() if n.startswith(start)}
    accuracies = {
        name.removeprefix(start): run["summary"]["best"]["validation"]["accuracy"]
        for name, run in runs.items()
    }
    *short, long = plan("beyond")
    assert {run.name for run in short} == {*runs}
    assert long.note == f"long-{max(accuracies, key=accuracies.__getitem__)}"


def test_minutes_of_processor_and_clock(tmp_path):
    """Processor and wall time are shown; a dash stands for no record of the former."""
    runs = known_runs(tmp_path, status="solved", jumps=0)
    (run,) = runs.values()
    run["config"]["recipe"] = {"options": {}, "optimizers": []}
    run["summary"] |= {"seconds": 7200.0, "cpu_seconds": 3600.0}
    run["summary"]["final"] = {"validation": {"loss": 1.0}}
    assert "| 60 | 120 |" in page(runs, {}, [])
    del run["summary"]["cpu_seconds"]
    assert "| – | 120 |" in page(runs, {}, [])


def test_parts_without_runs_say_so():
    text = page({}, {}, [])
    assert text.count("No run of this part is recorded yet") == 8
    assert "not run yet" in text
    assert "Every claim that was tested is confirmed" in text


def test_claims_that_do_not_hold_come_first():
    run = pixel_run("pmnist-exprnn-170", *(0.9,) * 70)
    part = page(by_name(run), {}, []).partition("## What does not hold")[2]
    first = part.partition("## The claims")[0].strip().splitlines()[1:]
    assert [line for line in first if "reaches 0.949" in line]
    assert "**not confirmed**" in "".join(first)


def test_remarks_show_the_losses_of_their_variants():
    def variant(name: str, loss: float) -> dict:
        final = {"validation": {"loss": loss}}
        return {"name": name, "summary": {"final": final, "baseline": 2.0}}

    runs = by_name(
        variant("copying-200-exprnn-190-reference", 0.2),
        variant("copying-200-exprnn-190-ratio-10", 3.0),
    )
    (remark,) = (r for r in REMARKS if "10 times larger" in r.text)
    assert remark.verdict(runs, {}) == Verdict("", "a tenth 0.1, ten times 1.5")
    assert remark.verdict({}, {}).word == "not run yet"
