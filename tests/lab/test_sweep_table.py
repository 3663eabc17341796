"""What a sweep prints at its end and while it runs."""

import json
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isometry.lab._report.experiments import experiments
from isometry.lab._report.runs import Run, read_run
from isometry.lab._report.table import aligned, results
from isometry.lab._sweep.view import View
from isometry.lab._sweep.worker import log_of
from tests.lab.fake_runs import Terminal, fake_run


def rows(runs: list[Run]) -> list[dict[str, str]]:
    """Cells of the first table by their headings, without the paper's rows."""
    table = results(experiments(runs)).split("\n\n")[1]
    cells = ([c.strip() for c in x.strip("| ").split("|")] for x in table.splitlines())
    heading, _, *body = cells
    table_rows = [dict(zip(heading, row, strict=True)) for row in body]
    return [row for row in table_rows if row["Status"] != "not run"]


def with_option(run: Run, name: str, value: object) -> Run:
    """Change an option in the config of a run."""
    path = run.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    return read_run(run.path)


# four evaluations: the second is best by validation, the third by test
VALIDATION, TEST = (0.5, 0.9, 0.8, 0.8), (0.6, 0.7, 0.95, 0.65)


def mnist_run(path: Path, *, shift: float, **options: Any) -> Run:
    """A run on MNIST with these accuracies plus a shift."""
    fake_run(path, task="mnist", options={}, **options)
    records = [
        {"step": step, "split": split, "loss": 1.0, "accuracy": value + shift}
        for step, pair in enumerate(zip(VALIDATION, TEST, strict=True), start=1)
        for split, value in zip(("validation", "test"), pair, strict=True)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (path / "metrics.jsonl").write_text(lines)
    return read_run(path)


# what is added to the accuracies of three seeds; with N instead of N - 1 their standard
# deviation would be a fifth smaller
SHIFTS = (0.0, 0.01, 0.04)


@pytest.fixture
def runs(tmp_path) -> list[Run]:
    """ExpRNN with three seeds, and an LSTM with one."""
    pairs = enumerate(SHIFTS, start=1)
    exprnns = [mnist_run(tmp_path / f"a{i}", shift=shift, seed=i) for i, shift in pairs]
    return [*exprnns, mnist_run(tmp_path / "b", shift=0.0, model="lstm")]


@pytest.mark.parametrize(
    ("heading", "value"),
    [
        ("Test accuracy at best validation", 0.7),
        ("Best test accuracy", 0.95),
        ("Last test accuracy", 0.65),
    ],
)
def test_a_row_is_a_network_over_its_seeds(heading, value, runs):
    """A row has the mean and the deviation with N - 1, as NumPy computes them.

    One seed has no deviation.
    """
    first, second = rows(runs)
    mean, deviation = value + np.mean(SHIFTS), np.std(SHIFTS, ddof=1)
    assert first[heading].strip("*") == f"{mean:.4f} ± {deviation:.4f}"
    assert second[heading] == f"{value:.4f}"


def test_a_row_tells_what_was_trained(runs):
    first, second = rows(runs)
    assert (first["Network"], first["n"], first["Seeds"]) == ("ExpRNN", "190", "3")
    assert (first["Parameters"], first["Per step"]) == ("21,764", "250 ms")
    assert first["Status"] == "finished"
    assert (second["Network"], second["Seeds"]) == ("LSTM", "1")


@pytest.mark.parametrize("status", ["diverged", "interrupted", None])
def test_what_did_not_end_is_not_averaged(status, runs, tmp_path):
    """An unfinished run is counted, with its status, but not averaged."""
    other = mnist_run(tmp_path / "c", shift=-0.5, seed=4, status=status)
    before, after = rows(runs)[0], rows([*runs, other])[0]
    assert after.pop("Status") == f"3 finished, 1 {status or 'unfinished'}"
    assert before.pop("Status") == "finished"
    assert (before.pop("Seeds"), after.pop("Seeds")) == ("3", "3 of 4")
    assert before == after


def test_options_that_vary_are_named(runs):
    """Runs with different rates have different rows, which name the rate."""
    changed = [with_option(runs[1], "lr", 0.5), with_option(runs[2], "lr", 0.5)]
    table = [(r["Network"], r["Seeds"]) for r in rows([runs[0], *changed])]
    assert table == [("ExpRNN", "1"), ("ExpRNN, lr 0.5", "2")]


def test_the_same_seed_is_no_other_sample(runs, tmp_path):
    """Runs with different thread counts have different rows, over the same seeds."""
    copies = (shutil.copytree(run.path, tmp_path / f"{run.path.name}t") for run in runs)
    again = [with_option(read_run(path), "threads", 2) for path in copies]
    table = [(r["Network"], r["Seeds"]) for r in rows([*runs[:3], *again[:3]])]
    assert table == [("ExpRNN", "3"), ("ExpRNN, threads 2", "3")]


def test_each_task_has_its_table(tmp_path, runs):
    """Each task has a table of its own, with its own metric."""
    other = read_run(fake_run(tmp_path / "copy", steps=20))
    text = results(experiments([*runs, other]))
    assert text.count("\n## ") + text.startswith("## ") == 2
    assert "Test loss at best validation" in text


def test_a_column_of_single_digits_is_a_column():
    """Markdown wants a dash in each cell of the rule.

    The rule of a column with one character used to be ":", so no table was drawn.
    """
    _, rule, _ = aligned(["Network", "n"], [["ExpRNN", "6"]]).splitlines()
    assert rule == "| ------- | -: |"


def begin(out: Path, name: str) -> None:
    """Write what a run writes when it begins."""
    fake_run(out / name, steps=3, status=None)
    log_of(out / name).write_text("a process\n")


@pytest.fixture
def impatient(monkeypatch):
    """Redraw the view at every look."""
    monkeypatch.setattr("isometry.lab._sweep.view._LIVE", -1)
    monkeypatch.setattr("isometry.lab._sweep.view._PLAIN", -1)


def test_a_terminal_shows_all_runs_in_one_view(tmp_path, impatient):
    """All runs are in one view, which is drawn over the last one.

    Lines that stay are printed above it.
    """
    stream = Terminal()
    with redirect_stderr(stream):
        view = View(tmp_path, ["a", "b", "c"], total=5, done=2)
    for name in "ab":
        begin(tmp_path, name)
    # 397 steps of a quarter of a second are left
    view.refresh()
    first = stream.getvalue()
    assert first.splitlines()[0] == "2 of 5 done, 2 running"
    assert first.splitlines()[1].startswith("  a  3/400  0:01:39 left  loss ")
    stream.truncate(0)
    view.refresh()
    # three lines up, then clear everything below
    assert stream.getvalue().lstrip("\0") == f"\x1b[3A\x1b[J{first}"
    (tmp_path / "b" / "metrics.jsonl").write_text("")
    view.refresh()
    assert stream.getvalue().endswith("  b  begins\n")
    view.end("a", "no luck")
    assert "a failed  (2 of 5 done, 1 running, 1 failed)\n" in stream.getvalue()
    view.refresh()
    view.close()
    assert stream.getvalue().endswith("\x1b[2A\x1b[J")


def test_a_view_fits_the_terminal(tmp_path, impatient, monkeypatch):
    """A view has few and short lines: one that wraps could not be drawn over."""
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "6")
    names = [f"run-{i}-with-a-long-name" for i in range(9)]
    stream = Terminal()
    with redirect_stderr(stream):
        view = View(tmp_path, names, total=9, done=0)
    for name in names:
        begin(tmp_path, name)
    view.refresh()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) < 20
    assert lines[-1] == "... and 7 more"


