"""Two backends with the same methods, and one function that chooses between them."""

import ast
import ctypes
import inspect
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import isometry
from isometry._backend import (
    Backend,
    NativeBackend,
    backend_for,
    only_torch,
)
from isometry._dtypes import PRECISIONS
from isometry.linalg import expm_skew
from isometry.linalg._expm.schemes import SCHEMES
from tests.helpers import random_skew

ROOT = Path(__file__).parents[2]
SOURCES = Path(isometry.__file__).parent


@pytest.mark.once
def test_the_backends_have_the_same_methods():
    """`NativeBackend` has the methods of `Backend`, with its arguments, and no others.

    It computes in C if that is faster, and otherwise calls the inherited method.
    """
    names = {name for name in vars(Backend) if not name.startswith("_")}
    assert len(names) >= 9
    assert NativeBackend.__bases__ == (Backend,)
    assert {name for name in vars(NativeBackend) if not name.startswith("_")} == names
    for name in names:
        signature = inspect.signature(getattr(Backend, name))
        assert inspect.signature(getattr(NativeBackend, name)) == signature


def is_size(node: ast.expr) -> bool:
    """Whether an expression is a number of rows: `n`, `A.shape[-1]` or `len(A)`."""
    text = ast.unparse(node)
    return text == "n" or ".shape[" in text or text.startswith("len(")


def size_thresholds(path: Path) -> list[str]:
    """Comparisons of a size with a constant in a file.

    A constant is an upper-case name, or a number other than 0, 1, 2 and 3.
    """
    hits = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        constants = [
            side
            for side in sides
            if (isinstance(side, ast.Name) and len(side.id) > 1 and side.id.isupper())
            or (isinstance(side, ast.Constant) and side.value not in (0, 1, 2, 3))
        ]
        if constants and any(map(is_size, sides)):
            hits.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    return hits


@pytest.mark.once
def test_no_size_decides_outside_of_the_backend():
    """Only `_backend` knows from how many rows on a call of C is worth its cost.

    `skew` and `Exp.around` used to compare sizes with a constant of their own.
    """
    inside = [*(SOURCES / "_backend").glob("*.py")]
    assert sum(map(len, map(size_thresholds, inside))) >= 3
    for folder in ("linalg", "groups/_maps"):
        for path in sorted((SOURCES / folder).rglob("*.py")):
            assert not size_thresholds(path)
            assert "_backend.constants" not in path.read_text()


def imported(path: Path) -> set[str]:
    """Dotted names of everything that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.once
def test_one_place_asks_who_computes():
    """Outside of `_backend` no file makes a backend or imports a module of C."""
    hidden = (
        "library",
        "native",
        "build",
        "store",
        "NativeBackend",
        "native_backend",
    )
    ends = tuple(f".{name}" for name in hidden)
    for path in sorted(SOURCES.rglob("*.py")):
        if path.is_relative_to(SOURCES / "_backend"):
            continue
        assert "Backend(" not in path.read_text(), path
        for name in imported(path):
            inside = name.removeprefix("isometry._backend")
            assert inside == name or not inside.endswith(ends), (path, name)
            assert not inside.startswith((".library.", ".native.")), (path, name)


@pytest.mark.once
def test_c_is_switched_off_by_the_context_alone():
    """Benchmarks and tests use `only_torch` to switch C off, and patch no names."""
    paths = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    for path in paths:
        text = path.read_text()
        for name in ("kernels", "fits", "in_one_call", "backend_for"):
            assert f'"{name}", lambda' not in text, path
            assert f'.{name}", return_value' not in text, path


def test_the_switch(rng):
    """`only_torch` makes torch compute. It can be nested, and an exception ends it."""
    A = random_skew(64, norm=1.0, dtype=torch.float32, rng=rng)
    before = type(backend_for(A))
    expected = expm_skew(A)
    with only_torch():
        with pytest.raises(ZeroDivisionError), only_torch():
            _ = 1 / 0
        assert type(backend_for(A)) is Backend
        torch.testing.assert_close(expm_skew(A), expected)
    assert type(backend_for(A)) is before
    assert torch.equal(expm_skew(A), expected)


def test_a_mode_that_counts_sees_every_product(rng):
    """A counter of FLOPs cannot see C, so torch computes while one is active."""
    A = random_skew(64, norm=1.0, dtype=torch.float32, rng=rng)
    with FlopCounterMode(display=False) as counter:
        assert type(backend_for(A)) is Backend
        expm_skew(A)
    # at least three products of 2 n^3 operations
    assert counter.get_total_flops() >= 3 * 2 * 64**3


@pytest.mark.once
def test_one_table_of_dtypes():
    """The dtypes with a scheme are those with a C type, and the sizes agree."""
    assert set(SCHEMES) == set(PRECISIONS)
    assert {torch.finfo(dtype).bits // 8 for dtype in PRECISIONS} == {
        ctypes.sizeof(row.c_type) for row in PRECISIONS.values()
    }
