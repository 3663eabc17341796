"""Constrained weights in training loops as users write them.

Scaled gradients are in test_scaling.py, averages of models in test_averages.py.
"""

import copy
import io
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer, lr_scheduler
from torch.testing import assert_close

import isometry
from tests.helpers import needs_torch, new_generator
from tests.parametrizations import reference
from tests.parametrizations.cases import orthonormality
from tests.parametrizations.small_network import (
    MOVING,
    POLICIES,
    constraint_of,
    coordinates_of,
    data,
    loss_of,
    network,
    same,
    train,
    weights,
)
from tests.parametrizations.test_rebase_state import ADAMS, longest_step

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.03),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.003, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    # steps are proportional to the coordinates, or to the second eps where they are
    # zero
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1, eps=(None, 0.1)),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.02, weight_decay=0.0),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
}


NAMES = [
    pytest.param(name, marks=needs_torch("2.10", "the optimizer Muon"))
    if name == "Muon"
    else name
    for name in OPTIMIZERS
]


def matrices(model: nn.Module) -> list[Tensor]:
    """The parameters that Muon accepts: no biases."""
    return [p for p in model.parameters() if p.ndim == 2]


@pytest.mark.parametrize("policy", MOVING, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_trains(name, policy):
    """With every optimizer the loss falls, and weights move and stay orthogonal.

    The bound is 1e-6, in float32.
    """
    model = network(torch.float32, **policy)
    before = weights(model)
    losses = train(model, OPTIMIZERS[name](matrices(model)), 15)
    assert losses[-1] < 0.95 * losses[0]
    for W, old in zip(weights(model), before, strict=True):
        assert torch.dist(W, old) > 0.01
        assert orthonormality(W) <= 1e-6 * W.shape[1] ** 0.5


@pytest.mark.parametrize("name", ADAMS)
def test_early_rebasing_does_not_slow_adam_down(name):
    """Early rebasing does not slow Adam down.

    Moments used to be compared without correcting for their start at zero: the loss
    after 60 steps was 0.82 (Adam), and is 0.042 with a fixed base.
    """
    _, loss = longest_step(12, 12, 60, ADAMS[name], rebase_every=3)
    # 0.07: twice the worst, 0.033 (Adamax)
    assert loss < 0.07


@pytest.mark.parametrize("policy", MOVING, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_resuming_from_a_file_is_going_on(name, policy):
    """Training resumed from a file has the same bits, in base, counter and rates."""

    def start() -> tuple[nn.Module, Optimizer, Any]:
        model = network(**policy)
        optimizer = OPTIMIZERS[name](matrices(model))
        return model, optimizer, lr_scheduler.StepLR(optimizer, 4, gamma=0.5)

    parts = start()
    train(parts[0], parts[1], 5, parts[2].step)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    train(parts[0], parts[1], 5, parts[2].step)

    resumed = start()
    file.seek(0)
    for part, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(resumed[0], resumed[1], 5, resumed[2].step)
    assert same(resumed[0], parts[0])


SCHEDULES: dict[str, Callable[[Optimizer], lr_scheduler.LRScheduler]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=[0.2, 0.02], total_steps=20
    ),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(
        o, T_0=4, T_mult=2
    ),
}


def two_groups(model: nn.Module) -> Optimizer:
    groups = isometry.param_groups(model, lr=0.1, weight_decay=1e-3)
    return torch.optim.SGD(groups, momentum=0.9)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_its_rates(name, policy):
    """A schedule has the bits of rates set by hand, and keeps the ratio of groups."""
    model, seen = network(**policy), []
    optimizer = two_groups(model)
    schedule = SCHEDULES[name](optimizer)

    def note() -> list[tuple[float, float]]:
        return [(group["lr"], group["momentum"]) for group in optimizer.param_groups]

    for _ in range(15):
        seen.append(note())
        train(model, optimizer, 1, schedule.step)
    assert len({rates[0] for rates in seen}) > 3
    for (plain, _), (slow, _) in seen:
        # the last digit: a schedule may multiply each rate separately
        assert slow == pytest.approx(0.1 * plain, rel=1e-12)

    twin = network(**policy)
    optimizer = two_groups(twin)
    for rates in seen:
        for group, (lr, momentum) in zip(optimizer.param_groups, rates, strict=True):
            group.update(lr=lr, momentum=momentum)
        train(twin, optimizer, 1)
    assert same(model, twin)


def test_one_rate_for_all_groups_undoes_their_ratio():
    """One rate for all groups undoes their ratio, as `param_groups` warns.

    `OneCycleLR` with a number sets all of them.
    """
    optimizer = two_groups(network())
    lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=20)
    plain, slow = optimizer.param_groups
    assert plain["lr"] == slow["lr"]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_accumulated_gradients_are_those_of_one_batch(policy):
    """Four parts of a batch give the step of the whole: steps count, not passes."""
    whole, parts = network(**policy), network(**policy)
    train(whole, two_groups(whole), 8)
    optimizer = two_groups(parts)
    batches = list(zip(*(t.chunk(4) for t in data()), strict=True))

    def loss(i: int) -> Tensor:
        x, y = batches[i]
        return (parts(x) - y).square().mean() / 4

    for _ in range(8):
        optimizer.zero_grad()
        loss(0).backward()
        loss(1).backward()
        # two forward passes, and one backward pass through both
        (loss(2) + loss(3)).backward()
        optimizer.step()
    # 1e-12: rounding; the worst was 1e-16
    assert_close(weights(parts), weights(whole), rtol=0, atol=1e-12)
    assert constraint_of(parts).steps == constraint_of(whole).steps


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_clipped_gradient_bounds_the_step(policy, foreach):
    """||dW|| <= sqrt(2) lr ||dX||: skew doubles the entries, dexp lengthens nothing.

    Clipping by norm gives at most sqrt(2) lr c, by value at most lr c sqrt(n (n - 1)).
    """
    bound, lr, n = 1e-3, 0.5, 9
    limits = {
        clip_grad_norm_: math.sqrt(2) * lr * bound,
        clip_grad_value_: lr * bound * math.sqrt(n * (n - 1)),
    }
    for clip, limit in limits.items():
        model = network(**policy)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        longest = 0.0
        for _ in range(8):
            before = weights(model)[1]
            optimizer.zero_grad()
            loss_of(model).backward()
            clip(model.parameters(), bound, foreach=foreach)
            optimizer.step()
            longest = max(longest, float(torch.dist(weights(model)[1], before)))
        # without clipping the longest step is 0.17, 40 times the larger limit
        assert 0.1 * limit < longest <= limit


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_nan_is_gone_with_the_last_checkpoint(policy):
    """After a NaN gradient, the last checkpoint restores everything."""
    model, twin = network(**policy), network(**policy)
    optimizer, other = two_groups(model), two_groups(twin)
    train(model, optimizer, 5)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    optimizer.zero_grad()
    (loss_of(model) * math.nan).backward()
    optimizer.step()
    assert model[2].weight.isnan().all()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(model, optimizer, 5)
    train(twin, other, 10)
    assert same(model, twin)


