"""How much a reader meets: files on the way to a weight, files and lines in all."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import isometry
from tools.lines import lines_of_code

PACKAGE = Path(isometry.__file__).parent


def files_of(step: Callable[[], None]) -> dict[str, Counter[str]]:
    """Our files that the third call of `step` passes, and how often each function runs.

    The first two calls fill caches and build what is kept. The profiler of Python sees
    the functions that autograd calls as well, since it calls them in this thread.
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
    sys.stdout.write("\n" + "\n".join(lines) + "\n")


def test_a_training_step_of_a_layer_passes_few_files(rng, monkeypatch):
    """Coordinates, cache, constraint, manifold, exponential, backend: six hops."""
    # a base that moves leaves hooks on all optimizers, perhaps from an earlier test
    module = sys.modules["torch.optim.optimizer"]
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(module, hooks, {})
    layer = isometry.orthogonal(nn.Linear(512, 512))
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    x = torch.randn(8, 512, generator=rng)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    files = files_of(step)
    show(files)
    assert len(files) <= 9


def test_a_step_of_a_recurrent_layer_passes_few_files(rng):
    """The files of the weight, and the scan with its layer."""
    layer = isometry.nn.ExpRNN(4, 64)
    x = torch.randn(20, 8, 4, generator=rng)

    def step() -> None:
        layer(x)[0].square().mean().backward()

    files = files_of(step)
    show(files)
    assert len(files) <= 16


def test_the_library_has_few_files():
    """There were 195 at the review, most of them parts of another one's idea."""
    assert len(list(PACKAGE.rglob("*.py"))) <= 165


def test_lines_of_code_leave_out_prose(tmp_path):
    """A docstring, a comment and a blank line are no code; each line of a call is."""
    path = tmp_path / "sample.py"
    path.write_text(
        '"""Two\nlines."""\n\n# why\ndef f():\n    """What."""\n'
        "    return max(  # here\n        1,\n        2,\n    )\n"
    )
    assert lines_of_code(path) == 5
