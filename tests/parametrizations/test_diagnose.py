import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry import declare
from isometry.groups import SO, Sphere, Stiefel
from isometry.parametrizations._diagnose import map_condition
from tests.helpers import random_skew, skew_with_angles
from tests.parametrizations import reference
from tests.parametrizations.cases import Weight, orthonormality


def jacobian_condition(A: torch.Tensor, retraction: str) -> float:
    """Condition of the derivative of a map at A, in an orthonormal basis."""
    n = A.shape[-1]
    reals = n * n * (2 if A.is_complex() else 1)
    units = torch.eye(reals, dtype=torch.float64).reshape(reals, -1)
    if A.is_complex():
        units = torch.view_as_complex(units.reshape(reals, n, n, 2))
    units = units.reshape(reals, n, n)
    basis = (units - units.mH) / 2

    def flat(X: torch.Tensor) -> torch.Tensor:
        return (torch.view_as_real(X) if X.is_complex() else X).flatten()

    rows = torch.stack([flat(E) for E in basis])
    _, s, Vh = torch.linalg.svd(rows)
    basis_rows = Vh[: int((s > 1e-9).sum())]
    columns = []
    for row in basis_rows:
        E = (
            torch.view_as_complex(row.reshape(n, n, 2).contiguous())
            if A.is_complex()
            else row.reshape(n, n)
        )
        columns.append(
            flat(
                torch.func.jvp(
                    lambda A: reference.apply_map(A, retraction), (A,), (E,)
                )[1]
            )
        )
    values = torch.linalg.svdvals(torch.stack(columns))
    return float(values.max() / values.min())


