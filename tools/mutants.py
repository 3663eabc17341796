"""Share of mutants that the tests catch: `python -m tools.mutants CLONE [folder ...]`.

A mutant is the library with one small change, such as `<=` for `<`. The files of the
clone are changed in place and restored, so make a clone first: `git clone . CLONE`.

The suite runs once, with coverage, to learn which tests execute each line. Then the
tests that execute the line of a mutant run against it: first the tests in the folder of
the same name, such as tests/linalg, and, if they all pass, the tests in other folders.
The mutant is caught if a test fails or takes too long, or if the tests cannot even be
imported, although they pass without the mutant. If they cannot be run without it
either, the mutant is undecided, and does not count.

If too many tests execute a line, or they take too long, some are left out, beginning
with all but one case of each parametrized test. A line that is executed only once in a
process is known only for the first test that executes it. So look at each mutant that
survives: a test that was left out may catch it, or the change makes no difference.

The first run takes about 13 minutes of processor time, and a mutant 4 to 20 seconds.
Use one processor: `OMP_NUM_THREADS=1 taskset -c 1 python -m tools.mutants CLONE`.
"""

import argparse
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import coverage
import pytest

from tools.mutations import PACKAGE, Mutant, draw

FOLDERS = ["linalg", "groups", "parametrizations", "optim", "nn"]
# slow tests, which compile or start other libraries, and hardly reach more lines
LEFT_OUT = "not compile and not export and not graph and not trainer and not lightning"
# at most this many tests run against a mutant, in each of the two rounds
TESTS = 80
# Limits of processor time, in seconds: for a round of tests against a mutant, for the
# same round without the mutant, and for one test without it.
SECONDS, USUAL, SLOW = 60, 8.0, 2.0
MEMORY = 6 * 2**30
# loaded once: every run of pytest is a fork of this process
PRELOADED = ["torch", "scipy.linalg"]


class Tracer:
    """Plugin of pytest that writes the processor time of each passed test to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        start = processor_time()
        # if the test fails or is skipped, `yield` raises, and no time is recorded
        yield
        self.seconds[item.nodeid] = processor_time() - start

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.seconds))


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Change the file of a mutant inside a `with` block."""
    source, times = mutant.path.read_bytes(), mutant.path.stat()
    try:
        mutant.path.write_bytes(mutant.source())
        yield
    finally:
        mutant.path.write_bytes(source)
        # Python uses the cached bytecode only if the source has its original time
        os.utime(mutant.path, ns=(times.st_atime_ns, times.st_mtime_ns))


class Limits:
    """Plugin of pytest that ends a mutant which loops, waits or fills the memory."""

    def __init__(self) -> None:
        self.is_collected = True

    def pytest_configure(self) -> None:
        # the bytecode of a mutant must not outlive it
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        signal.alarm(5 * SECONDS)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.is_collected = self.is_collected and not report.failed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # with `-x`, pytest reports an error on import in the same way as a failed test
        if not self.is_collected:
            session.exitstatus = pytest.ExitCode.INTERRUPTED


