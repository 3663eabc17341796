"""Folders that somebody else wrote: their code is not run, their paths stay inside."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from isometry.lab import RunError, resume, train, write_report
from isometry.lab._cli import main
from isometry.lab._report.table import TableRow, markdown
from tests.lab.fake_runs import fake_run
from tests.lab.small_runs import records, small
from tests.lab.test_report import Seen, edit

MARKUP = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>"""


class CodeRanError(BaseException):
    """Code in a file was run; no `except Exception` hides this error."""


class Trap:
    """An object that raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return (_spring, ())


def _spring() -> None:
    raise CodeRanError


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after its last checkpoint."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    train(small(iterations=3), folder)
    edit(folder / "summary.json", status="interrupted")
    return folder


def edited(**changes: object) -> Callable[[Path], None]:
    """Returns a function that changes `config.json`."""
    return lambda folder: edit(folder / "config.json", **changes)


def written(name: str, data: bytes) -> Callable[[Path], object]:
    """Returns a function that replaces a file."""
    return lambda folder: (folder / name).write_bytes(data)


def zipped(folder: Path) -> None:
    """Replace the checkpoint by a file of `torch.save`, which holds a pickle."""
    torch.save({"state": Trap()}, folder / "checkpoint.safetensors")


def cut(folder: Path) -> None:
    path = folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.errors
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (zipped, "checkpoint.safetensors must be what"),
        (
            written("checkpoint.safetensors", pickle.dumps(Trap())),
            "checkpoint.safetensors must be what",
        ),
        (cut, "checkpoint.safetensors must be what"),
        # the run used to begin anew silently, and its metrics were lost
        (written("checkpoint.safetensors", b""), "got an empty file"),
        # a length of 2^63 bytes, for which no memory must be allocated
        (
            written("checkpoint.safetensors", b"\xff" * 7 + b"\x7f{}"),
            "checkpoint.safetensors must be what",
        ),
        (edited(hidden_size=7), "checkpoint.safetensors must be what"),
        (edited(hidden_size="6"), "`hidden_size` must be a whole number; got '6'"),
        (edited(seed=1.5), "`seed` must be a whole number; got 1.5"),
        (edited(task="../copying"), "`task` must be one of copying"),
        (edited(task_options={"lgg": 3}), "options must be among lag, .* got lgg"),
        (edited(task_options={"lag": True}), "`lag` must be a whole number; got True"),
        (edited(task_options=[3]), r"got TypeError.*\[3\]"),
        # with these three, `isometry train --resume --iterations 9` used to end in a
        # bare TypeError
        (edited(continued=5), "config.json must be .*continued 5"),
        (edited(continued=[5]), r"config.json must be .*continued \[5\]"),
        (edited(command=5), "config.json must be .*command 5"),
        (written("config.json", b"[]"), "config.json must be what"),
        (written("config.json", b"[" * 10**5), "config.json must be what"),
        (written("config.json", b"\xff\xfe"), "config.json must be what"),
        (written("summary.json", b"[]"), "summary.json must be what"),
        (written("summary.json", b'{"status": "solved"}'), "summary.json must be what"),
        # `isometry train --resume` used to print a KeyError, since `best_by_test` is
        # missing
        (
            written(
                "summary.json",
                b'{"status": "solved", "steps": 12, "seconds": 1, "metric": "loss", '
                b'"best": {}}',
            ),
            "summary.json must be what",
        ),
    ],
)
def test_a_run_that_was_harmed_does_not_go_on(harm, message, interrupted_run, tmp_path):
    """A damaged run is refused in one line.

    None of its code runs, and nothing is lost.
    """
    folder = shutil.copytree(interrupted_run, tmp_path / "run")
    harm(folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "lock"}
    with pytest.raises((RunError, ValueError), match=message):
        resume(folder)
    assert before == {
        p.name: p.read_bytes() for p in folder.iterdir() if p.name in before
    }


def test_a_run_goes_on_in_another_place(interrupted_run, tmp_path):
    """A copy of a run goes on, with spaces and an accent in its path."""
    folder = shutil.copytree(interrupted_run, tmp_path / "a café of files")
    assert resume(folder).summary["status"] == "finished"
    assert records(folder) == records(interrupted_run)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "../../outside"},
        {"task": MARKUP},
        {"task_options": {"lag": "/../../../outside"}},
    ],
    ids=str,
)
def test_no_name_leads_out_of_the_report(changes, tmp_path):
    """A report writes nothing outside of its folder.

    Figures are named after the task, and used to be written wherever that name led.
    """
    run = fake_run(tmp_path / "runs" / "run", steps=9)
    edit(run / "config.json", **changes)
    write_report([run], tmp_path / "out" / "here")
    assert not list(tmp_path.glob("*outside*"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["here"]
    drawn = list((tmp_path / "out" / "here").glob("*.svg"))
    assert len(drawn) == 3
    # each task is on the page
    assert Seen(tmp_path / "out" / "here" / "report.html").tags.count("svg") == 3


def test_no_text_of_a_run_is_markup(tmp_path):
    """No text of a task, a network or a folder becomes markup on page or table."""
    run = fake_run(tmp_path / "<script>run", model=MARKUP, steps=9)
    other = fake_run(tmp_path / "other", task=MARKUP, model="$\\frac{$", steps=9)
    options = {"lag": 9, MARKUP: MARKUP}
    for path in (run, other):
        texts = {"command": MARKUP, "model_options": {MARKUP: MARKUP}, MARKUP: MARKUP}
        edit(path / "config.json", **texts, task_options=options)
        edit(path / "summary.json", status=MARKUP)
        edit(path / "environment.json", cpu=MARKUP, versions={"torch": MARKUP})
    page = Seen(write_report([run, other], tmp_path / "report"))
    assert {"script", "img"}.isdisjoint(page.tags)
    assert MARKUP in page.text
    # If a text should get through, the browser still runs and fetches nothing.
    assert "default-src 'none'; style-src 'unsafe-inline'" in page.values("content")
    assert "<" not in (tmp_path / "report" / "results.md").read_text()


@pytest.mark.parametrize(
    "about",
    [
        {"headings": {"accuracy": 7, "orthogonality": [8]}},
        *({"headings": 3}, {"title": 3}, {"baseline": "none"}, {"unknown": 1}),
        *(5, "text", [1]),
    ],
    ids=str,
)
def test_a_description_of_a_task_may_have_any_type(about, tmp_path):
    """A description whose entries have wrong types does not prevent a report.

    A heading that is not a string used to end in a traceback.
    """
    run = fake_run(tmp_path / "run", task="own:Task", options={}, steps=100)
    edit(run / "config.json", about=about)
    write_report([run], tmp_path / "report")
    headings = (tmp_path / "report" / "results.md").read_text().splitlines()[2]
    assert ("7" in headings) == ("accuracy" in str(about))


@pytest.mark.parametrize("scores", [{"test": 3}, {"test": ["stoi"]}], ids=str)
def test_scores_that_are_not_a_table_are_left_out(scores, tmp_path):
    """Scores that are not a table are left out; they used to end in a traceback."""
    run = fake_run(tmp_path / "run", task="timit", options={}, steps=100)
    edit(run / "summary.json", scores=scores)
    write_report([run], tmp_path / "report")
    assert "STOI" not in (tmp_path / "report" / "results.md").read_text()


def test_a_line_of_a_table_stays_one():
    text = markdown([TableRow({"a\nb|c": "d\ne"})])
    assert text.splitlines()[::2] == ["| a b\\|c |", "| d e    |"]


@pytest.mark.errors
@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", '{"task": ["copying"], "model": "lstm"}', "must be a string; "),
        ("config.json", '{"task": "a", "model": "\\ud800"}', "surrogates not allowed"),
        ("summary.json", '{"steps": Infinity}', "must be a whole number; got inf"),
        ("summary.json", '{"seconds": NaN}', "must be a number; got nan"),
        ("summary.json", '{"steps": %s}' % ("9" * 400), "must be a whole number"),
        ("summary.json", '{"angles": "none"}', "must be a list; got 'none'"),
        ("summary.json", '{"a":' + "[" * 10**5, "must be JSON; got maximum recursion"),
        ("environment.json", '{"versions": [1]}', "must be a table"),
        ("metrics.jsonl", "[1]\n{}\n", r"must hold a JSON object .* '\[1\]' in line 1"),
    ],
    ids=lambda text: text[:20],
)
def test_a_report_names_what_is_wrong(file, text, message, tmp_path):
    """A report refuses damaged runs before it writes anything."""
    run = fake_run(tmp_path / "run", steps=9)
    (run / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        write_report([run], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_a_foreign_entry_of_another_file_may_have_any_type(tmp_path):
    """Only the summary has `seconds`; elsewhere the report used to refuse a string."""
    run = fake_run(tmp_path / "run", steps=9)
    for name in ("config.json", "environment.json"):
        edit(run / name, seconds="many")
    assert "<dd>many</dd>" in write_report([run], tmp_path / "report").read_text()


def test_numbers_that_are_none_are_left_out(tmp_path):
    """Texts, infinities and integers beyond float64 are left out of a curve."""
    run = fake_run(tmp_path / "run", steps=9, status=None)
    before = write_report([run], tmp_path / "before").read_text()
    with (run / "metrics.jsonl").open("a") as lines:
        for value in ("NaN", "-Infinity", "1e999", "9" * 400, '"9"', "[1]", "true"):
            lines.write(f'{{"step": {value}, "loss": {value}, "split": "train"}}\n')
    assert write_report([run], tmp_path / "after").read_text() == before


@pytest.mark.errors
@pytest.mark.parametrize("name", ["../outside", "/outside", "..", ".hidden", "a/b", ""])
def test_no_name_leads_out_of_a_sweep(name, tmp_path, capsys):
    """A plan cannot name folders outside of its sweep."""
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    plan = {"runs": {name: json.loads(small().to_json())}}
    (sweep / "sweep.json").write_text(json.dumps(plan))
    assert main(["sweep", "--resume", str(sweep)]) == 2
    assert "must be the plan of a sweep; got" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sweep"}
