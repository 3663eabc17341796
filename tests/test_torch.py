"""The private names of torch: all in one file, and none that must be there."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from isometry import _torch
from isometry._torch import opaque

SOURCES = Path(_torch.__file__).parent

# attributes that torch does not document, on objects of any name
ATTRIBUTES = {"_version", "_cdata", "_current_level", "_dynamo_marked_constant"}


def private_names(path: Path) -> list[str]:
    """What a file takes from inside of torch, with the lines."""
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
    # the test sees what it looks for
    assert len(names.pop("_torch.py")) >= 7
    assert not {file: hits for file, hits in names.items() if hits}


WITHOUT = """
import importlib
import torch
imports = importlib.import_module
def refuse(name, *args):
    if name.startswith("torch._"):
        raise ImportError(name)
    return imports(name, *args)
importlib.import_module = refuse
from isometry import _torch
from isometry.linalg import expm_skew, skew
from isometry.linalg._expm.rotation import rotation
X = torch.randn(64, 64, dtype=torch.float64).div(8).requires_grad_()
Q = rotation(X, None)
(g,) = torch.autograd.grad(Q.sum(), X)
assert torch.allclose(Q.detach(), torch.matrix_exp(skew(X.detach())))
assert not _torch.transforms() and not _torch.dispatch_modes()
assert not _torch.is_fake(X) and not _torch.nested_forward_mode()
assert _torch.storage_owners(X.untyped_storage()) > 1
"""


@pytest.mark.once
def test_a_torch_without_its_private_names():
    """Import and arithmetic need none of them."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def cube(X: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """X^3 to the power n, with what the gradient needs."""
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
def test_an_opaque_operator_is_one(operator, rng):
    """Schema, shapes, derivative and tracing, as torch checks them."""
    X = torch.randn(3, dtype=torch.float64, generator=rng).requires_grad_()
    torch.library.opcheck(operator, (X, 1))
    (g,) = torch.autograd.grad(operator(X, 1)[0].sum(), X)
    assert torch.equal(g, cube_adjoint(X.detach(), torch.ones_like(X)))