@pytest.mark.parametrize("retraction", ["exp", "cayley", "pade-3"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_condition_is_that_of_the_jacobian(n, dtype, retraction, rng):
    A = random_skew(n, norm=2.5, dtype=dtype, rng=rng)
    theta = torch.linalg.eigvalsh(-1j * A)
    condition = map_condition(
        theta, SO(2).resolve(retraction), real=not dtype.is_complex
    )
    assert_close(condition, jacobian_condition(A, retraction), rtol=1e-9, atol=0)


def test_condition_grows_towards_the_border(rng):
    """The condition grows as theta_1 + theta_2 -> 2 pi, where dexp is singular."""
    conditions = []
    for angle in (0.0, 1.0, 3.0, 3.14, math.pi):
        A = skew_with_angles(torch.tensor([angle] * 2), dtype=torch.float64, rng=rng)
        layer = isometry.orthogonal(Weight(torch.eye(4, dtype=torch.float64)))
        layer.parametrizations.weight.original.data.copy_(A)
        report = isometry.diagnose(layer)["weight"]
        assert report.border_distance == pytest.approx(math.pi - angle, abs=1e-6)
        conditions.append(report.condition)
    assert conditions[0] == 1.0
    assert conditions == sorted(conditions)
    assert conditions[-1] > 1e6
    isometry.rebase(layer)
    assert isometry.diagnose(layer)["weight"].condition == 1.0


def test_orthogonality_error_and_angles(rng):
    theta = torch.tensor([0.5, 2.0])
    A = skew_with_angles(theta, dtype=torch.float64, rng=rng)
    layer = isometry.orthogonal(Weight(torch.matrix_exp(A)), det=1)
    report = isometry.diagnose(layer)["weight"]
    assert report.manifold == SO(4)
    assert report.orthogonality_error <= 1e-15
    expected = torch.tensor([-2.0, -0.5, 0.5, 2.0], dtype=torch.float64)
    assert_close(report.angles, expected)


@pytest.mark.parametrize("retraction", ["exp", "cayley", "pade-2"])
def test_a_diagnosis_in_inference_mode_is_the_same(retraction):
    """The derivative of a map's angle needs a graph, also in inference mode."""
    layer = isometry.orthogonal(nn.Linear(6, 6), "weight", retraction)
    nn.init.normal_(layer.parametrizations.weight.original, std=0.1)
    expected = isometry.diagnose(layer)["weight"]
    with torch.inference_mode():
        report = isometry.diagnose(layer)["weight"]
    assert report.condition == expected.condition


def test_every_constrained_weight_is_reported_by_name():
    model = nn.Sequential(
        isometry.orthogonal(nn.Linear(3, 7)),
        isometry.orthogonal(nn.Linear(7, 7), "weight", "householder"),
        isometry.constrain(nn.Linear(5, 7), "weight", Sphere(5)),
        nn.Linear(5, 5),
    )
    report = isometry.diagnose(model)
    assert list(report) == ["0.weight", "1.weight", "2.weight"]
    tall, reflections, sphere = report.values()
    assert tall.angles is None
    assert tall.condition is None
    assert tall.border_distance == pytest.approx(math.pi)
    assert reflections.border_distance is None
    assert reflections.angles is not None
    assert sphere.orthogonality_error <= 1e-6
    assert isometry.diagnose(nn.Linear(2, 2)) == {}


def test_a_broken_base_is_reported_as_the_layer_uses_it(rng):
    """A base that was overwritten is moved to the nearest point.

    Both the layer and the diagnosis use that point.
    """
    layer = isometry.orthogonal(nn.Linear(4, 4))
    layer.parametrizations.weight[0].base.mul_(1.1)
    error = isometry.diagnose(layer)["weight"].orthogonality_error
    # 5: twice the worst over 200 seeds, 2.3
    tol = 5 * torch.finfo(torch.float32).eps
    assert error <= tol
    assert orthonormality(layer.weight) / 2 <= tol


DIVERGED = {
    "square": lambda: nn.Linear(32, 32),
    "tall": lambda: nn.Linear(4, 9),
    "complex": lambda: nn.Linear(8, 8, dtype=torch.complex64),
    "batch": lambda: Weight(torch.eye(5).repeat(3, 1, 1)),
}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("retraction", ["exp", "cayley", "householder"])
@pytest.mark.parametrize("kind", DIVERGED)
def test_a_weight_that_diverged_is_reported_as_nan(kind, retraction, value):
    """A weight that diverged is reported as NaN.

    The eigenvalues of NaN used to kill the interpreter, in MKL's SGEBAL.
    """
    layer = isometry.orthogonal(DIVERGED[kind](), "weight", retraction)
    X = layer.parametrizations.weight.original
    with torch.no_grad():
        X.view(-1)[-2] = value
    report = isometry.diagnose(layer)["weight"]
    assert math.isnan(report.orthogonality_error)
    if retraction != "householder":
        assert report.border_distance is not None
        assert math.isnan(report.border_distance)
    if kind == "tall":
        assert report.angles is None
        return
    assert report.angles is not None
    *others, last = report.angles.reshape(-1, report.angles.shape[-1])
    assert last.isnan().all()
    assert all(row.isfinite().all() for row in others)


def test_declared_weights_are_diagnosed_too(rng):
    """Declared weights are diagnosed too.

    An average of models leaves the manifold, and this is how a user sees it.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].weight = nn.Parameter(SO(4).random(generator=rng))
    model[1].weight = nn.Parameter(Stiefel(4, 2).random(generator=rng).mT)
    declare(model[0], "weight", SO(4))
    declare(model[1], "weight", Stiefel(4, 2))
    report = isometry.diagnose(model)
    assert list(report) == ["0.weight", "1.weight"]
    assert report["0.weight"].manifold == SO(4)
    assert report["0.weight"].angles is not None
    assert report["0.weight"].condition is None
    for diagnosis in report.values():
        assert diagnosis.orthogonality_error < 1e-6
    model[1].weight.data *= 2
    error = isometry.diagnose(model)["1.weight"].orthogonality_error
    assert error == pytest.approx(3.0, rel=1e-5)