def test_elsewhere_the_view_is_plain_lines(tmp_path, impatient):
    """Without a terminal the view is plain lines.

    The last line of metrics may be incomplete.
    """
    stream = StringIO()
    log_of(tmp_path / "b").write_text("of another day\n")
    with redirect_stderr(stream):
        view = View(tmp_path, ["a", "b"], total=2, done=0)
    begin(tmp_path, "a")
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    view.refresh()
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["a begins", "0 of 2 done, 1 running"]
    assert lines[2].startswith("  a  3/400  0:01:39 left  loss ")
    assert len(lines) == 3
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("count", [1000, 10000])
@pytest.mark.parametrize("others", [0, 3], ids=["alone", "after others"])
def test_a_record_may_be_long(tmp_path, impatient, others, count):
    """A record of many metrics is shown like any other.

    If it had more than 4096 bytes, it used to end the whole sweep. Later it was not
    shown if it had more than 2^18 bytes.
    """
    stream = StringIO()
    with redirect_stderr(stream):
        view = View(tmp_path, ["a"], total=1, done=0)
    begin(tmp_path, "a")
    record = {"step": 4, "seconds": 1.0, "loss": 0.5, "split": "train"}
    long = record | {f"accuracy of class {i}": 0.5 for i in range(count)}
    lines = [*[json.dumps(record)] * others, json.dumps(long)]
    (tmp_path / "a" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    view.refresh()
    assert "  a  4/400  0:01:39 left  loss 0.5" in stream.getvalue()
