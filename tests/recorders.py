"""Plugins that write the outcome of a run of the suite to a JSON file."""

import json
import platform
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


class Recorder:
    """Collects one row per test; `record_property` adds measured numbers to a row.

    Rows of tests that a run did not select stay, so a long soak may be done in parts.
    Rows of other processors stay too, since those sum in another order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # besides the test itself, only failures in its setup or teardown make a row
        if report.when == "call" or report.failed:
            self.rows.append(
                {
                    "test": report.nodeid,
                    "outcome": report.outcome,
                    "seconds": round(report.duration, 2),
                    "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                    **dict(report.user_properties),
                }
            )

    def pytest_sessionfinish(self) -> None:
        # a run that selected nothing must not replace an existing record
        if not self.rows:
            return
        # the import must come after the shape hook has been installed
        from isometry.lab._process import machine

        here = machine() | {"python": platform.python_version()}
        name = here.pop("processor")
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        new = [{"test": row["test"], "processor": name, **row} for row in self.rows]
        rows = {
            (str(row["test"]), str(row["processor"])): row
            for row in (*known.get("tests", ()), *new)
        }
        record = {
            "processors": known.get("processors", {}) | {name: here},
            "tests": [rows[key] for key in sorted(rows)],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(record, indent=2) + "\n")


def git(*words: str) -> str:
    """The output of a git command, or an empty string where there is no git."""
    command = ["git", *words]
    try:
        process = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return process.stdout.strip()


class TorchRecorder:
    """Counts the tests that passed with one version of torch, a row for each processor.

    The reason of a skip says what this torch lacks, as `tests.helpers.needs_torch`
    does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed = self.failed = 0
        self.skips: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += report.failed
        self.passed += report.passed and report.when == "call"
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skips[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        # `exitstatus` is not zero after a failure, an error of collection or Ctrl-C
        if exitstatus or self.failed or not self.passed:
            return
        from isometry.lab._process import processor

        commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
        if git("status", "--porcelain", "--untracked-files=no", ":!records"):
            commit += ", and changes"
        row = {
            "torch": torch.__version__,
            "processor": processor(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "passed": self.passed,
            "failed": self.failed,
            "skipped": dict(sorted(self.skips.items())),
            "date": datetime.now(UTC).date().isoformat(),
            "commit": commit,
        }
        rows = json.loads(self.path.read_text()) if self.path.exists() else []
        same = ("torch", "processor")
        rows = [r for r in rows if any(r[key] != row[key] for key in same)] + [row]
        rows.sort(key=lambda r: [*map(int, r["torch"].split("+")[0].split("."))])
        self.path.write_text(json.dumps(rows, indent=2) + "\n")


class SeedRecorder:
    """Counts the seeds that the test functions of each folder saw, and the failures.

    Folders that a run did not select keep their rows, and so do other processors. A
    continuation adds to the rows of an earlier run.
    """

    def __init__(self, path: Path, seeds: int, *, is_continuation: bool) -> None:
        self.path = path
        self.seeds = seeds
        self.is_continuation = is_continuation
        self.calls: dict[str, Counter[str]] = {}
        self.failed: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function = function_of(report.nodeid)
        folder = function.split("::")[0].removeprefix("tests/").split("/")[0]
        if report.failed:
            self.failed.setdefault(folder, []).append(report.nodeid)
        calls = dict(report.user_properties).get("seeds")
        if report.when == "call" and isinstance(calls, int):
            self.calls.setdefault(folder, Counter())[function] += calls

    def pytest_sessionfinish(self) -> None:
        from isometry.lab._process import processor

        rows = {
            (row["processor"], row["folder"]): row
            for row in (json.loads(self.path.read_text()) if self.path.exists() else ())
        }
        here = processor()
        for folder in self.calls.keys() | self.failed.keys():
            before = rows.get((here, folder), {}) if self.is_continuation else {}
            rows[here, folder] = self.row(here, folder, before)
        text = json.dumps([rows[key] for key in sorted(rows)], indent=2)
        self.path.write_text(text + "\n")

    def row(self, here: str, folder: str, before: dict[str, Any]) -> dict[str, Any]:
        """The row of a folder, with the calls of an earlier run added."""
        calls = self.calls.get(folder, Counter())
        functions = before.get("functions", len(calls))
        total = Counter(before.get("fewer", {})) + calls
        fewer = {f: n for f, n in sorted(total.items()) if n < self.seeds}
        commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
        return {
            "processor": here,
            "folder": folder,
            "seeds": self.seeds,
            "functions": functions,
            "functions with all seeds": functions - len(fewer),
            "calls": before.get("calls", 0) + calls.total(),
            "fewer": fewer,
            "failed": [
                *(t for t in before.get("failed", ()) if function_of(t) not in calls),
                *self.failed.get(folder, ()),
            ],
            "date": datetime.now(UTC).date().isoformat(),
            "commit": ", ".join(filter(None, (before.get("commit"), commit))),
        }


def lacking_seeds(path: Path, seeds: int) -> dict[str, int]:
    """How many of `seeds` each test function lacks by the record of this processor."""
    from isometry.lab._process import processor

    rows = [r for r in json.loads(path.read_text()) if r["processor"] == processor()]
    return {f: seeds - calls for row in rows for f, calls in row["fewer"].items()}


def function_of(nodeid: str) -> str:
    """The test function of a row, without the values of its parameters."""
    return nodeid.split("[", maxsplit=1)[0]
