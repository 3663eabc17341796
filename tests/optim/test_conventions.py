"""These optimizers keep the conventions of torch's optimizers."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

import isometry
from isometry import declare
from isometry.groups import SO, SU, AbstractManifold, Sphere, Stiefel, U
from isometry.optim import RiemannianAdam, RiemannianRMSprop, RiemannianSGD
from tests.optim.cases import OPTIMIZERS, loss, single_dtype_of

SOME: list[AbstractManifold] = [
    SO(4),
    U(3),
    Stiefel(7, 3),
    Stiefel(5, 2, is_complex=True),
    Stiefel(4, 3),
    Sphere(5),
]


def problem(M: AbstractManifold, rng: torch.Generator, *batch: int):
    """A point as a parameter, and a target."""
    start, target = M.random(2, *batch, dtype=single_dtype_of(M), generator=rng)
    return nn.Parameter(start.clone()), target


def train(optimizer: Any, p: nn.Parameter, target: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss(p, target).backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["Nesterov", "AMSGrad", "RMSprop with momentum"])
@pytest.mark.parametrize("manifold", SOME, ids=str)
def test_a_checkpoint_continues_with_the_same_bits(manifold, name, rng):
    """A state loaded from a file of tensors goes on with the same bits.

    In geoopt, the state was lost (geoopt#188 and #226).
    """
    make, _, options = OPTIMIZERS[name]
    p, target = problem(manifold, rng)
    optimizer = make([p], lr=0.01, manifold=manifold, **options)
    train(optimizer, p, target, 20)
    file = io.BytesIO()
    torch.save({"p": p.detach(), "optimizer": optimizer.state_dict()}, file)
    train(optimizer, p, target, 20)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    q = nn.Parameter(saved["p"])
    other = make([q], lr=1.0, manifold=manifold, **options)
    other.load_state_dict(saved["optimizer"])
    assert other.param_groups[0]["lr"] == 0.01
    assert other.param_groups[0]["manifold"] == manifold
    train(other, q, target, 20)
    assert torch.equal(p, q)
    for key, value in optimizer.state[p].items():
        assert torch.equal(value, other.state[q][key])


def test_a_deepcopy_of_model_and_optimizer_trains_alike(rng):
    """A deepcopy of model and optimizer has the manifold, and its own parameters.

    In geoopt, it did not (geoopt#188).
    """
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(SO(4).random(generator=rng))
    declare(model, "weight", SO(4))
    optimizer = RiemannianAdam(isometry.param_groups(model, lr=0.1))
    x = torch.randn(8, 4, generator=rng)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    step(model, optimizer)
    twin, other = copy.deepcopy((model, optimizer))
    before = twin.weight.detach().clone()
    step(model, optimizer)
    assert torch.equal(twin.weight, before)
    step(twin, other)
    assert torch.equal(twin.weight, model.weight)
    assert torch.equal(twin.bias, model.bias)
    assert SO(4).contains(twin.weight.detach())


def test_closures_are_called_once_and_with_gradients(rng):
    """step(closure) returns the loss before the step."""
    p, target = problem(SO(4), rng)
    optimizer = RiemannianSGD([p], lr=0.01, manifold=SO(4))
    values = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(p, target)
        value.backward()
        values.append(value.detach())
        return value

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first
    assert len(values) == 2
    assert optimizer.step() is None


def test_steps_and_hooks_are_counted_once(rng):
    """Steps and hooks are counted once.

    In geoopt, each step of Adam was counted twice, also in its bias corrections
    (geoopt#164).
    """
    p, target = problem(SO(4), rng)
    plain = nn.Parameter(torch.ones(3))
    groups = [{"params": [p], "manifold": SO(4)}, {"params": [plain]}]
    optimizer = RiemannianAdam(groups, lr=0.01)
    # Torch's constructor wraps the method `step` of its class, so that it calls hooks.
    # This must not wrap ours again.
    torch.optim.Adam([nn.Parameter(torch.ones(1))])
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for _ in range(3):
        plain.grad = torch.ones(3)
        train(optimizer, p, target, 1)
    assert len(calls) == 3
    assert optimizer.state[p]["step"] == 3


def test_groups_have_their_own_rate_and_retraction(rng):
    """Each parameter group has its own rate and retraction."""
    together, alone = [], []
    cases = [(SO(4), 0.1, "cayley"), (SO(4), 0.2, "qr"), (Sphere(4), 0.3, "exp")]
    for M, lr, retraction in cases:
        p, target = problem(M, rng)
        q = nn.Parameter(p.detach().clone())
        p.grad = q.grad = target
        options: dict[str, Any] = {"manifold": M, "lr": lr, "retraction": retraction}
        together.append({"params": [p], **options})
        RiemannianSGD([q], **options).step()
        alone.append(q)
    optimizer = RiemannianSGD(together[:1])
    for group in together[1:]:
        optimizer.add_param_group(group)
    optimizer.step()
    for group, q in zip(together, alone, strict=True):
        assert torch.equal(group["params"][0], q)


@pytest.mark.parametrize("kind", ["cosine", "cycle"])
def test_schedulers_set_the_rate(kind, rng):
    """Schedulers set the rate, and OneCycle the betas too; rate 0 moves nothing."""
    p, target = problem(Stiefel(7, 3), rng)
    optimizer = RiemannianAdam([p], lr=0.1, manifold=Stiefel(7, 3))
    scheduler = (
        CosineAnnealingLR(optimizer, T_max=4)
        if kind == "cosine"
        else OneCycleLR(optimizer, max_lr=0.1, total_steps=5, final_div_factor=math.inf)
    )
    before = p.detach().clone()
    for _ in range(4):
        train(optimizer, p, target, 1)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-17)
    moved = p.detach().clone()
    assert torch.dist(moved, before) > 0.1
    train(optimizer, p, target, 1)
    assert torch.dist(p.detach(), moved) < 1e-6


def test_maximize_is_the_other_direction(rng):
    p, target = problem(SU(3), rng)
    q = nn.Parameter(p.detach().clone())
    p.grad, q.grad = target, -target
    RiemannianRMSprop([p], lr=0.1, manifold=SU(3)).step()
    RiemannianRMSprop([q], lr=0.1, manifold=SU(3), maximize=True).step()
    assert torch.equal(p, q)


def test_parameters_without_a_gradient_are_left_alone(rng):
    """A parameter without a gradient has no state, and takes part once it has one."""
    p, target = problem(SO(4), rng)
    q, _ = problem(SO(4), rng)
    optimizer = RiemannianSGD([p, q], lr=0.1, momentum=0.9, manifold=SO(4))
    before = q.detach().clone()
    train(optimizer, p, target, 2)
    assert torch.equal(q, before)
    assert q not in optimizer.state
    q.grad = target
    optimizer.step()
    assert optimizer.state[q]["step"] == 1
    assert not torch.equal(q, before)


def test_momentum_may_begin_later(rng):
    """If momentum is set later, the first buffer is the gradient, as in torch."""
    p, target = problem(SO(4), rng)
    optimizer = RiemannianSGD([p], lr=0.1, manifold=SO(4))
    train(optimizer, p, target, 2)
    assert optimizer.state[p].keys() == {"step"}
    optimizer.param_groups[0]["momentum"] = 0.9
    train(optimizer, p, target, 2)
    assert SO(4).contains(p.detach())
    assert optimizer.state[p].keys() == {"step", "momentum_buffer"}


def test_momentum_may_begin_for_one_of_two(rng):
    """Momentum may begin for one of two parameters at their second step.

    One of them then has a buffer, and the other does not.
    """
    p, target = problem(SO(4), rng)
    q, _ = problem(SO(4), rng)
    optimizer = RiemannianSGD([p, q], lr=0.1, manifold=SO(4))
    train(optimizer, p, target, 1)
    optimizer.param_groups[0]["momentum"] = 0.9
    train(optimizer, q, target, 1)
    first = optimizer.state[q]["momentum_buffer"].clone()
    p.grad = q.grad = target
    A = (q.mT @ target).detach()
    optimizer.step()
    assert torch.equal(optimizer.state[p]["step"], optimizer.state[q]["step"])
    second = optimizer.state[q]["momentum_buffer"]
    torch.testing.assert_close(second[0], 0.9 * first[0] + (A - A.mT) / 2)
    assert "momentum_buffer" in optimizer.state[p]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_accumulator_survives_a_first_gradient_that_is_nan(momentum, rng):
    """A NaN in the first gradient leaves the accumulator at its initial value."""
    p, target = problem(SO(4), rng, 2)
    optimizer = RiemannianRMSprop(
        [p], momentum=momentum, initial_accumulator=0.5, manifold=SO(4)
    )
    p.grad = target.clone()
    p.grad[0] = math.nan
    optimizer.step()
    accumulator = optimizer.state[p]["square_avg"]
    assert (accumulator[0] == 0.5).all()
    assert not (accumulator[1] == 0.5).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", ["SGD", "momentum", "Adam", "RMSprop with momentum"])
@pytest.mark.parametrize("manifold", [*SOME, SU(3)], ids=str)
def test_a_gradient_that_is_not_finite_is_no_step(manifold, name, bad, rng):
    """A matrix with a NaN gradient keeps weight and state; its neighbour moves.

    In geoopt, the loss became NaN (geoopt#227).
    """
    make, _, options = OPTIMIZERS[name]
    p, target = problem(manifold, rng, 2)
    optimizer = make([p], lr=0.1, manifold=manifold, **options)
    for step in range(4):
        before = p.detach().clone()
        state = {k: v.clone() for k, v in optimizer.state[p].items()}
        p.grad = target.clone()
        if step in (0, 2):
            p.grad[(0,) * p.ndim] = bad
        optimizer.step()
        assert not torch.equal(p[1], before[1])
        if step in (0, 2):
            assert torch.equal(p[0], before[0])
            for key in state.keys() - {"step"}:
                assert torch.equal(optimizer.state[p][key][0], state[key][0])
        else:
            assert not torch.equal(p[0], before[0])
    assert manifold.contains(p.detach()).all()


def test_a_grad_scaler_works(rng):
    """A GradScaler scales gradients, and skips a step if they overflow."""
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(SO(4).random(generator=rng))
    optimizer = RiemannianAdam([model.weight], lr=0.1, manifold=SO(4))
    twin = nn.Parameter(model.weight.detach().clone())
    other = RiemannianAdam([twin], lr=0.1, manifold=SO(4))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = torch.randn(8, 4, generator=rng)
    for factor in (1.0, math.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(factor * model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        if factor == 1.0:
            other.zero_grad()
            (x @ twin.mT).square().mean().backward()
            other.step()
    # scaling by powers of two costs no digit
    assert torch.equal(model.weight, twin)


def test_autocast_does_not_reach_the_step(rng):
    """Autocast does not reach the step: bfloat16 would leave a defect of 1e-2."""
    p, target = problem(Stiefel(9, 3), rng)
    q = nn.Parameter(p.detach().clone())
    p.grad = q.grad = target
    RiemannianSGD([q], lr=0.1, manifold=Stiefel(9, 3)).step()
    with torch.autocast("cpu"):
        RiemannianSGD([p], lr=0.1, manifold=Stiefel(9, 3)).step()
    assert torch.equal(p, q)


def test_declared_weights_are_found_by_param_groups(rng):
    """`param_groups` finds declared weights, also beside a plain layer.

    geotorch#43 asked: "why no optimizer?"
    """
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2), nn.Linear(2, 6))
    for layer, manifold in ((0, SO(6)), (2, Stiefel(6, 2)), (3, Stiefel(6, 2))):
        linear = model[layer]
        Q = manifold.random(generator=rng)
        linear.weight = nn.Parameter(Q.mT if layer == 2 else Q)
        declare(linear, "weight", manifold)
    optimizer = RiemannianAdam(isometry.param_groups(model, lr=0.05))
    # the wide and the tall weight share a parameter group
    assert [len(g["params"]) for g in optimizer.param_groups] == [3, 1, 2]
    x = torch.randn(32, 6, generator=rng)
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        value = (model(x) - x.roll(1, -1)).square().mean()
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[-1] < 0.9 * values[0]
    for group in optimizer.param_groups[1:]:
        for p in group["params"]:
            X = p.detach()
            X = X.mT if X.shape != group["manifold"].shape else X
            assert group["manifold"].contains(X)


def test_parameters_may_come_with_names(rng):
    """Parameters may come with names, as torch's optimizers take them."""
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(SO(4).random(generator=rng))
    optimizer = RiemannianSGD(model.named_parameters(), lr=0.1, manifold=SO(4))
    assert optimizer.param_groups[0]["param_names"] == ["weight"]
    model.weight.grad = torch.ones(4, 4)
    optimizer.step()
    other = RiemannianSGD(model.named_parameters(), lr=0.1, manifold=SO(4))
    other.load_state_dict(optimizer.state_dict())
    assert other.state[model.weight]["step"] == 1


def test_empty_batches_are_no_points():
    """An empty batch and Stiefel(4, 0) have no points, and no step fails."""
    for M, shape in ((SO(3), (0, 3, 3)), (Stiefel(4, 0), (4, 0))):
        p = nn.Parameter(torch.zeros(shape))
        p.grad = torch.zeros(shape)
        RiemannianAdam([p], manifold=M).step()


@pytest.mark.parametrize("name", ["Nesterov", "Adam"])
@pytest.mark.parametrize("manifold", [SO(4), Stiefel(7, 3), Sphere(5)], ids=str)
def test_a_rate_may_be_a_tensor(manifold, name, rng):
    make, _, options = OPTIMIZERS[name]
    p, target = problem(manifold, rng)
    q = nn.Parameter(p.detach().clone())
    for parameter, lr in ((p, 0.5), (q, torch.tensor(0.5))):
        train(
            make([parameter], lr=lr, manifold=manifold, **options), parameter, target, 3
        )
    assert torch.equal(p, q)
