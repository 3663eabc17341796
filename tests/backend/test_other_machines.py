"""The tests of linear algebra and kernels, as other machines would run them.

No switch makes one processor sum as another does, but three things come close: MKL's
other code paths, other numbers of threads, and a BLAS of the tests that adds up in an
order that depends on sizes and positions.
"""

import os
import re
import subprocess
import sys

import pytest

PATHS = {
    "default": {},
    "compatible": {"MKL_CBWR": "COMPATIBLE"},
    "avx2": {"MKL_CBWR": "AVX2"},
}
THREADS = (1, 2, 4)
FOLDERS = ("tests/linalg", "tests/backend")

# tests on which a BLAS has no influence: errors, compiled graphs, and the build of the
# kernels
SELECTION = (
    *("-m", "not soak and not once and not errors"),
    *("-k", "not compile and not graph and not export"),
    *("--ignore=tests/backend/test_build.py", "--ignore=tests/backend/test_store.py"),
)


def run(*options: str, **environment: str) -> tuple[int, int]:
    """Run the tests in another process; return how many passed and how many failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *FOLDERS, *SELECTION]
    command += ["-p", "no:cacheprovider", *options]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        # Threads that wait busily take the cores from threads that compute: with this
        # setting, a row with four threads takes two minutes instead of eight.
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"} | environment,
    )
    counts = {
        word: int(n) for n, word in re.findall(r"(\d+) (\w+)", last(result.stdout))
    }
    assert counts.get("passed", 0) > 2000, result.stdout[-2000:] + result.stderr
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    if failed:
        sys.stdout.write(result.stdout[-10000:])
    return counts["passed"], failed


def last(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.soak
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("path", PATHS)
def test_code_paths_of_the_blas(path, threads, record_property):
    """The tests pass with MKL's code paths for other processors, and more threads."""
    passed, failed = run(OMP_NUM_THREADS=str(threads), **PATHS[path])
    record_property("passed", passed)
    assert failed == 0


@pytest.mark.soak
@pytest.mark.parametrize("threads", THREADS)
def test_a_blas_that_sums_in_any_order(threads, record_property):
    passed, failed = run("--blas=scrambled", OMP_NUM_THREADS=str(threads))
    record_property("passed", passed)
    assert failed == 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_seeds(seed, record_property):
    """The tests pass with other random numbers: none of them passes by luck."""
    passed, failed = run("--seed", str(seed), OMP_NUM_THREADS="1")
    record_property("passed", passed)
    assert failed == 0
