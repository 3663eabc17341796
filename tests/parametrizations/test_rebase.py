import copy
import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry.parametrizations._holder import MOVING
from tests.helpers import DTYPES, new_generator
from tests.parametrizations.cases import CASES, ROWS, Weight, orthonormality

MOVABLE = [(name, m) for name, m in ROWS if m != "householder"]


def constraint_of(module: nn.Module):
    return module.parametrizations.weight[0]


def coordinates_of(module: nn.Module) -> Any:
    return module.parametrizations.weight.original


@pytest.mark.parametrize(("name", "retraction"), MOVABLE)
def test_rebase_keeps_the_weight_and_zeroes_the_coordinates(name, retraction, rng):
    case = CASES[name]
    dtype = case.dtype(double=True)
    module = case.constrain(Weight(case.random(rng, dtype)), retraction)
    coordinates_of(module).data.copy_(0.5 * case.random(rng, dtype))
    W = module.weight.detach().clone()
    isometry.rebase(module)
    # 1e-14: twice the worst entry, 4e-15 (SU)
    assert_close(module.weight, W, rtol=0, atol=1e-14)
    assert coordinates_of(module).abs().sum() == 0


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(("name", "retraction"), MOVABLE)
def test_momentum_moves_the_weight_as_before(name, retraction, optimizer, rng):
    """dphi_X(m) before and dphi_0(m') after are the same tangent vector dW."""
    case = CASES[name]
    dtype = case.dtype(double=True)
    module = case.constrain(Weight(case.random(rng, dtype)), retraction)
    X = coordinates_of(module)
    kind = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}[optimizer]
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    optim = kind(module.parameters(), lr=0.1, **options)
    target = case.random(rng, dtype)
    for _ in range(3):
        optim.zero_grad()
        (module.weight - target).abs().pow(2).sum().backward()
        optim.step()
    key = "momentum_buffer" if optimizer == "SGD" else "exp_avg"
    constraint = constraint_of(module)

    def velocity() -> torch.Tensor:
        m = optim.state[X][key]
        return torch.func.jvp(constraint, (X.detach(),), (m,))[1]

    before = velocity()
    squares = optim.state[X].get("exp_avg_sq")
    squares = None if squares is None else squares.clone()
    isometry.rebase(module, optim)
    assert_close(velocity(), before, rtol=0, atol=1e-13 * max(1, before.abs().max()))
    if squares is not None:
        # The second moment is raised to the square of the new momentum, and never
        # lowered. Both averages began at zero, so after three steps they are too small
        # by the factors 1 - 0.9^3 and 1 - 0.999^3.
        floor = (real(optim.state[X]["exp_avg"]) / (1 - 0.9**3)) ** 2 * (1 - 0.999**3)
        expected = torch.maximum(real(squares), floor)
        assert_close(real(optim.state[X]["exp_avg_sq"]), expected, rtol=1e-12, atol=0)


def real(X: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(X) if X.is_complex() else X


def problem(seed: int = 0):
    """Data of a rotation by 2.5 radians, far enough away that coordinates grow."""
    rng = new_generator(seed)
    x = torch.randn(64, 8, generator=rng, dtype=torch.float64)
    A = torch.randn(8, 8, generator=rng, dtype=torch.float64)
    A = (A - A.mT) / torch.linalg.matrix_norm(A - A.mT, 2) * 2.5
    return x, x @ torch.matrix_exp(A).mT


@functools.cache
def fixed_curve(optimizer: str) -> list[float]:
    """The curve with a fixed base, with which three policies are compared."""
    return curve(300, optimizer)


def curve(steps: int, optimizer: str, **options) -> list[float]:
    x, y = problem()
    layer = isometry.orthogonal(
        nn.Linear(8, 8, bias=False, dtype=torch.float64), init="identity", **options
    )
    kind = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.02),
    }[optimizer]
    optim = kind(layer.parameters())
    losses = []
    for _ in range(steps):
        optim.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    assert orthonormality(layer.weight) <= 1e-14
    return losses


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    "policy",
    [{"rebase_every": 1}, {"rebase_every": 7}, {"rebase_radius": 0.5}],
    ids=str,
)
def test_a_training_curve_with_rebasing_does_not_jump(policy, optimizer):
    """Steps change the loss as much as with a fixed base, and the problem is solved."""
    fixed = fixed_curve(optimizer)
    moving = curve(300, optimizer, **policy)
    largest = max(b - a for a, b in itertools.pairwise(fixed))
    worst = max(b - a for a, b in itertools.pairwise(moving))
    # momentum overshoots with a fixed base too; a jump would be as large as the loss
    assert worst <= max(2 * largest, 0.02 * fixed[0])
    assert moving[-1] <= 1e-2 * moving[0]


def test_dropped_momentum_would_be_noticed():
    """Zeroing the momentum changes the next step, so the test above can fail."""
    x, y = problem()
    results = []
    for keep in (True, False):
        layer = isometry.orthogonal(
            nn.Linear(8, 8, bias=False, dtype=torch.float64), init="identity"
        )
        optim = torch.optim.SGD(layer.parameters(), lr=0.02, momentum=0.9)
        for _ in range(20):
            optim.zero_grad()
            (layer(x) - y).square().mean().backward()
            optim.step()
        isometry.rebase(layer, optim)
        if not keep:
            optim.state[coordinates_of(layer)]["momentum_buffer"].zero_()
        before = layer.weight.detach().clone()
        optim.zero_grad()
        (layer(x) - y).square().mean().backward()
        optim.step()
        results.append(torch.dist(layer.weight, before).item())
    assert results[1] < 0.6 * results[0]


