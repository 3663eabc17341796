"""Runs that differ in the seed: one row of means, one curve, or each run by itself."""

import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from isometry.lab import write_report
from isometry.lab._report.experiments import ReportedExperiment, experiments
from isometry.lab._report.figures import Quantity, _curves
from isometry.lab._report.looks import looks
from isometry.lab._report.page import headline
from isometry.lab._report.runs import Run, SeedGroup, read_run, seed_groups
from isometry.lab._report.table import TableRow, results_table, runs_table, spread
from isometry.lab.task import TaskDescription
from tests.lab.fake_runs import fake_run


def run_of(seed: int, *values: float, status: str = "finished", **config: Any) -> Run:
    """A run on MNIST with these test accuracies, one at each step."""
    settings = {"task": "mnist", "model": "exprnn", "hidden_size": 170, "seed": seed}
    records = tuple(
        {"step": n, "seconds": 2.0 * n * seed, "split": split, "accuracy": value}
        for n, value in enumerate(values, start=1)
        for split in ("validation", "test")
    )
    return Run(Path(f"run-{seed}"), settings | config, records, {"status": status})


def of(*runs: Run) -> ReportedExperiment:
    task = TaskDescription("mnist", "MNIST", metric="accuracy", larger_is_better=True)
    return ReportedExperiment(task, runs)


def cells(table: list[TableRow], name: str) -> list[str]:
    return [row.cells[name] for row in table]


def seeds_of(groups_of_seeds: tuple[SeedGroup, ...]) -> list[list[int]]:
    return [[run.config["seed"] for run in group.runs] for group in groups_of_seeds]


def test_runs_that_differ_in_their_seeds_alone_are_together():
    """Runs that differ only in the seed form one group.

    Threads and the command may differ too; another rate or network makes another group.
    """
    runs = [
        run_of(1, lr=0.1, threads=1, command="a"),
        run_of(2, lr=0.1, threads=2, command="b"),
        run_of(1, lr=0.2),
        run_of(3, lr=0.1, model="lstm"),
        run_of(3, lr=0.1),
    ]
    assert seeds_of(seed_groups(runs)) == [[1, 2, 3], [1], [3]]


def test_an_option_that_is_new_is_one_that_was_left_out():
    """A run recorded before `--decay` existed equals one that does not use it."""
    runs = [run_of(1), run_of(2, decay=None), run_of(3, decay="cosine")]
    assert seeds_of(seed_groups(runs)) == [[1, 2], [3]]


def test_a_seed_twice_is_no_second_sample():
    """A seed counts once: equal numbers would narrow the spread."""
    assert seeds_of(seed_groups([run_of(1), run_of(1), run_of(2)])) == [[1, 2], [1]]


def test_a_row_has_mean_and_deviation():
    """0.90, 0.92 and 0.97 have mean 0.93 and deviation sqrt((9 + 1 + 16) / 2) %."""
    experiment = of(run_of(1, 0.90), run_of(2, 0.92), run_of(3, 0.97))
    table = results_table(experiment)
    deviation = math.sqrt((9 + 1 + 16) / 2) / 100
    assert cells(table, "Best test accuracy") == [f"0.9300 ± {deviation:.4f}"]
    assert cells(table, "Seeds") == ["3"]
    assert headline(experiment).startswith(
        "ExpRNN 170, 3 seeds: test accuracy 0.9300 ± "
    )


def test_each_run_is_in_a_table_of_its_own():
    experiment = of(run_of(1, 0.90), run_of(2, 0.92), run_of(1, 0.5, model="lstm"))
    each = runs_table(experiment)
    assert cells(each, "Best test accuracy") == ["0.9000", "0.9200", "0.5000"]
    assert cells(each, "Seed") == ["1", "2", "1"]
    # one group has the best mean, the other the best run
    assert [bool(row.best) for row in results_table(experiment)] == [True, False]
    assert [bool(row.best) for row in each] == [False, True, False]


def test_without_several_seeds_there_is_one_table():
    assert runs_table(of(run_of(1, 0.9), run_of(1, 0.8, model="lstm"))) == []


