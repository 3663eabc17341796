"""Exported programs, and tensors without memory, in processes of their own.

The first call in a process loads the kernels, so errors of that call show only in a new
process.
"""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from isometry.groups import Exp
from isometry.linalg import expm_skew, skew
from tests.helpers import random_skew

EXPORT = """
import sys, torch, isometry
from isometry.nn import ExpRNN
from torch import nn

torch.manual_seed(0)
if sys.argv[1] == "linear":
    model, x = isometry.orthogonal(nn.Linear(64, 64)), torch.randn(2, 64)
else:
    model, x = ExpRNN(8, 64), torch.randn(5, 2, 8)
# each dtype has kernels of its own, which are loaded at its first call
for dtype in (torch.float32, torch.float64):
    model, x = model.to(dtype), x.to(dtype)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))
"""


def run(script: str, *arguments: str) -> None:
    """Run a script in a process of its own; a crash has a negative return code."""
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.once
@pytest.mark.parametrize("layer", ["linear", "recurrent"])
def test_export_comes_first(layer):
    """A layer with n >= 32 can be exported in a process where nothing else ran before.

    The check of the BLAS used to make tensors, which are fake during an export:
    RuntimeError "Cannot access data pointer".
    """
    run(EXPORT, layer)


FAKE = """
import torch
from isometry.linalg import expm_skew
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

A = torch.zeros(64, 64)
with FakeTensorMode(allow_non_fake_inputs=True):
    assert isinstance(expm_skew(A), FakeTensor)
assert torch.equal(expm_skew(A), torch.eye(64))
"""


@pytest.mark.once
def test_fake_mode_comes_first():
    """The first call of a process may be in FakeTensorMode.

    It used to crash (SIGSEGV) in the check of the BLAS.
    """
    run(FAKE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [6, 64])
def test_real_matrices_in_fake_mode(n, dtype, rng):
    """In FakeTensorMode real matrices give fake results of the right shape and dtype.

    C used to crash on them.
    """
    A = random_skew(n, norm=1.0, dtype=dtype, rng=rng)
    expected = Exp().around(A, A)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for Y in (expm_skew(A), skew(A), Exp().around(A, A), Exp().around(A, None)):
            assert (Y.shape, Y.dtype) == (A.shape, A.dtype)
    assert torch.equal(Exp().around(A, A), expected)