@pytest.mark.parametrize("shape", [(8, 8), (12, 4)])
@pytest.mark.parametrize(
    "policy", [{}, {"rebase_every": 2}, {"rebase_radius": 0.5}], ids=str
)
def test_lbfgs_with_a_line_search(policy, shape):
    """LBFGS with a line search finds the target: each evaluation sees its coordinates.

    mctorch#24. The history of LBFGS is about the coordinates, so it is dropped when the
    base moves, and the search begins anew.
    """
    n, k = shape
    rng = new_generator(0)
    x = torch.randn(64, k, dtype=torch.float64, generator=rng)
    A = reference.skew(torch.randn(n, n, dtype=torch.float64, generator=rng))
    A = A * (2.5 / torch.linalg.matrix_norm(A, 2))
    y = x @ torch.matrix_exp(A)[:, :k].mT
    layer = nn.Linear(k, n, bias=False, dtype=torch.float64)
    isometry.orthogonal(layer, init="identity", **policy)
    X = layer.parametrizations.weight.original
    constraint = layer.parametrizations.weight[0]
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=8, line_search_fn="strong_wolfe"
    )
    evaluations = 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        B = constraint.base
        slow = (
            B @ torch.matrix_exp(reference.skew(X))
            if n == k
            else reference.tall(B, X, "exp")
        )
        # 1e-9: torch.matrix_exp is off by 1.8e-10 at norm 0.05, in float64
        assert_close(layer.weight, slow, rtol=0, atol=1e-9)
        loss = (layer(x) - y).square().mean()
        loss.backward()
        return loss

    losses, moves = [], 0
    for _ in range(6):
        base = constraint.base.clone()
        losses.append(optimizer.step(closure).item())
        moved = not torch.equal(constraint.base, base)
        assert bool(optimizer.state) == (not moved)
        moves += moved
    assert bool(moves) == bool(policy)
    assert evaluations > 12
    assert all(after <= before + 1e-12 for before, after in pairwise(losses))
    # 1e-7: LBFGS stops where gradients are below 1e-7; the worst loss was 3e-9
    assert losses[-1] < 1e-7
    assert orthonormality(layer.weight) <= 1e-13


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_maximizing_is_minimizing_the_negative(policy):
    """Maximizing has the bits of minimizing the negative, also with pushed momentum."""
    models = []
    for sign, maximize in ((1, False), (-1, True)):
        model = network(**policy)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, maximize=maximize
        )
        for _ in range(8):
            optimizer.zero_grad()
            (sign * loss_of(model)).backward()
            optimizer.step()
        models.append(model)
    assert same(*models)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_gradients_set_to_zero_are_as_good_as_none(policy):
    """`zero_grad(set_to_none=False)` gives the same bits.

    Gradients that stay in memory hold nothing of old coordinates.
    """
    models = []
    for to_none in (True, False):
        model = network(**policy)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(8):
            optimizer.zero_grad(set_to_none=to_none)
            loss_of(model).backward()
            optimizer.step()
        models.append(model)
    assert same(*models)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_decay_of_param_groups_spares_the_coordinates(kind):
    """`param_groups` exempts coordinates from weight decay.

    Decay would pull a weight to its base, which no gradient asks for.
    """
    moves = []
    for grouped in (True, False):
        model = network()
        coordinates_of(model).data.normal_(std=0.3)
        before = weights(model)[1]
        options = {"lr": 0.1, "weight_decay": 0.1}
        optimizer = (
            kind(isometry.param_groups(model, **options))
            if grouped
            else kind(model.parameters(), **options)
        )
        for _ in range(20):
            optimizer.zero_grad()
            (0 * loss_of(model)).backward()
            optimizer.step()
        moves.append(float(torch.dist(weights(model)[1], before)))
    assert moves[0] == 0
    assert moves[1] > 0.1


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_frozen_weight_keeps_its_bits(policy):
    """A frozen weight keeps its bits.

    Its base used to move to the weight, which rounds: by 3.6e-7 after three steps in
    float32.
    """
    model = network(torch.float32, **policy)
    coordinates_of(model).data.normal_()
    coordinates_of(model).requires_grad_(False)
    frozen, other = model[2].weight.clone(), weights(model)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    train(model, optimizer, 7)
    assert torch.equal(model[2].weight, frozen)
    assert torch.dist(weights(model)[0], other) > 0.01
    coordinates_of(model).requires_grad_()
    train(model, optimizer, 7)
    assert torch.dist(weights(model)[1], frozen) > 0.01


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_steps_inside_of_the_backward_pass(policy):
    """An optimizer for each parameter may step inside of the backward pass."""
    model, twin = network(**policy), network(**policy)
    optimizers = {p: torch.optim.Adam([p], lr=0.01) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(8):
        loss_of(model).backward()
    train(twin, torch.optim.Adam(twin.parameters(), lr=0.01), 8)
    assert same(model, twin)
