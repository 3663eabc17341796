"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

The library's own build makes them, with another compiler in CC; nothing else differs.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"

TESTS = [
    *("test_kernels.py", "test_boundary.py", "test_snapshot.py", "test_memory.py"),
    *("../linalg/test_rotation.py", "../nn/test_scan.py"),
]


def runtime() -> str:
    """The libraries that a process must load before all others."""
    if shutil.which("gcc") is None:
        pytest.skip("sanitizers are set up for gcc, which is not installed")
    # Without libstdc++, AddressSanitizer does not find the function that throws C++
    # exceptions, and ends the process when torch throws one.
    paths = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    if not all(Path(path).is_absolute() for path in paths):
        pytest.skip("this gcc comes without the runtime of AddressSanitizer")
    return ":".join(paths)


def run(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with sanitized kernels."""
    environment = {
        **os.environ,
        "CC": f"gcc {FLAGS}",
        "LD_PRELOAD": runtime(),
        # Python and torch keep memory until the process ends
        "ASAN_OPTIONS": "detect_leaks=0",
        "XDG_CACHE_HOME": str(cache),
        "OMP_NUM_THREADS": "2",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for all tests, so that the kernels are built only once."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.soak
@pytest.mark.parametrize("name", TESTS)
def test_no_access_beyond_memory_and_no_undefined_behaviour(name, cache):
    path = Path(__file__).parent / name
    # Inductor would compile its graphs with sanitizers too, for minutes
    options = ["-q", "-p", "no:cacheprovider", "-k", "not graphs"]
    # Output is not captured: a sanitizer writes its report and ends the process.
    process = run(cache, "-m", "pytest", *options, "-s", str(path.resolve()))
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]
    assert " passed" in process.stdout
    # the process did load the sanitized library
    (library,) = cache.rglob("kernels-*.so")
    assert b"__asan_init" in library.read_bytes()


# these calls go to the C functions directly, past the checks of arguments
CONTROL = """
import sys, torch
from isometry._backend.library import c_library
from isometry._backend.library import raw

n = 40
X, out = torch.zeros(n, n), torch.zeros(n, n - 1)
if sys.argv[1] == "misaligned":
    X, out = torch.zeros(n + 1, n), torch.zeros(n, n)
shift = 2 if sys.argv[1] == "misaligned" else 0
raw(c_library(), torch.float32).skew(X.data_ptr() + shift, out.data_ptr(), 1, n)
print("unseen")
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mistake", "message"),
    [("short", "heap-buffer-overflow"), ("misaligned", "misaligned address")],
)
def test_a_mistake_is_seen(mistake, message, cache):
    """A wrong access is reported.

    Otherwise the silence of the other tests means nothing.
    """
    process = run(cache, "-c", CONTROL, mistake)
    assert process.returncode != 0
    assert "unseen" not in process.stdout
    assert message in process.stderr