def test_rebase_happens_after_every_k_steps_of_its_own_optimizer():
    layer = isometry.orthogonal(nn.Linear(4, 4), rebase_every=3)
    other = nn.Linear(4, 4)
    mine = torch.optim.SGD(layer.parameters(), lr=0.1)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    zero = []
    for _ in range(7):
        mine.zero_grad()
        layer(torch.ones(1, 4)).pow(3).sum().backward()
        assert layer.weight.grad_fn is not None
        mine.step()
        other(torch.ones(1, 4)).sum().backward()
        foreign.step()
        zero.append(bool((coordinates_of(layer) == 0).all()))
    assert zero == [False, False, True] * 2 + [False]
    assert int(constraint_of(layer).steps) == 1


@pytest.mark.parametrize("name", ["square", "tall", "complex", "sphere", "SU"])
def test_radius_bounds_the_coordinates(name, rng):
    """After every step all angles are below the radius; some step moved the base."""
    case = CASES[name]
    dtype = case.dtype(double=True)
    module = case.constrain(Weight(case.random(rng, dtype)), "exp", rebase_radius=0.4)
    optim = torch.optim.Adam(module.parameters(), lr=0.03)
    target = case.random(rng, dtype)
    base = constraint_of(module).base.clone()
    for _ in range(40):
        optim.zero_grad()
        (module.weight - target).abs().pow(2).sum().backward()
        optim.step()
        report = isometry.diagnose(module)["weight"]
        assert report.border_distance is not None
        assert math.pi - report.border_distance <= 0.4
    assert torch.dist(constraint_of(module).base, base) > 0.1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [2, 3, 5, 40, 100, 300])
def test_largest_angle(n, dtype, rng):
    """The estimate is never below the largest angle, and at most 10 percent above."""
    module = isometry.orthogonal(
        Weight(torch.randn(n, n, dtype=dtype, generator=rng)), rebase_radius=1.0
    )
    coordinates_of(module).data.normal_(generator=rng)
    X = coordinates_of(module).detach()
    true = float(torch.linalg.matrix_norm(isometry.linalg.skew(X), 2))
    angle = constraint_of(module).manifold.largest_angle(X, None)
    assert true <= float(angle) <= 1.1001 * true


@pytest.mark.parametrize(
    "kind",
    [
        lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
        lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
        lambda p: torch.optim.LBFGS(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    ],
    ids=["fused", "foreach", "LBFGS", "AdamW", "Adagrad", "RMSprop"],
)
def test_every_optimizer_rebases(kind):
    x, y = problem()
    layer = isometry.orthogonal(
        nn.Linear(8, 8, bias=False, dtype=torch.float64),
        init="identity",
        rebase_every=2,
    )
    optim = kind(layer.parameters())

    def closure() -> torch.Tensor:
        optim.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        return loss

    losses = [optim.step(closure).item() for _ in range(20)]
    assert losses[-1] < losses[0]
    assert (coordinates_of(layer) == 0).all()
    assert not (constraint_of(layer).base == torch.eye(8)).all()


def test_policy_and_counter_survive_copies_and_checkpoints():
    """A deepcopy rebases itself, and a checkpoint goes on with the same bits."""
    x, y = problem()

    def train(layer: nn.Module, optim: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optim.zero_grad()
            (layer(x) - y).square().mean().backward()
            optim.step()

    def fresh() -> nn.Module:
        layer = nn.Linear(8, 8, bias=False, dtype=torch.float64)
        return isometry.orthogonal(layer, init="identity", rebase_every=5)

    layer = fresh()
    optim = torch.optim.Adam(layer.parameters(), lr=0.05)
    train(layer, optim, 7)
    saved = copy.deepcopy(layer.state_dict()), copy.deepcopy(optim.state_dict())
    copied = copy.deepcopy(layer)
    assert copied.parametrizations.weight in MOVING
    train(layer, optim, 10)
    resumed = fresh()
    optim2 = torch.optim.Adam(resumed.parameters(), lr=0.05)
    resumed.load_state_dict(saved[0])
    optim2.load_state_dict(saved[1])
    train(resumed, optim2, 10)
    assert torch.equal(resumed.weight, layer.weight)
    assert int(constraint_of(resumed).steps) == int(constraint_of(layer).steps) == 2
    optim3 = torch.optim.SGD(copied.parameters(), lr=0.05)
    train(copied, optim3, 3)
    assert int(constraint_of(copied).steps) == 0


@pytest.mark.errors
def test_bad_policies_say_why():
    layer = nn.Linear(4, 4)
    cases = [
        ({"rebase_every": 0}, r"`rebase_every` must be a positive number.*got 0"),
        ({"rebase_every": True}, r"`rebase_every` must be a positive number.*got True"),
        ({"rebase_every": 2.5}, r"`rebase_every` must be a positive number.*got 2.5"),
        ({"rebase_radius": 3.2}, r"`rebase_radius` must be between 0 and pi.*got 3.2"),
        ({"rebase_radius": math.nan}, r"`rebase_radius` must be between 0 and pi"),
        ({"rebase_every": 2, "rebase_radius": 1.0}, "must not both be given"),
        ({"rebase_every": 2, "use_trivialization": False}, "without a base"),
        ({"rebase_every": 2, "orthogonal_map": "householder"}, "without a base"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            isometry.orthogonal(layer, **options)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    mine = isometry.orthogonal(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="got an optimizer with none of them"):
        isometry.rebase(mine, other)
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer; got str"):
        isometry.rebase(mine, "sgd")
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got Tensor"):
        isometry.rebase(torch.eye(3))
    assert type(layer) is nn.Linear
