"""The numbers of a report: compared, thinned out, and quoted from the paper."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isometry.lab._report.experiments import (
    ReportedExperiment,
    experiments,
    final_loss,
)
from isometry.lab._report.figures import ANGLE_BINS, density, draw, power, thinned
from isometry.lab._report.looks import looks
from isometry.lab._report.page import headline
from isometry.lab._report.runs import Curve, Run, SeedGroup, read_run
from isometry.lab._report.table import (
    best_group,
    duration,
    markdown,
    results_table,
    small,
)
from isometry.lab.paper.tables import PAPER, PaperTable
from isometry.lab.task import TaskDescription
from tests.lab.fake_runs import fake_run

PIXELS: dict[str, Any] = {"task": "mnist", "options": {"permute": True}}


def run_of(records, model="exprnn", hidden_size=170, status="finished", **config):
    settings = {"task": "mnist", "model": model, "hidden_size": hidden_size} | config
    return Run(Path("run"), settings, tuple(records), {"status": status})


def record(step: int, split: str, **values: float) -> dict[str, Any]:
    return {"step": step, "seconds": float(step), "split": split} | values


def of_accuracy(
    *runs: Run, key: str = "own", paper: PaperTable | None = None
) -> ReportedExperiment:
    """Runs that are compared by their accuracy."""
    task = TaskDescription(key, "", metric="accuracy", larger_is_better=True)
    return ReportedExperiment(task, runs, paper)


def column(experiment: ReportedExperiment, name: str) -> list[str]:
    return [row.cells[name] for row in results_table(experiment)]


def best(experiment: ReportedExperiment) -> tuple[Run, ...] | None:
    group = best_group(experiment, experiment.groups)
    return None if group is None else group.runs


def test_test_set_is_read_at_the_best_validation():
    """The test metric is read at the best validation.

    The paper quotes the best test metric, which is another number.
    """
    accuracies = {1: (0.7, 0.95), 2: (0.9, 0.8), 3: (0.8, 0.85)}
    records = [
        record(step, split, accuracy=value)
        for step, pair in accuracies.items()
        for split, value in zip(("validation", "test"), pair, strict=True)
    ]
    run = run_of(records)
    experiment = of_accuracy(run)
    assert (experiment.at_best_validation(run), experiment.best_test(run)) == (
        0.8,
        0.95,
    )
    assert experiment.last_test(run) == 0.85


def test_of_an_error_the_smallest_is_the_best():
    records = [
        record(step, split, mse=value)
        for step, pair in {1: (5.0, 4.0), 2: (3.0, 6.0)}.items()
        for split, value in zip(("validation", "test"), pair, strict=True)
    ]
    run = run_of(records)
    experiment = ReportedExperiment(TaskDescription("", "", metric="mse"), (run,))
    assert (experiment.at_best_validation(run), experiment.best_test(run)) == (6.0, 4.0)


def test_numbers_that_are_not_finite_are_no_result():
    """A result that is not finite is left out.

    A run that diverged ends with NaN, which must not enter a median.
    """
    losses = [0.5, math.inf, math.nan]
    records = [record(n, "train", loss=loss) for n, loss in enumerate(losses)]
    assert final_loss(run_of(records)) == 0.5


def test_a_diverged_run_is_not_the_best():
    """A diverged run is never the best, even if its last losses are small."""
    good = run_of([record(1, "train", loss=0.2)], task="copying")
    bad = run_of([record(1, "train", loss=0.1)], task="copying", status="diverged")
    task = TaskDescription("copying", "")
    assert best(ReportedExperiment(task, (bad, good))) == (good,)
    assert best(ReportedExperiment(task, (bad,))) is None


def test_the_best_accuracy_is_the_largest():
    low, high = (run_of([record(1, "test", accuracy=a)], lr=a) for a in (0.3, 0.6))
    experiment = of_accuracy(low, high, key="mnist", paper=PAPER["mnist"])
    assert best(experiment) == (high,)
    marked = [bool(row.best) for row in results_table(experiment)]
    assert marked[:2] == [False, True]
    assert sum(marked) == 1
    text = markdown(results_table(experiment))
    assert text.count("**") == 2
    # the columns are aligned, for readers on a terminal
    assert len({len(line) for line in text.splitlines()}) == 1


def test_only_the_paper_selects_on_the_test_set():
    """A user's own task is compared at the best validation, whatever its metric is."""
    better_by_test = run_of(
        [
            *(record(1, split, accuracy=0.5) for split in ("validation", "test")),
            record(2, "validation", accuracy=0.4),
            record(2, "test", accuracy=0.9),
        ]
    )
    for paper, value, words in (
        (None, 0.5, "accuracy 0.5000 at the best validation"),
        (PAPER["mnist"], 0.9, "accuracy 0.9000 in 2 steps, selected on the test set"),
        (PAPER["timit"], 0.5, "accuracy 0.5000 at the best validation"),
    ):
        experiment = of_accuracy(better_by_test, paper=paper)
        assert experiment.comparison.score(better_by_test) == value
        assert words in headline(experiment)


