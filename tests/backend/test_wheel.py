"""Wheels contain the right library for each processor, and need no compiler."""

import os
import subprocess
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path

import pytest

from isometry._backend import build
from isometry._backend.build import VARIANTS, bundled, file_name
from isometry._backend.library import loaded
from isometry._backend.store import BuildError

ROOT = Path(__file__).parents[2]
X86 = VARIANTS["x86_64"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a library for each kind of x86 processor."""
    monkeypatch.setattr(build, "_BUNDLED", tmp_path)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    for variant in X86:
        contents = variant.name.encode()
        (tmp_path / file_name(variant.key(), contents)).write_bytes(contents)
    return tmp_path


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("variant", X86, ids=lambda v: v.name)
def test_the_best_library_that_a_processor_can_run(variant, monkeypatch):
    """The best library whose instructions the processor has is chosen.

    One unknown instruction would end the process.
    """
    monkeypatch.setattr(build, "_instructions", lambda: variant.needs | {"sse2"})
    library = bundled()
    assert library is not None
    assert library.read_bytes() == variant.name.encode()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("instruction", sorted(X86[0].needs))
def test_without_one_instruction(instruction, monkeypatch):
    have = X86[0].needs - {instruction}
    monkeypatch.setattr(build, "_instructions", lambda: have)
    library = bundled()
    assert library is not None
    second = instruction in X86[1].needs
    assert library.read_bytes() == (b"baseline" if second else b"avx2")


@pytest.mark.usefixtures("package")
def test_an_unknown_processor(monkeypatch):
    """Without /proc/cpuinfo the baseline is chosen; on other machines no library is."""
    monkeypatch.setattr(build, "_processor", lambda: [b""])
    library = bundled()
    assert library is not None
    assert library.read_bytes() == b"baseline"
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    assert bundled() is None


@pytest.mark.errors
def test_a_damaged_library_is_not_loaded(package):
    """A damaged library is recognized by the hash in its name, as in the cache."""
    for library in package.iterdir():
        library.write_bytes(library.read_bytes()[:-1])
    with pytest.raises(BuildError, match=r"is damaged. Install isometry again"):
        bundled()


@pytest.mark.usefixtures("package")
def test_a_library_of_other_sources_is_not_taken(monkeypatch):
    monkeypatch.setattr(build, "fingerprint", lambda: "other")
    assert bundled() is None


def test_a_clone_has_no_bundled_library():
    assert bundled() is None
    assert loaded().origin.startswith(("cache", "built just now"))


# The script prints where the kernels come from, which OpenMP runtimes are loaded, and
# how many threads computed two parts of a scan.
SCRIPT = """
import ctypes, logging, sys, threading
logging.basicConfig(stream=sys.stdout, format="LOG %(message)s")
import torch
from isometry import _config
from isometry._backend import build
if sys.argv[1:]:
    (variant,) = [v for v in build.VARIANTS["x86_64"] if v.name == sys.argv[1]]
    build._instructions = lambda: variant.needs
from isometry._backend.library import loaded
from isometry._backend.library import raw
from isometry._backend.native import CRecurrence, native_backend
from isometry._backend.recurrence import TimeSteps
from isometry.linalg import expm_skew, skew

print("origin", loaded().origin)
if loaded().library is not None:
    print("openmp", *_config._openmp())
    for dtype in (torch.float32, torch.float64):
        assert native_backend(dtype) is not None
    threads = set()
    note = ctypes.CFUNCTYPE(None)(lambda: threads.add(threading.get_native_id()))
    torch.set_num_threads(2)
    H, h0 = torch.zeros(2, 4), torch.zeros(2, 4)
    starts, sizes, length = TimeSteps((2,)).arguments
    recurrence = CRecurrence(
        h0=h0.data_ptr(), starts=ctypes.addressof(starts),
        sizes=ctypes.addressof(sizes), length=length, n=4, threads=2,
    )
    raw(loaded().library, torch.float32).scan(
        ctypes.cast(note, ctypes.c_void_p), ctypes.byref(recurrence), H.data_ptr()
    )
    print("threads", len(threads))
for dtype in (torch.float32, torch.float64):
    A = skew(torch.randn(200, 200, dtype=dtype) / 16).requires_grad_()
    Q = expm_skew(A)
    Q.square().sum().backward()
    # measured with the native kernels over 60 seeds: at most 3.7 * 200 * eps
    tolerance = 100 * 200 * torch.finfo(dtype).eps
    assert torch.dist(Q, torch.linalg.matrix_exp(A)) < tolerance
    assert A.grad.abs().max() < tolerance
print("done")
"""


def run(python: Path | str, *words: str, **environment: str) -> dict[str, str]:
    """Run the script; return its lines by their first words."""
    out = subprocess.run(
        [python, "-c", SCRIPT, *words],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        # not in this clone, whose sources would hide the package that was installed
        cwd="/",
    ).stdout
    lines = [line.partition(" ") for line in out.splitlines()]
    assert lines[-1][0] == "done"
    return {first: rest for first, _, rest in lines}


def test_one_runtime_of_openmp():
    """The kernels use torch's OpenMP runtime, and no second one is loaded.

    They used to be linked to a runtime by name, which may not be torch's.
    """
    lines = run(sys.executable, **os.environ)
    assert len(lines["openmp"].split()) == 1
    assert lines["threads"] == "2"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheels and the sdist that `make wheel` writes."""
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*words, str(ROOT)], check=True)
    switch = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}
    subprocess.run([*words, "--wheel", str(ROOT)], check=True, env=os.environ | switch)
    return folder