def test_a_diverged_seed_is_counted_but_not_averaged():
    experiment = of(
        run_of(1, 0.90), run_of(2, 0.92), run_of(3, 0.1, 0.1, status="diverged")
    )
    table = results_table(experiment)
    assert cells(table, "Best test accuracy")[0].startswith("0.9100 ± ")
    assert cells(table, "Seeds") == ["2 of 3"]
    assert cells(table, "Status") == ["2 finished, 1 diverged"]


def test_an_unfinished_seed_is_drawn_but_not_averaged():
    """An unfinished run is drawn, but not averaged.

    The table used to average it, as if it had been trained as long as the others.
    """
    experiment = of(run_of(1, 0.8, 0.9), run_of(2, 0.5, status="unfinished"))
    table = results_table(experiment)
    assert cells(table, "Best test accuracy") == ["0.9000"]
    assert cells(table, "Seeds") == ["1 of 2"]
    assert experiment.groups[0].curve("accuracy", "test").low == [0.5, 0.9]


def test_the_headline_names_the_metric_of_the_users_own_task():
    """The headline names the metric of the user's task.

    It used to say "final training loss", whatever the metric was.
    """
    run = run_of(1)
    records = tuple(
        {"step": 1, "split": split, "F1": 0.75} for split in ("validation", "test")
    )
    run = Run(run.path, run.config, records, run.summary)
    experiment = ReportedExperiment(
        TaskDescription("order", "", metric="F1", larger_is_better=True), (run,)
    )
    assert headline(experiment).startswith("ExpRNN 170: test F1 0.7500 at the best ")
    assert cells(results_table(experiment), "Test F1 at best validation") == ["0.7500"]


def test_seeds_that_are_not_equally_far():
    table = results_table(of(run_of(1, *(0.9, 0.9)), run_of(2, 0.9)))
    assert cells(table, "Steps") == ["1–2"]


def test_a_curve_is_the_mean_of_the_runs_that_are_there():
    """A curve is the mean over the runs that have the step.

    Seconds are averaged too, since each run takes its own time for a step.
    """
    (group,) = seed_groups([run_of(1, 0.2, 0.4, 0.6), run_of(2, 0.4, 0.8)])
    curve = group.curve("accuracy", "test")
    assert curve.x == [1, 2, 3]
    assert curve.middle == pytest.approx([0.3, 0.6, 0.6])
    assert (curve.low, curve.high) == ([0.2, 0.4, 0.6], [0.4, 0.8, 0.6])
    assert group.curve("accuracy", "test", against="seconds").x == [3, 6, 6]


def test_a_record_without_seconds_has_no_place_on_their_axis():
    """A record that lacks its seconds is left out of the curve against seconds."""
    run = run_of(1, 0.2, 0.4)
    first = {name: value for name, value in run.records[0].items() if name != "seconds"}
    records = (first, *run.records[1:])
    (group,) = seed_groups([Run(run.path, run.config, records, run.summary)])
    assert group.curve("accuracy", "validation").x == [1, 2]
    assert group.curve("accuracy", "validation", against="seconds").x == [4]


def test_options_tell_rows_of_one_network_apart():
    """Options tell rows of one network apart, where rows used to have folder names."""
    runs = [run_of(s, lr=lr) for lr in (None, 0.1) for s in (1, 2)]
    labels = [look.label for look in looks(seed_groups(runs))]
    assert labels == ["ExpRNN 170, 2 seeds", "ExpRNN 170, lr 0.1, 2 seeds"]
    table = results_table(of(*runs))
    assert cells(table, "Network") == ["ExpRNN", "ExpRNN, lr 0.1"]
    options = [run_of(1, model_options=o) for o in ({}, {"rebase_every": 3})]
    labels = [look.label for look in looks(seed_groups(options))]
    assert labels == ["ExpRNN 170", "ExpRNN 170, rebase every 3"]