def test_the_paper_is_not_quoted_for_your_own_task_of_the_same_name():
    about = {"key": "mnist", "metric": "accuracy", "larger_is_better": True}
    records = [record(1, "test", accuracy=0.5)]
    for task, paper in (("mine:Digits", None), ("mnist", PAPER["mnist"])):
        (found,) = experiments([run_of(records, task=task, about=about)])
        assert found.task.key == "mnist"
        assert found.paper is paper


def test_experiments_have_different_names():
    """The name of an experiment is the start of its figures' names.

    The second experiment with the key "x" used to be called "x-2", even if a task had
    that key. The figures of one experiment then overwrote those of the other.
    """
    keys = ("x-2", "x", "x", "x")
    runs = [
        run_of([], task=f"own:{nth}", about={"key": key})
        for nth, key in enumerate(keys)
    ]
    assert [found.task.key for found in experiments(runs)] == ["x-2", "x", "x-3", "x-4"]


def test_without_validation_the_last_test_is_compared():
    """Without validation data nothing is selected; the report used to be empty."""
    run = run_of([record(1, "test", accuracy=0.9), record(2, "test", accuracy=0.5)])
    experiment = of_accuracy(run)
    assert experiment.comparison.score(run) == 0.5
    assert headline(experiment).endswith("test accuracy 0.5000 after 2 steps.")
    assert best(experiment) == (run,)


def test_a_metric_may_have_any_name(tmp_path):
    """A figure is written for a metric with a slash, which is no folder."""
    run = run_of([record(1, "test", **{"F1/macro": 0.5})])
    experiment = ReportedExperiment(
        TaskDescription("own", "", metric="F1/macro", larger_is_better=True), (run,)
    )
    (figure,) = draw(experiment, tmp_path)
    assert figure.svg == tmp_path / "own-F1_macro-test.svg"
    assert figure.svg.exists()


def test_a_report_says_that_all_runs_diverged():
    run = run_of([record(1, "test", accuracy=0.5)], status="diverged")
    experiment = of_accuracy(run)
    assert headline(experiment) == "Every run diverged."


def test_the_papers_number_stands_beside_ours(tmp_path):
    """The paper's number stands beside ours; its other rows follow."""
    runs = [
        read_run(fake_run(tmp_path / f"{n}", hidden_size=n, **PIXELS))
        for n in (512, 100)
    ]
    (experiment,) = experiments(runs)
    paper = column(experiment, "Paper")
    assert paper[:2] == ["0.966", "–"]
    # 14 rows of Table 1, of which one was trained
    assert len(paper) == 2 + 13
    assert column(experiment, "Status").count("not run") == 13
    assert paper[2] == "0.949"


