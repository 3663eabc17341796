"""Sweeps: which runs are made, in this process and in others, and what is printed."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from isometry.lab import Config, Training, write_report
from isometry.lab._cli import main
from isometry.lab._report.runs import read_run
from isometry.lab._sweep import engine, local
from isometry.lab._sweep.engine import Engine, Workers, run_all
from isometry.lab._sweep.plan import Plan, expand, write_plan
from isometry.lab._sweep.view import View
from isometry.lab._sweep.worker import log_of, work
from tests.lab.fake_runs import fake_run
from tests.lab.small_runs import assert_same_run, train
from tests.lab.small_sweeps import SMALL, process_of, until, words


@pytest.fixture
def no_report(monkeypatch):
    """Skip the report, whose figures take seconds; one test looks at them."""
    monkeypatch.setattr(
        "isometry.lab._report.command.write_report", lambda _, out: out / "page"
    )


@pytest.fixture
def worked(monkeypatch, no_report):
    """Make runs in this process; the list tells which ones."""
    run_names: list[str] = []

    def run(runs: Plan, _: Workers, view: View, **_options: Any) -> None:
        run_names[:] = runs
        for name, config in runs.items():
            view.end(name, work(view.out / name, config))

    monkeypatch.setattr(engine, "run_all", run)
    return run_names


def test_only_what_is_missing_is_run(worked, tmp_path, capsys):
    """Done and diverged runs stay; interrupted and killed ones are resumed."""
    line = ["sweep", "copying", *words(seed=[1, 2, 3, 4, 5]), "--out", str(tmp_path)]
    runs = expand("copying", SMALL | {"seed": [1, 2, 3, 4, 5]})
    write_plan(tmp_path, runs)
    names = list(runs)
    for name in names[:3]:
        train(runs[name], tmp_path / name)
    diverged = tmp_path / names[1] / "summary.json"
    contents = json.loads(diverged.read_text()) | {"status": "diverged", "steps": 3}
    diverged.write_text(json.dumps(contents))
    (tmp_path / names[2] / "summary.json").unlink()
    assert main(line) == 1
    assert worked == names[2:]
    output = capsys.readouterr()
    assert "4 of 5 runs are done" in output.err
    assert f"{names[1]}: the loss diverged at step 4" in output.err
    assert "| 4 finished, 1 diverged |" in " ".join(output.out.split())

    worked.clear()
    assert main(["sweep", "--resume", str(tmp_path)]) == 1
    assert worked == []


def test_another_plan_extends_the_table(worked, tmp_path, capsys):
    """A second plan adds its runs to the table, and each command makes its own runs."""
    out = ["--out", str(tmp_path)]
    assert main(["sweep", "copying", *words(seed=1), *out]) == 0
    assert main(["sweep", "copying", *words(seed=1, model="lstm"), *out]) == 0
    assert worked == ["copying-lstm-6-seed=1"]
    # collapse the spaces that align the columns
    text = " ".join(capsys.readouterr().out.split())
    assert "| ExpRNN | 6 |" in text.split("LSTM")[0].rpartition("## ")[2]
    assert "| LSTM | 6 |" in text


def test_a_plan_that_contradicts_is_refused(worked, tmp_path, capsys):
    """A plan that contradicts the existing one is refused, and nothing runs."""
    out = ["--out", str(tmp_path)]
    assert main(["sweep", "copying", *words(seed=1), *out]) == 0
    before = (tmp_path / "sweep.json").read_bytes()
    worked.clear()
    assert main(["sweep", "copying", *words(seed=[1, 2], lag=5), *out]) == 2
    assert "must keep its options; got lag 5 instead of 3" in capsys.readouterr().err
    assert (worked, (tmp_path / "sweep.json").read_bytes()) == ([], before)


def test_a_bad_run_does_not_stop_the_others(worked, tmp_path, capsys):
    """Others go on after a run with a wrong option or a rate that diverges."""
    options = words(model=["lstm", "exprnn"], lr=[0.001, 1e15], seed=1)
    line = [*options, "--model-options", "rebase_every=2", "--out", str(tmp_path)]
    assert main(["sweep", "copying", *line]) == 1
    output = capsys.readouterr().err
    assert "1 of 4 runs are done" in output
    assert output.count("rebase_every") >= 2
    assert f"copying-exprnn-6-lr={1e15}-seed=1: the loss diverged at step" in output


def test_a_damaged_summary_does_not_stop_the_others(worked, tmp_path, capsys):
    """A run with a damaged summary fails, and the sweep goes on.

    The sweep used to end with exit code 2, without a report.
    """
    runs = expand("copying", SMALL | {"seed": [1, 2]})
    write_plan(tmp_path, runs)
    name = next(iter(runs))
    train(runs[name], tmp_path / name)
    (tmp_path / name / "summary.json").write_text("{}")
    assert main(["sweep", "--resume", str(tmp_path)]) == 1
    assert worked == list(runs)
    output = capsys.readouterr().err
    assert f"{name} failed  (0 of 2 done" in output
    assert "1 of 2 runs are done" in output
    assert "summary.json must be what `isometry train` wrote" in output


def test_a_fault_of_a_run_is_told_with_its_log(tmp_path, monkeypatch, capfd):
    """An exception in a run is reported with its log, and not on the terminal."""

    def broken(*_: Any) -> None:
        os.write(2, b"a word of C code\n")
        raise RuntimeError("no such luck")

    monkeypatch.setattr("isometry.lab._train.run.train", broken)
    (config,) = expand("copying", SMALL).values()
    message = work(tmp_path / "run", config)
    log = log_of(tmp_path / "run")
    assert message == f"RuntimeError: no such luck. See {log}."
    assert "a word of C code" in log.read_text()
    assert capfd.readouterr() == ("", "")


def test_a_run_ends_with_its_process(tmp_path):
    """A run has ended when its process has ended, and its long message arrives whole.

    A thread of the user's task may outlive the run. The next run used to begin while
    such a process was still there. The message must be read while the process writes
    it, since a pipe holds 64 KiB: a sweep used to wait forever for a run whose error
    had 100,000 characters.
    """
    folder, released = tmp_path / "run", tmp_path / "released"
    options, training = {"released": str(released)}, Training(model="lstm")
    ended: list[tuple[str, str]] = []
    with closing(local.Processes()) as workers:
        workers.begin(folder, Config("tests.lab.own:OutlivedTask", options, training))
        log = log_of(folder)
        until(lambda: log.exists() and "xxx" in log.read_text())
        for _ in range(5):
            assert list(workers.ended()) == []
        assert len(workers.running) == 1
        released.touch()
        until(lambda: ended.extend(workers.ended()) or bool(ended))
    assert ended == [("run", "x" * 100_000)]


def test_two_sweeps_cannot_write_one_folder(worked, tmp_path, capsys, monkeypatch):
    line = ["sweep", "copying", *words(seed=1), "--out", str(tmp_path)]
    codes = []
    run = engine.run_all

    def meanwhile(*args: Any, **options: Any) -> None:
        codes.append(main(line))
        run(*args, **options)

    monkeypatch.setattr(engine, "run_all", meanwhile)
    assert main(line) == 0
    assert codes == [2]
    assert "is being written by another process" in capsys.readouterr().err


def test_as_many_runs_as_there_are_cores_for(monkeypatch):
    """Runs at a time: `jobs`, or else cores over threads, or one on a card."""
    monkeypatch.setattr(engine, "cores", lambda: 8)
    one = expand("copying", {"threads": 1, "lag": 3})
    assert Engine().at_a_time(one) == 8
    assert Engine().at_a_time(expand("copying", {"threads": [1, 3], "lag": 3})) == 2
    assert Engine(jobs=5).at_a_time(one) == 5
    assert Engine().at_a_time(expand("copying", {"device": "cuda"})) == 1


class FakeWorkers:
    """Workers that end one run at each look, or never; they note what they are told."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.running: dict[Any, Any] = {}
        self.deaf, self.largest = deaf, 0
        self.words: list[str] = []

    def begin(self, folder: Path, config: object) -> None:
        self.running[folder.name] = config
        self.largest = max(self.largest, len(self.running))

    def stop(self, *, kill: bool = False) -> None:
        self.words.append("kill" if kill else "stop")
        self.deaf = self.deaf and not kill

    def ended(self) -> Iterator[tuple[str, str]]:
        if not self.deaf:
            name, _ = self.running.popitem()
            yield name, ""

    def close(self) -> None:
        self.words.append("close")


