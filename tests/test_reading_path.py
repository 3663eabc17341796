"""How much a reader meets: files on the way to a weight, files and lines in all."""

import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import isometry
from isometry._backend import kernels_origin
from tests.helpers import ROOT
from tools.lines import lines_of_code

PACKAGE = Path(isometry.__file__).parent


def files_of(step: Callable[[], None]) -> dict[str, Counter[str]]:
    """Our files that the third call of `step` passes, with counts of their functions.

    The first two calls fill caches. Python's profiler also sees functions that autograd
    calls, since it calls them in this thread.
    """
    files: dict[str, Counter[str]] = {}

    def record(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            functions = files.setdefault(
                path.relative_to(PACKAGE).as_posix(), Counter()
            )
            functions[frame.f_code.co_qualname] += 1

    for _ in range(2):
        step()
    sys.setprofile(record)
    try:
        step()
    finally:
        sys.setprofile(None)
    return files


def show(files: dict[str, Counter[str]]) -> None:
    """Print each file with its functions; pytest shows it with `-s`, or on failure."""
    lines = [f"{len(files)} files, {sum(map(len, files.values()))} functions"]
    for name, functions in files.items():
        calls = (f"{f} x{k}" if k > 1 else f for f, k in functions.items())
        lines.append(f"  {name}: {', '.join(calls)}")
    sys.stdout.write("\n".join(lines) + "\n")


def step_of_a_layer() -> Callable[[], None]:
    """Forward pass, backward pass and a step of Adam."""
    layer = isometry.orthogonal(nn.Linear(512, 512))
    # With this rate, the largest angle is 0.5 before the second call and 1.0 before the
    # third, so both have the same plan. A new plan would pass two more files, to make
    # its table. That happened with the rate 1e-3, at angles of 0.33 and 0.64, where the
    # second call has the plan for angles up to 0.36.
    optimizer = torch.optim.Adam(layer.parameters(), lr=1.5e-3)
    x = torch.randn(8, 512)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    return step


def step_of_a_recurrent_layer() -> Callable[[], None]:
    """Forward and backward pass of a recurrent layer."""
    layer = isometry.nn.ExpRNN(4, 64)
    x = torch.randn(20, 8, 4)
    return lambda: layer(x)[0].square().mean().backward()


STEPS = {"layer": step_of_a_layer, "recurrent layer": step_of_a_recurrent_layer}

# The path has six ideas: coordinates, cache, constraint, manifold, exponential and
# backend. Some of them need more than one file. A recurrent layer adds the scan and
# itself.
MOST = {"layer": 9, "recurrent layer": 16}


@functools.cache
def files_in_a_new_process(name: str) -> list[str]:
    """The files that a step passes in a new process.

    In this process, earlier tests leave hooks on all optimizers.
    """
    process = subprocess.run(
        [sys.executable, "-m", "tests.test_reading_path", name],
        check=True,
        capture_output=True,
        text=True,
        cwd=PACKAGE.parents[1],
    )
    sys.stdout.write(process.stdout)
    return [line.split(":")[0].strip() for line in process.stdout.splitlines()[1:]]


@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_passes_few_files(name):
    """A training step passes few files."""
    assert 3 < len(files_in_a_new_process(name)) <= MOST[name]


def files_on_the_map(text: str) -> list[str]:
    """The files of the hops in the diagram of CONTRIBUTING.md, before `backward`."""
    diagram = text.partition("```text\n layer.weight\n")[2].partition("\n\n")[0]
    return re.findall(r"([\w/]+\.py):", diagram)


def test_the_map_names_the_files_that_a_step_passes():
    """The map in CONTRIBUTING.md is the way that a training step takes."""
    if kernels_origin().startswith("none"):
        pytest.skip("the map shows the way with kernels")
    hops = files_on_the_map((ROOT / "CONTRIBUTING.md").read_text())
    assert sorted(hops) == sorted(files_in_a_new_process("layer"))


def test_the_library_has_few_files():
    """The library has few files.

    There used to be 195, most of which were parts of another file's idea.
    """
    assert len(list(PACKAGE.rglob("*.py"))) <= 165


def test_lines_of_code_leave_out_prose(tmp_path):
    """Docstrings, comments and blank lines do not count; each line of a call does."""
    path = tmp_path / "sample.py"
    path.write_text(
        '"""Two\nlines."""\n\n# why\ndef f():\n    """What."""\n'
        "    return max(  # here\n        1,\n        2,\n    )\n"
    )
    assert lines_of_code(path) == 5


if __name__ == "__main__":
    show(files_of(STEPS[sys.argv[1]]()))
