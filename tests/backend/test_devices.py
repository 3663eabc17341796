"""Devices without C kernels: when the host waits, and what can be captured."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.linalg import matrix_norm
from torch.testing import assert_close

import isometry
from isometry._backend import backend_for
from isometry.groups import Exp
from isometry.linalg import expm_skew, skew
from isometry.linalg._expm import products
from isometry.linalg._expm.angles import within_reach
from tests.helpers import DTYPES, needs_torch, random_skew, random_unitary

ROOT = Path(__file__).parents[2]


@pytest.mark.once
@needs_torch("2.10", "devices that are written in Python")
def test_the_host_waits_once_or_never():
    """The host waits once for an exponential or a step of a layer.

    With a bound on the angles it never waits. It used to wait up to three times: for
    the norm, for the sums, and for sharper sums. The device is registered in another
    process, since it cannot be removed again.
    """
    command = [sys.executable, "-m", "tests.backend.remote"]
    process = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 0, process.stderr
    lines = [line.split()[:2] for line in process.stdout.splitlines()]
    # 20 exponentials with a bound and 20 without, and 5 steps of each layer; the cases
    # without a bound show that waits are counted
    assert lines.count(["False", "1"]) == 20 + 3 * 5
    assert lines.count(["True", "0"]) == 20 + 4 * 5
    assert len(lines) == 75


@pytest.mark.parametrize("norm_bound", [0.01, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_with_a_bound_no_value_is_read(dtype, norm_bound):
    """With a bound on the angles no value is read, so meta tensors pass."""
    A = torch.empty(2, 8, 8, dtype=dtype, device="meta")
    W = products.new_slots(A)
    backend = backend_for(W)
    Q, plan = products.forward(backend, W, norm_bound)
    assert products.backward(backend, W, plan, Q).shape == A.shape
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        products.forward(backend, W)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_within_reach_it_is_the_exponential(dtype, rng):
    """If all angles are within reach, value and gradient are those of `expm_skew`."""
    A = random_skew(24, norm=2.0, dtype=dtype, rng=rng)
    G = torch.randn(24, 24, dtype=dtype, generator=rng)
    results = []
    for f in (expm_skew, Exp(3.0).at_identity):
        X = A.clone().requires_grad_()
        Q = f(X)
        results += [(Q, torch.autograd.grad(Q, X, G)[0])]
    assert_close(*results)
    X = torch.randn(24, 24, dtype=dtype, generator=rng) / 20
    B = random_unitary(24, dtype=dtype, rng=rng)
    for base in (None, B):
        assert_close(Exp(6.0).around(X, base), Exp().around(X, base))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [2, 3, 16, 129])
@pytest.mark.parametrize("large", [1, 0.1, 0.5])
def test_out_of_reach_is_nan(n, large, dtype, rng):
    """A matrix with an angle out of reach becomes NaN, whatever its other angles are.

    Other matrices of its batch stay finite. A plan that is too short would give a
    matrix that is not orthogonal, without notice: with reach 1 and angle 4 the error is
    0.4.
    """
    count = max(1, round(large * (n // 2))) if large < 1 else 1
    theta = 0.3 * torch.rand(n // 2, dtype=torch.float64, generator=rng)
    theta[:count] = 1.01
    A = torch.zeros(n, n, dtype=torch.float64)
    pairs = torch.arange(n // 2)
    A[2 * pairs, 2 * pairs + 1], A[2 * pairs + 1, 2 * pairs] = theta, -theta
    V = random_unitary(n, dtype=dtype, rng=rng)
    A = V @ A.to(dtype) @ V.mH
    A = torch.stack([A, A / 4]).requires_grad_()
    Q = Exp(1.0).at_identity((A - A.mH) / 2)
    assert Q[0].isnan().all()
    assert Q[1].isfinite().all()
    (g,) = torch.autograd.grad(Q, A, torch.ones_like(Q))
    assert g[0].isnan().any()
    assert g[1].isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_out_of_reach(value):
    A = torch.zeros(3, 4, 4)
    A[1, 2, 1], A[1, 1, 2] = value, -value
    assert Exp(1.0).at_identity(A).isnan().flatten(1).all(1).tolist() == [0, 1, 0]


@pytest.mark.parametrize("norm", [1e-3, 1.0, 1e4])
def test_the_bound_is_close(norm, rng):
    """The bound lies within 30 percent of the norm, also far from norm 1."""
    A = random_skew(16, norm=norm, dtype=torch.float32, rng=rng)
    assert not within_reach(A, 1.3 * norm).isnan().any()
    assert within_reach(A, 0.99 * norm).isnan().all()


def test_it_can_be_captured(rng):
    """A graph captured with one matrix serves every other: nothing depends on values.

    It contains no operator of this library, inside of which the host could wait.
    """
    G = torch.randn(2, 16, 16, generator=rng)

    def step(X):
        X = X.detach().requires_grad_()
        Q = Exp(4.0).around(X, G)
        return Q, torch.autograd.grad(Q, X, G)[0]

    X = torch.randn(2, 16, 16, generator=rng)
    X = X / matrix_norm(skew(X), 2, keepdim=True)
    with torch.enable_grad():
        graph = make_fx(step)(1e-3 * X)
        names = {str(node.target) for node in graph.graph.nodes}
        assert not [name for name in names if "isometry" in name or "dense" in name]
        for norm in (0.0, 0.1, 3.0):
            assert_close(graph(norm * X), step(norm * X))
        assert all(result.isnan().any() for result in graph(5.0 * X))


@pytest.mark.usefixtures("no_shape_hook")
def test_a_layer_with_a_reach_compiles_to_one_graph(rng):
    """A map with a reach that was copied and pickled still compiles to one graph."""
    torch.compiler.reset()
    phi = pickle.loads(pickle.dumps(copy.deepcopy(Exp(4.0))))
    assert phi == Exp(4.0) != Exp()
    layer = isometry.orthogonal(nn.Linear(8, 8), orthogonal_map=phi)
    x = torch.randn(3, 8, generator=rng)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x), layer(x))


@pytest.mark.errors
@pytest.mark.parametrize("reach", [0.0, -1.0, torch.inf, torch.nan])
def test_a_reach_must_be_positive(reach):
    with pytest.raises(ValueError, match="`reach` must be a positive angle; got"):
        Exp(reach)