def test_a_task_that_the_paper_has_not_has_no_numbers_of_it(tmp_path):
    """Ten symbols are the paper's task; twenty are another one, without its numbers."""
    runs = [
        fake_run(tmp_path / f"{length}", options={"lag": 1000, "length": length})
        for length in (10, 20)
    ]
    paper, other = experiments(map(read_run, runs))
    assert paper.paper is PAPER["copying-1000"]
    assert other.paper is None
    assert (paper.task.title, other.task.title) == (
        "Copying memory, lag 1000",
        "Copying memory, lag 1000, length 20",
    )
    # files of both tasks are in one folder
    assert paper.task.key != other.task.key


def test_where_data_lies_does_not_part_runs(tmp_path):
    runs = [
        fake_run(tmp_path / place, task="mnist", options={"root": place})
        for place in ("here", "there")
    ]
    assert len(experiments(map(read_run, runs))) == 1


def test_how_validation_is_held_out_parts_runs_but_not_from_the_paper(tmp_path):
    runs = [
        fake_run(tmp_path / f"{n}", task="mnist", options={"validation": n})
        for n in (0, 5000)
    ]
    all_experiments = experiments(map(read_run, runs))
    assert [experiment.paper for experiment in all_experiments] == 2 * [PAPER["mnist"]]


def test_a_killed_run_has_the_baseline_of_its_task(tmp_path):
    """A killed run has no summary, but the baseline of its task: 10 ln 8 / 1020."""
    (experiment,) = experiments([read_run(fake_run(tmp_path / "run", status=None))])
    assert experiment.task.baseline == pytest.approx(10 * math.log(8) / 1020)


def test_options_of_another_version_cost_the_baseline_alone(tmp_path):
    run = fake_run(tmp_path / "run", options={"lag": 1000, "gone": 1}, status=None)
    (experiment,) = experiments([read_run(run)])
    assert experiment.task.baseline is None


@pytest.mark.parametrize(
    ("task", "about", "comparable"),
    [
        ("own:Task", {"metric": "f1"}, False),
        ("own:Task", {"metric": "f1", "metric_is_loss": False}, False),
        ("own:Task", {"metric": "nats", "metric_is_loss": True}, True),
        ("own:Task", {"metric": "loss", "metric_is_loss": False}, True),
        ("own:Task", {}, True),
        ("adding", {}, True),
        ("mnist", {}, False),
    ],
)
def test_the_baseline_is_compared_with_losses_only(task, about, comparable, tmp_path):
    """The baseline, a loss, is in the text and the figure only if the metric is a loss.

    A report once said of any metric but "accuracy", such as an F1 score of 0.8, that
    the trivial solution gets 2.303. Folders of earlier versions lack `metric_is_loss`,
    and the oldest folders have no description at all.
    """
    metric = {"adding": "mse", "mnist": "accuracy"}.get(task, about.get("metric"))
    values = {"loss": 0.5, metric or "loss": 0.5}
    splits = ("train", "validation", "test")
    run = run_of([record(1, s, **values) for s in splits], task=task, about=about)
    run = replace(run, summary={"status": "finished", "baseline": 2.303})
    (experiment,) = experiments([run])
    assert ("The trivial solution gets 2.303." in headline(experiment)) == comparable
    (figure,) = (f for f in draw(experiment, tmp_path) if "-test" in f.svg.stem)
    assert ("baseline 2.303" in figure.svg.read_text()) == comparable


def test_equal_labels_are_told_apart(tmp_path):
    """Equal labels get the seed if it differs, and the folder if it does not."""
    runs = [
        SeedGroup((read_run(fake_run(tmp_path / name, seed=seed, steps=1)),))
        for name, seed in (("a", 1), ("b", 2), ("c", 2))
    ]
    labels = [look.label for look in looks(runs)]
    assert labels == [
        "ExpRNN 190, seed 1",
        "ExpRNN 190, seed 2, b",
        f"{labels[1][:-1]}c",
    ]
    assert len({(look.colour, look.dashes) for look in looks(runs)}) == 3


