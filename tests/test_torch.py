"""Private names of torch: all are in one file, and none of them must exist."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import isometry
from isometry import _torch
from isometry._operators import opaque, traced_as
from tests.helpers import version_numbers
from tests.recorders import TorchRecorder

SOURCES = Path(_torch.__file__).parent
ROOT = SOURCES.parents[1]
# the range of torch versions that the manual promises
VERSIONS = ("2.7.1", "2.10.0", "2.13.0", "2.15.0")

# attributes that torch does not document, on objects of any name
ATTRIBUTES = {
    *("_version", "_cdata", "_current_level", "_dynamo_marked_constant"),
    *("_flat_weights", "_flat_weights_names", "_flat_weight_refs"),
    *("_init_flat_weights", "_update_flat_weights"),
}


def private_names(path: Path) -> list[str]:
    """Private names of torch that a file uses, with their lines."""
    hits = []
    for node in ast.walk(ast.parse(path.read_text())):
        name = ""
        if isinstance(node, ast.ImportFrom):
            name = node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value if " " not in node.value else ""
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if node.attr in ATTRIBUTES:
                name = f"torch.{node.attr}"
        if name.startswith("torch.") and "._" in name and ".__" not in name:
            hits.append(f"{path.name}:{getattr(node, 'lineno', 0)} {name}")
    return hits


@pytest.mark.once
def test_only_one_file_touches_what_is_private():
    files = sorted(SOURCES.rglob("*.py"))
    names = {
        path.relative_to(SOURCES).as_posix(): private_names(path) for path in files
    }
    # the test does find names
    assert len(names.pop("_torch.py")) >= 7
    assert not {file: hits for file, hits in names.items() if hits}


# private names of modules and optimizers that files other than `_torch.py` may use
OF_MODULES = {
    "_apply",
    "_buffers",
    "_load_from_state_dict",
    "_modules",
    "_parameters",
    "_reset_parameters",
    "_save_to_state_dict",
}


@pytest.mark.once
def test_few_private_names_of_modules_are_used():
    """Outside `_torch.py`, only the names in `OF_MODULES` are used, even in strings."""
    parameter = nn.Parameter(torch.ones(1))
    objects = [
        nn.RNN(1, 1),
        nn.MultiheadAttention(2, 1),
        torch.optim.Adam([parameter]),
    ]
    private = {n for o in objects for n in dir(o) if n[0] == "_" and n[1] != "_"}
    used = set()
    for path in SOURCES.rglob("*.py"):
        if path.name == "_torch.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                used.add(node.name)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.Constant):
                used.add(node.value)
    assert used & private == OF_MODULES
    # the docstring of `_torch.py` lists them, too
    assert not [
        name for name in OF_MODULES if f"`{name}`" not in (_torch.__doc__ or "")
    ]


@pytest.mark.once
def test_a_torch_without_its_private_names():
    """Numbers are right, without warnings, if any or all of the names are missing."""
    command = [sys.executable, "-m", "tests.hidden_names"]
    process = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 0, process.stderr
    warnings, names = zip(
        *(line.split()[:2] for line in process.stdout.splitlines()), strict=True
    )
    assert set(warnings) == {"0"}, process.stdout
    # the table in `_torch` lists them all
    table = _torch.__doc__ or ""
    assert len(names) > 12
    assert not [n for n in names if n.rpartition(".")[2] not in table]


def test_a_hook_on_saved_tensors_is_seen_without_private_names(monkeypatch):
    """Hooks on saved tensors are noticed without private names.

    torch 2.7 does not show the hook, but tells whether a saved tensor has one.
    """
    monkeypatch.setattr(_torch, "_hooks_on_saved_tensors", None)
    assert _torch.packing_hook() is None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert _torch.packing_hook() is _torch.HIDDEN_HOOK
        with torch.no_grad():
            assert _torch.packing_hook() is _torch.HIDDEN_HOOK
    assert _torch.packing_hook() is None


def test_regions_with_a_hidden_hook_compute_their_own_weight(monkeypatch):
    """Regions with a hidden hook compute their own weight.

    Elsewhere a weight is shared within its graph, as with newer versions.
    """
    monkeypatch.setattr(_torch, "_hooks_on_saved_tensors", None)
    layer = isometry.orthogonal(nn.Linear(4, 4))
    weight = layer.weight
    assert layer.weight is weight
    x = torch.ones(2, 4, requires_grad=True)
    parameters = list(layer.parameters())
    expected = torch.autograd.grad(layer(layer(x)).sum(), parameters)
    y = checkpoint(lambda x: layer(layer(x)), x, use_reentrant=False)
    assert_close(torch.autograd.grad(y.sum(), parameters), expected)


class Report:
    """The outcome of one test, as pytest reports it."""

    def __init__(self, name: str, outcome: str, reason: str = "") -> None:
        self.nodeid, self.when = name, "call"
        self.passed, self.failed, self.skipped = (
            outcome == each for each in ("passed", "failed", "skipped")
        )
        self.longrepr = ("file", 1, f"Skipped: {reason}") if reason else None


def record(path: Path, *reports: Any, exitstatus: int = 0) -> None:
    recorder = TorchRecorder(path)
    for report in reports:
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish(exitstatus)


@pytest.mark.once
def test_a_run_is_one_row_of_the_record(tmp_path):
    """A second run replaces the row of the first.

    A run with a failure or an interruption leaves the row as it was.
    """
    path = tmp_path / "torch.json"
    path.write_text('[{"torch": "99.0.0", "processor": "another"}]')
    good, lack = Report("a", "passed"), Report("b", "skipped", "torch 2 lacks b")
    record(path, good, good)
    record(path, good, lack)
    record(path, good, Report("c", "failed"))
    record(path, good, good, good, exitstatus=2)
    row, newer = json.loads(path.read_text())
    assert (row["torch"], row["passed"]) == (torch.__version__, 1)
    assert row["skipped"] == {"b": "torch 2 lacks b"}
    assert newer["torch"] == "99.0.0"


def recorded_rows() -> dict[str, list[dict[str, Any]]]:
    """The complete runs of `make test TORCH=`, by version: one for each processor."""
    versions: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads((ROOT / "records" / "torch.json").read_text()):
        versions.setdefault(row["torch"].partition("+")[0], []).append(row)
    return versions


@pytest.mark.once
@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_has_passed_the_suite(version):
    """Each version has passed the suite, and a skip names what it lacks.

    Nothing is skipped in linalg, groups or optim.
    """
    for row in recorded_rows()[version]:
        # 9000 cases are the suite without the laboratory
        assert row["passed"] > 9000
        assert row["failed"] == 0
        assert re.fullmatch(r"[0-9a-f]{12}", row["commit"])
        assert row["processor"]
        assert row["date"]
        for name, reason in row["skipped"].items():
            assert re.match(r"torch [\d.]+ lacks .*, which torch [\d.]+ has", reason)
            assert not re.match(r"tests/(linalg|groups|optim)/", name)


@pytest.mark.once
def test_the_lower_bound_is_the_oldest_torch_that_passed():
    """The lower bound is the oldest torch that passed; the manual names all versions.

    There is no upper bound.
    """
    versions = recorded_rows()
    oldest = min(versions, key=version_numbers)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"torch>={oldest.rpartition('.')[0]}" in project["dependencies"]
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    assert not [version for version in versions if version not in page]


def cube(X: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """X^3 to the power n, and what its gradient needs."""
    return X ** (3 * n), X.clone()


def cube_adjoint(X: Tensor, G: Tensor) -> Tensor:
    return 3 * X**2 * G


@pytest.fixture(scope="module")
def operator():
    return opaque(
        "cube_of_test",
        cube,
        fake=lambda X, _: (torch.empty_like(X), torch.empty_like(X)),
        adjoint=cube_adjoint,
        saves=lambda _, outputs: outputs[1:],
    )


@pytest.mark.once
# torch 2.15 reads `.grad` of its own intermediate results
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_an_opaque_operator_is_one(operator, rng):
    """The operator passes torch's checks of schema, shapes, derivative and tracing."""
    X = torch.randn(3, dtype=torch.float64, generator=rng).requires_grad_()
    torch.library.opcheck(operator, (X, 1))
    (g,) = torch.autograd.grad(operator(X, 1)[0].sum(), X)
    assert torch.equal(g, cube_adjoint(X.detach(), torch.ones_like(X)))


@pytest.mark.once
def test_a_stand_in_is_called_where_only_an_operator_works(operator, rng):
    """In a graph and for tensors without numbers, the stand-in of a function is called.

    Otherwise the function itself is called. In a compiled program it is not traced.
    """

    @traced_as(lambda X, n: operator(X, n)[0])
    def power(X: Tensor, n: int) -> Tensor:
        assert not torch.compiler.is_compiling()
        return X ** (3 * n) if bool(X.isfinite().all()) else X

    X = torch.randn(3, dtype=torch.float64, generator=rng)
    assert torch.equal(power(X, 1), X**3)
    assert power(X.to("meta"), 1).is_meta
    compiled = torch.compile(power, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, 1), X**3)

    def push(X: Tensor) -> Tensor:
        return torch.func.jvp(lambda X: power(X, 1), (X,), (torch.ones_like(X),))[1]

    assert_close(torch.compile(push, backend="eager")(X), 3 * X**2)