def spread(items: list[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spread over the list."""
    count = min(most, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def processor_time() -> float:
    """Processor time of this process and of its finished children, in seconds."""
    return sum(os.times()[:4])


def run_tests(arguments: list[str], plugin: object, log: Path) -> int:
    """Exit code of pytest in a fork of this process, where its output goes to `log`."""
    child = os.fork()
    if child == 0:
        code = int(pytest.ExitCode.INTERNAL_ERROR)
        try:
            os.setsid()
            for stream in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            options = ["-q", "-p", "no:cacheprovider"]
            code = int(pytest.main([*options, *arguments], [plugin]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    # a test may have left processes behind
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def has_failed(code: int) -> bool:
    """Whether pytest's exit code means that a test failed, or that a limit ended it.

    All other codes but 0 mean that pytest could not run the tests.
    """
    return code == pytest.ExitCode.TESTS_FAILED or code < 0


class Suite:
    """The tests, and the lines that each of them executes without a mutant.

    The first run for a commit executes all tests under coverage, which takes minutes.
    The result is stored in the clone, in the folder `.mutants/COMMIT`, and later runs
    for this commit read it from there. Tests that fail are left out.
    """

    def __init__(self) -> None:
        head = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True)
        folder = Path(".mutants", head.strip()).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "last.log"
        os.environ["COVERAGE_FILE"] = str(folder / "coverage")
        passed = folder / "passed.json"
        if not passed.exists():
            options = ["-k", LEFT_OUT, "--cov", "--cov-context=test", "--cov-report="]
            tests = [f"tests/{name}" for name in FOLDERS]
            trace = folder / "trace.log"
            code = run_tests([*options, *tests], Tracer(passed), trace)
            if code != 0 and not has_failed(code):
                passed.unlink(missing_ok=True)
                sys.exit(f"pytest ended with code {code}; see {trace}")
        self.seconds: dict[str, float] = json.loads(passed.read_text())
        self.data = coverage.CoverageData(os.environ["COVERAGE_FILE"])
        self.data.read()

    def rounds(self, mutant: Mutant) -> list[list[str]]:
        """The tests for a mutant: those in the folder of its name, then the others."""
        contexts = self.data.contexts_by_lineno(str(mutant.path.resolve()))
        names = {c.split("|")[0] for n in mutant.lines for c in contexts.get(n, [])}
        # a file of constants is executed by the import alone, and any test may use it
        if names == {""}:
            names = set(self.seconds)
        tests = [t for t, s in self.seconds.items() if t in names and s < SLOW]
        folder = f"tests/{mutant.path.relative_to(PACKAGE).parts[0].lstrip('_')}/"
        near = [test for test in tests if test.startswith(folder)]
        far = [test for test in tests if not test.startswith(folder)]
        return [self._short(tests) for tests in (near, far) if tests]

    def _short(self, tests: list[str]) -> list[str]:
        """At most `TESTS` tests that take at most `USUAL` seconds together.

        One case of each test function is chosen first, and then further cases.
        """
        functions = {test.split("[")[0]: test for test in tests}
        first, rest = list(functions.values()), sorted({*tests} - {*functions.values()})
        count = TESTS
        while True:
            tests = spread(first, count)
            tests += spread(rest, count - len(tests))
            if sum(self.seconds[test] for test in tests) <= USUAL:
                return tests
            count -= 1

    def fate(self, mutant: Mutant) -> str:
        """What becomes of a mutant.

        Returns:
            "caught", "survived" or "not executed"; "undecided" if pytest can run the
            tests neither with the mutant nor without it.
        """
        rounds = self.rounds(mutant)
        for tests in rounds:
            arguments = ["-x", "--tb=line", *tests]
            with applied(mutant):
                code = run_tests(arguments, Limits(), self.log)
            if has_failed(code):
                return "caught"
            if code != 0:
                # the mutant has broken an import, or something is wrong with the tests
                code = run_tests(arguments, Limits(), self.log)
                return "caught" if code == 0 else "undecided"
        return "survived" if rounds else "not executed"


def summary(folder: str, fates: Counter[str]) -> str:
    """How many of a folder's mutants were caught, out of all that were decided."""
    decided = fates.total() - fates["undecided"]
    line = f"{folder}: {fates['caught']} of {decided} caught"
    return line + (f", {n} undecided" if (n := fates["undecided"]) else "")


def main() -> None:
    """Draw mutants, print what becomes of each, and count them by folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clone", type=Path, help="clone of the repository")
    parser.add_argument("folders", nargs="*", default=FOLDERS, help="of the library")
    parser.add_argument("--count", type=int, default=20, help="mutants of a folder")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the random numbers that choose the mutants",
    )
    options = parser.parse_args()
    os.chdir(options.clone)
    # Import the library of the clone, not the installed one. Tests that start another
    # Python find it by the environment variable.
    sys.path.insert(0, str(Path("src").resolve()))
    os.environ["PYTHONPATH"] = sys.path[0]
    for name in PRELOADED:
        importlib.import_module(name)
    suite = Suite()
    summaries = []
    for folder in options.folders:
        fates = Counter[str]()
        for mutant in draw(folder, options.count, options.seed):
            fate = suite.fate(mutant)
            fates[fate] += 1
            print(f"{fate:12}  {mutant}", flush=True)
        summaries.append(summary(folder, fates))
    print(*summaries, sep="\n")
    print(f"processor time: {processor_time():.0f} s")


if __name__ == "__main__":
    main()