def test_networks_of_users_have_colours_of_their_own(tmp_path):
    """A user's network has one colour in a figure, which no other network has.

    Its colour used to change with the number of groups before it, and could be
    scoRNN's.
    """
    models = ("my:Net", "scornn", "my:Net", "your:Net")
    runs = [
        SeedGroup(
            (read_run(fake_run(tmp_path / f"{i}", model=model, seed=i, steps=1)),)
        )
        for i, model in enumerate(models)
    ]
    mine, other, mine_again, yours = (look.colour for look in looks(runs))
    assert mine == mine_again
    assert len({mine, other, yours}) == 3


@pytest.mark.parametrize("length", [0, 1, 239, 240, 241, 4000])
def test_thinned_points_are_few_and_keep_the_range(length):
    """At most 240 points are left, in order, and no spike is lost."""
    y = [float(n % 7) for n in range(length)]
    if length:
        y[length // 2] = 100.0
    x = [float(n) for n in range(length)]
    curve = thinned(Curve(x, y, y, y))
    assert len(curve.x) <= 240
    assert all(a < b for a, b in pairwise(curve.x))
    assert max(curve.high, default=None) == max(y, default=None)
    assert min(curve.low, default=None) == min(y, default=None)
    if length <= 240:
        assert curve.middle == y


def test_equal_shares_of_the_circle_have_density_one():
    """Angles spread evenly have density one, with both ends of the range included.

    An eigenvalue of -1 has the angle pi, or -pi.
    """
    step = 2 * math.pi / ANGLE_BINS
    even, edges = density([-math.pi + step * (j + 0.5) for j in range(ANGLE_BINS)])
    assert even.tolist() == [1.0] * ANGLE_BINS
    assert edges.tolist() == pytest.approx([step * j - math.pi for j in range(33)])
    # rounding may move an angle out of the range
    for ends in ([-math.pi, math.pi], [-3.1416, 3.1416]):
        values, _ = density(ends)
        assert values[0] == values[-1] == ANGLE_BINS / 2


def test_numbers_are_short():
    assert [small(v) for v in (None, 0.0, 0.98, 5.3, 1.2e-4, 12345.0)] == [
        *("–", "0.0000", "0.9800", "5.3", "1.2e-04", "1.2e+04")
    ]
    assert [duration(s) for s in (1.0, 90.0, 5400.0)] == ["1.0 s", "1.5 min", "1.5 h"]
    assert power(1e-4) == "10⁻⁴"


def parameters(model: str, n: int, d: int, k: int) -> int:
    """Number of weights and biases of a network with its output layer."""
    count = {
        "exprnn": n * (n - 1) // 2 + n * d + n,
        "scornn": n * (n - 1) // 2 + n * d + n,
        "lstm": 4 * (n * (n + d) + n),
        "rgd": n * n + 2 * n * d + 3 * n + n * k,
    }[model]
    return count + n * k + k


@pytest.mark.parametrize(
    ("experiment", "model", "sizes"),
    [
        *(("mnist", model, (1, 10)) for model in ("exprnn", "scornn", "lstm")),
        *(
            ("timit", model, (129, 129))
            for model in ("exprnn", "scornn", "lstm", "rgd")
        ),
    ],
)
def test_sizes_of_the_paper_have_its_counts(experiment, model, sizes):
    """The paper's counts agree with its sizes to 3 percent.

    This would show a misprint in n or in a count. The counts are rounded to thousands.
    """
    rows = [row for row in PAPER[experiment].rows if row.model == model]
    assert len(rows) == 3
    for row in rows:
        printed = 1000 * int(row.params.removesuffix("K"))
        # the worst is scoRNN's and ExpRNN's 170 on MNIST: 16,415 for 16K, 2.6 percent
        assert parameters(model, row.hidden_size, *sizes) == pytest.approx(
            printed, rel=0.03
        )


def test_the_summary_decides_over_the_records(tmp_path):
    """The summary's number of steps is shown: steps go on after the last record."""
    run = fake_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text()) | {"steps": 405}
    (run / "summary.json").write_text(json.dumps(summary))
    assert read_run(run).steps == 405
    (run / "summary.json").unlink()
    assert read_run(run).steps == 400
