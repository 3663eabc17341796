"""Fixtures, and the modes of the suite.

`--shapes` executes the annotations. `--record FILE` writes the outcome of a long run,
and `--record-torch FILE` the number of tests that passed with this version of torch.
`--seed N` draws other random inputs, `--seeds N` draws them N times for each test
function, `--record-seeds FILE` counts how often, and `--continue-seeds` goes on where
such a run stopped. `--blas=scrambled` makes the BLAS sum in another order.
"""

import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import SEED_VARIABLE, SEEDS_IN_USE, new_generator, shifted_seed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shapes",
        action="store_true",
        help="execute the shape annotations of isometry (jaxtyping and beartype)",
    )
    parser.addoption(
        "--record",
        type=Path,
        metavar="FILE",
        help="write outcome, time and recorded properties of each test to a JSON file",
    )
    parser.addoption(
        "--record-torch",
        type=Path,
        metavar="FILE",
        help="write how many tests passed with this torch to a JSON file; a run with "
        "a failure is not written",
    )
    parser.addoption(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="shift the seed of every generator; a test that then fails had been lucky",
    )
    parser.addoption(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="call each test function that draws random numbers with N seeds, which "
        "its rows share: a tolerance shall hold for 200",
    )
    parser.addoption(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="stop repeating a test function after S seconds of processor time, which "
        "its rows share, too",
    )
    parser.addoption(
        "--record-seeds",
        type=Path,
        metavar="FILE",
        help="write to a JSON file how often the tests of each folder were repeated",
    )
    parser.addoption(
        "--continue-seeds",
        action="store_true",
        help="call only the test functions that `--record-seeds FILE` names as stopped "
        "early, as often as they still lack, and add the calls to FILE; use `--seed` "
        "to begin after the seeds that they have seen",
    )
    parser.addoption(
        "--blas",
        choices=["torch", "scrambled"],
        default="torch",
        help="the products of the kernels: torch's, or tests/backend/scrambled.c, "
        "whose order of summation depends on sizes and places",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "once: neither the kernels in C nor executed shapes can change the outcome; "
        "the second pass of `make test` leaves it out",
    )
    os.environ[SEED_VARIABLE] = str(config.getoption("--seed"))
    if config.getoption("--shapes"):
        from jaxtyping import install_import_hook

        install_import_hook("isometry", "beartype.beartype")
    if config.getoption("--blas") == "scrambled":
        from tests.backend.scrambled import install

        install()
    path = config.getoption("--record")
    # with xdist every report reaches the controller, and the workers keep none
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path))
    path = config.getoption("--record-torch")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TorchRecorder(path))
    seeds: Any = config.getoption("--seeds")
    continues: Any = config.getoption("--continue-seeds")
    path = config.getoption("--record-seeds")
    if continues:
        config.stash[LACKING] = lacking_seeds(path, seeds)
    if path is not None and not hasattr(config, "workerinput"):
        recorder = SeedRecorder(path, seeds, is_continuation=continues)
        config.pluginmanager.register(recorder)


# with `--continue-seeds`, how many seeds each test function lacks
LACKING = pytest.StashKey[dict[str, int]]()


def lacking_seeds(path: Path, seeds: int) -> dict[str, int]:
    """How many of `seeds` each test function lacks by the record of this processor."""
    from isometry.lab._process import processor

    rows = [r for r in json.loads(path.read_text()) if r["processor"] == processor()]
    return {f: seeds - calls for row in rows for f, calls in row["fewer"].items()}


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out test functions that lack no seeds, if `--continue-seeds` is given."""
    if LACKING in config.stash:
        items[:] = [i for i in items if function_of(i.nodeid) in config.stash[LACKING]]


def function_of(nodeid: str) -> str:
    """The test function of a row, without the values of its parameters."""
    return nodeid.split("[", maxsplit=1)[0]


# for each item, how many rows its test function has, and which of them it is
ROWS = pytest.StashKey[tuple[int, int]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the selected rows of each test function."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        functions.setdefault(function_of(item.nodeid), []).append(item)
    for items in functions.values():
        for row, item in enumerate(items):
            item.stash[ROWS] = row, len(items)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Call a test that draws random numbers again, with other seeds.

    The rows of a test function share its tolerance, so they also share the seeds: each
    row gets a part of them, and together they get them all.
    """
    seeds: Any = pyfuncitem.config.getoption("--seeds")
    if LACKING in pyfuncitem.config.stash:
        seeds = pyfuncitem.config.stash[LACKING][function_of(pyfuncitem.nodeid)]
    seconds: Any = pyfuncitem.config.getoption("--seconds")
    names = pyfuncitem._fixtureinfo.argnames
    before = draws_so_far()
    result = yield
    # A test that draws nothing would repeat itself, and hypothesis repeats its tests
    # itself.
    same = draws_so_far() == before and "rng" not in names
    once = pyfuncitem.config.getoption("--seeds") == 1
    if once or same or hasattr(pyfuncitem.obj, "hypothesis"):
        return result
    # a second call would find the files of the first one in the folder
    if "tmp_path" in names:
        return result
    row, rows = pyfuncitem.stash[ROWS]
    share = -(-seeds // rows)
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    first, start, calls = os.environ[SEED_VARIABLE], processor_time(), 1
    try:
        while calls < share and processor_time() - start < seconds / rows:
            os.environ[SEED_VARIABLE] = str(int(first) + row * share + calls)
            torch.manual_seed(shifted_seed(5544))
            if "rng" in arguments:
                arguments["rng"] = new_generator(5544)
            try:
                pyfuncitem.obj(**arguments)
            except Exception as error:
                error.add_note(f"drawn with --seed {os.environ[SEED_VARIABLE]}")
                raise
            calls += 1
    finally:
        os.environ[SEED_VARIABLE] = first
    pyfuncitem.user_properties.append(("seeds", calls))
    return result


def draws_so_far() -> tuple[int, bytes]:
    """A value that changes when a test makes a generator or uses the global one."""
    return len(SEEDS_IN_USE), torch.get_rng_state().numpy().tobytes()


def processor_time() -> float:
    """Processor time of this process and of its finished children, in seconds."""
    return sum(os.times()[:4])


class Recorder:
    """Collects one row per test; `record_property` adds measured numbers to a row.

    Rows of tests that a run did not select stay, so a long soak may be done in parts.
    Rows of other processors stay too, since those sum in another order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # a test that fails in its setup or teardown has only that report
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
        # not zero after a failure, an error of collection or an interruption
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
            "failed": before.get("failed", []) + self.failed.get(folder, []),
            "date": datetime.now(UTC).date().isoformat(),
            "commit": ", ".join(filter(None, (before.get("commit"), commit))),
        }


@pytest.fixture
def rng() -> torch.Generator:
    return new_generator(5544)


@pytest.fixture(autouse=True)
def seeded_layers() -> None:
    """Seed the global generator, from which layers initialize themselves."""
    torch.manual_seed(shifted_seed(5544))


@pytest.fixture(autouse=True)
def poisoned_empty() -> Iterator[None]:
    """Let `torch.empty` return NaN: reading uninitialized memory then fails a test."""
    # deterministic mode fills new memory, if `torch.utils.deterministic` says so (its
    # default)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def no_shape_hook(pytestconfig: pytest.Config) -> None:
    """Skip a test that compiles if `--shapes` is on.

    The suite without it runs the test.
    """
    if pytestconfig.getoption("--shapes"):
        pytest.skip("Dynamo cannot trace the hook of the shapes")