def test_several_seeds_are_one_line_with_a_shade():
    experiment = of(
        run_of(1, 0.2, 0.4), run_of(2, 0.4, 0.8), run_of(1, 0.1, 0.1, model="lstm")
    )
    axes: Any = Figure().add_subplot()
    _curves(experiment.groups, Quantity("accuracy", "test"), axes)
    mean, lstm = axes.lines
    assert mean.get_label() == "ExpRNN 170, 2 seeds"
    assert list(mean.get_ydata()) == pytest.approx([0.3, 0.6])
    assert lstm.get_label() == "LSTM 170"
    (shade,) = axes.collections
    corners = shade.get_paths()[0].vertices
    assert {(x, y) for x, y in corners} == {(1, 0.2), (1, 0.4), (2, 0.4), (2, 0.8)}


def test_a_diverged_seed_is_marked():
    (group,) = seed_groups([run_of(1, 0.2, 0.4), run_of(2, 0.6, status="diverged")])
    axes: Any = Figure().add_subplot()
    _curves((group,), Quantity("accuracy", "test"), axes)
    mean, failed, cross = axes.lines
    assert list(mean.get_ydata()) == [0.2, 0.4]
    assert failed.get_linewidth() < mean.get_linewidth()
    assert cross.get_marker() == "x"
    assert cross.get_xydata().tolist() == [[1, 0.6]]


def test_the_page_shows_means_and_each_run(tmp_path):
    runs = [fake_run(tmp_path / f"{s}", seed=s, steps=9) for s in (1, 2)]
    page = write_report(runs, tmp_path / "report").read_text()
    assert "<summary>Each run</summary>" in page
    assert "ExpRNN 190, 2 seeds" in page
    assert "the line is their mean" in page
    markdown = (tmp_path / "report" / "results.md").read_text()
    assert "Each run:" in markdown
    assert " ".join(markdown.split()).count("| ExpRNN | 190 |") == 3


def speech_run(path: Path, mse: float, model: str = "exprnn", **scores: float) -> Run:
    """A run on TIMIT, with scores if they are passed."""
    options = {"scores": bool(scores)}
    run = read_run(fake_run(path, task="timit", options=options, model=model, steps=1))
    records = tuple(
        {"step": n, "split": split, "mse": mse + worse, "padded_mse": 0.5 * mse + 2 - n}
        for n, worse in ((1, 1.0), (2, 0.0), (3, 2.0))
        for split in ("validation", "test")
    )
    heard = {"scores": {"validation": {}, "test": scores}} if scores else {}
    return Run(path, run.config, records, {**run.summary, **heard})


def test_both_errors_of_speech_are_shown(tmp_path):
    """Errors over valid and over padded frames are shown, at the best validation."""
    (experiment,) = experiments([speech_run(tmp_path / "run", 8.0)])
    table = results_table(experiment)
    assert cells(table, "Test error at best validation, valid frames")[0] == "8"
    assert cells(table, "The same, padded frames")[0] == "4"


def test_how_speech_sounds_is_shown_where_it_was_heard(tmp_path):
    """Scores of the test set are shown if there are any.

    A run without `--scores` is still the same experiment.
    """
    runs = [
        speech_run(tmp_path / "one", 8.0, segsnr=4.0, stoi=0.75, pesq=2.5),
        speech_run(tmp_path / "two", 8.0, "lstm"),
    ]
    (experiment,) = experiments(runs)
    table = results_table(experiment)
    assert cells(table, "SegSNR, dB")[:2] == ["4", "–"]
    assert cells(table, "STOI")[:2] == ["0.7500", "–"]
    assert cells(table, "PESQ")[:2] == ["2.5", "–"]
    silent = experiments([runs[1]])[0]
    assert "STOI" not in results_table(silent)[0].cells


def test_spread_of_few():
    """One value has no deviation, and no values have no mean."""
    assert [spread(v) for v in ([], [0.5], [0.25, 0.75])] == [
        *("–", "0.5000", "0.5000 ± 0.3536")
    ]
    # the deviation has as many digits as the mean
    assert spread([0.0028, 0.0032]) == "0.0030 ± 0.0003"
    assert spread([1e-5, 3e-5]) == "2.0e-05 ± 1.4e-05"
    assert spread([5.0, 6.0]) == "5.5 ± 0.71"