def looped(workers: FakeWorkers, out: Path, seconds: float = math.inf) -> int:
    """Train six runs by `workers`, two at a time; return how many have begun."""
    runs = expand("copying", SMALL | {"seed": [1, 2, 3, 4, 5, 6]})
    view = View(out, runs, total=6, done=0)
    run_all(runs, cast("Workers", workers), view, jobs=2, seconds=seconds)
    return 6 - len(view.waiting)


def test_no_more_runs_than_jobs_at_a_time(tmp_path):
    """Every engine has at most `jobs` runs at a time; Ray used to begin all at once."""
    workers = FakeWorkers()
    assert looped(workers, tmp_path) == 6
    assert (workers.largest, workers.words) == (2, ["close"])


def test_a_budget_stops_every_engine(tmp_path, monkeypatch):
    """After the budget no run begins; what does not stop in `GRACE` seconds is killed.

    A budget used to be refused with Ray.
    """
    assert looped(FakeWorkers(), tmp_path, 0.0) == 0
    workers = FakeWorkers(deaf=True)
    monkeypatch.setattr(engine, "GRACE", -1.0)
    assert looped(workers, tmp_path, 0.5) == 2
    assert list(dict.fromkeys(workers.words)) == ["stop", "kill", "close"]


def test_report_takes_what_lies_beside_the_runs(tmp_path, monkeypatch):
    """`isometry report DIR/*` ignores files, reports and figures."""
    taken: list[Path] = []
    monkeypatch.setattr(
        "isometry.lab._report.command.write_report",
        lambda runs, out: taken.extend(runs) or out,
    )
    run = fake_run(tmp_path / "a", steps=1)
    (tmp_path / "sweep.json").write_text("{}")
    # the report of a sweep or of runs, and the folders of `isometry reproduce`
    for place in ("report", "figures/figure1-left"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "report.html").write_text("")
    assert main(["report", *map(str, sorted(tmp_path.iterdir()))]) == 0
    assert taken == [run]