def install(wheel: Path, folder: Path) -> Path:
    """Make an environment with this wheel, and with the torch of this environment."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True
    )
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    # Write this last, or pip would find isometry through it. A path in a .pth file is
    # searched last, and .pth files inside of it are not read, so the clone is not seen.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def only(dist: Path, pattern: str) -> Path:
    (path,) = dist.glob(pattern)
    return path


@pytest.mark.soak
@pytest.mark.each_torch
@pytest.mark.skipif(sys.platform != "linux", reason="there is no such wheel")
def test_the_wheel_is_fast_without_a_compiler(dist, tmp_path):
    """The wheel has kernels for each kind of processor, and builds nothing."""
    python = install(only(dist, "*-manylinux_*.whl"), tmp_path / "venv")
    empty = {"PATH": str(python.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    best = next(v for v in X86 if v.needs <= build._instructions())
    for variant in (None, *X86[X86.index(best) :]):
        lines = run(python, *([variant.name] if variant else []), **empty)
        name = (variant or best).name
        assert lines["origin"].startswith(f"wheel, {tmp_path}")
        assert f"kernels-{name}-" in lines["origin"]
        assert len(lines["openmp"].split()) == 1
        assert lines["threads"] == "2"
        assert "LOG" not in lines
    assert not (tmp_path / "cache").exists()
    # on request, kernels are built for this very processor
    lines = run(python, **empty | {"ISOMETRY_NATIVE": "build", "PATH": os.defpath})
    assert lines["origin"].startswith("built just now")


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="there is no such wheel")
def test_the_tag_is_what_auditwheel_finds(dist):
    wheel = only(dist, "*-manylinux_*.whl")
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tag = wheel.stem.partition("-none-")[2]
    assert f'following platform tag: "{tag}"' in " ".join(text.split())


@pytest.mark.soak
def test_the_sdist_builds_its_kernels_on_first_use(dist, tmp_path):
    """The sdist builds its kernels on first use.

    Without a compiler it warns once and works.
    """
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, str(only(dist, "*.tar.gz"))], check=True)
    python = install(only(tmp_path, "*-none-any.whl"), tmp_path / "venv")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    lines = run(python, PATH=str(python.parent), **cache)
    assert lines["origin"].startswith("no C compiler was found")
    assert "Install one, such as gcc" in lines["LOG"]
    assert run(python, PATH=os.defpath, **cache)["origin"].startswith("built just now")
    assert run(python, PATH=os.defpath, **cache)["origin"].startswith("cache")


def test_every_variant_names_its_needs():
    """Each variant needs all instructions of the next weaker one, and more."""
    names = [variant.name for variant in X86]
    assert names == ["avx512", "avx2", "baseline"]
    for better, worse in pairwise(X86):
        assert better.needs > worse.needs
    assert not any("native" in option for v in X86 for option in v.options)