def test_report_takes_the_folder_of_a_sweep(tmp_path, capsys):
    """The folder of a sweep stands for its runs.

    It used to be refused, with "Train one first".
    """
    runs = [fake_run(tmp_path / "sweep" / name, steps=1) for name in "ab"]
    (tmp_path / "sweep" / "sweep.json").touch()
    assert main(["report", str(tmp_path / "sweep")]) == 0
    page = tmp_path / "sweep" / "report" / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_bytes() == write_report(runs, tmp_path / "report").read_bytes()
    # the folder now has a report, too
    again = write_report([tmp_path / "sweep"], tmp_path / "again")
    assert page.read_bytes() == again.read_bytes()


@pytest.mark.errors
def test_report_refuses_a_file(tmp_path, capsys):
    """A file in place of a folder is refused.

    The error used to say that `runs` must name at least one folder.
    """
    (tmp_path / "sweep.json").touch()
    assert main(["report", str(tmp_path / "sweep.json")]) == 2
    output = capsys.readouterr().err
    assert (
        "sweep.json` must be the folder of a run, with a `config.json`; got" in output
    )
    assert (
        "got a file. Give the folders that `isometry train` has printed, or" in output
    )


def test_ctrl_c_stops_all_with_checkpoints(tmp_path, capfd):
    """A sweep stops all runs on Ctrl-C, each with a checkpoint.

    A terminal sends the signal to all processes, but runs stop only when the sweep
    tells them to.
    """
    out = tmp_path / "my sweep"
    options = {"iterations": 100000, "seed": [1, 2, 3], "solved": 0}
    runs = expand("copying", SMALL | options)
    first, second, third = (out / name for name in runs)
    early: list[bool] = []

    def interrupt() -> None:
        for process in [process_of(first), process_of(second)]:
            os.kill(process, signal.SIGINT)
        # a run that obeyed the signal would have stopped within these hundred steps
        metrics = first / "metrics.jsonl"
        size = metrics.stat().st_size + 10000
        until(lambda: metrics.stat().st_size > size or any(ended()))
        early.extend(ended())
        os.kill(os.getpid(), signal.SIGINT)

    def ended() -> list[bool]:
        return [(folder / "summary.json").exists() for folder in (first, second)]

    thread = threading.Thread(target=interrupt)
    thread.start()
    line = ["sweep", "copying", *words(**options), "--jobs", "2"]
    assert main([*line, "--out", str(out)]) == 130
    thread.join()
    output = capfd.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    assert f"Resume with: isometry sweep --resume '{out}'" in output.err
    assert early == [False, False]
    assert [read_run(f).status for f in (first, second)] == ["interrupted"] * 2
    assert not third.exists()


def test_a_killed_run_does_not_stop_the_others(tmp_path, capsys, no_report):
    """A run that is killed, as when memory runs out, stops no other.

    A second sweep resumes it, to the same bits.
    """
    # more steps than a busy machine makes before the signal is sent
    options = {"iterations": 300, "seed": [1, 2]}
    runs = expand("copying", SMALL | options)
    first, second = runs
    folder = tmp_path / first

    def kill() -> None:
        os.kill(process_of(folder), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    line = ["sweep", "copying", *words(**options), "--jobs", "2"]
    assert main([*line, "--out", str(tmp_path)]) == 1
    thread.join()
    output = capsys.readouterr().err
    assert f"{first}: its process was ended by signal SIGKILL, per" in output
    assert read_run(folder).status == "unfinished"
    assert read_run(tmp_path / second).status == "finished"

    assert work(folder, runs[first]) == ""
    train(runs[first], tmp_path / "whole")
    assert_same_run(tmp_path / "whole", folder)


def test_runs_end_with_a_killed_sweep(tmp_path):
    """If a sweep is killed, its runs write a checkpoint and end."""
    command = [sys.executable, "-m", "isometry", "sweep", "copying", "--seeds", "1"]
    command += [*words(iterations=100000, solved=0), "--out", str(tmp_path)]
    folder = tmp_path / "copying-exprnn-6-seed=1"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        process_of(folder)
        process.kill()
    until((folder / "summary.json").exists)
    assert read_run(folder).status == "interrupted"
