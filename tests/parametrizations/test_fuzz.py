"""Random sequences of operations on modules, against a slow model of the weight."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import isometry
from tests.parametrizations.random_use import KINDS, OPTIMIZERS, ROWS, Life

# operations that leave the weight as it is


def read(life: Life) -> None:
    with torch.no_grad():
        life.close(life.weight, life.model)


def infer(life: Life) -> None:
    with torch.inference_mode():
        life.close(life.weight, life.model)


def evaluate(life: Life) -> None:
    life.module.eval()
    read(life)
    life.module.train()


def write_into_the_weight(life: Life) -> None:
    with torch.no_grad():
        life.weight.zero_()


def rebase(life: Life) -> None:
    """Rebase; the momentum still moves the weight in the same direction."""

    def velocities() -> list[Tensor]:
        state = life.optimizer.state.get(life.X, {})
        momenta = [state.get(key) for key in ("momentum_buffer", "exp_avg")]
        X = life.X.detach().to(life.double)
        return [
            torch.func.jvp(life.slow, (X,), (m.to(life.double),))[1]
            for m in momenta
            if m is not None
        ]

    before = velocities()
    isometry.rebase(life.module, life.optimizer)
    for old, new in zip(before, velocities(), strict=True):
        atol = life.tolerance * (1 + float(old.abs().max()))
        assert_close(new, old, rtol=0, atol=atol)


def step_without_a_gradient(life: Life) -> None:
    life.optimizer.zero_grad()
    life.optimizer.step()


def freeze(life: Life) -> None:
    W = life.weight.detach().clone()
    life.X.requires_grad_(False)
    step_without_a_gradient(life)
    assert torch.equal(life.weight, W)
    life.X.requires_grad_()


def copy_it(life: Life) -> None:
    W = life.weight.detach().clone()
    life.module = copy.deepcopy(life.module)
    assert torch.equal(life.weight, W)
    life.new_optimizer()


def save_and_load(life: Life) -> None:
    """Load module and optimizer from a file, into a module that was already read."""
    file = io.BytesIO()
    torch.save([life.module.state_dict(), life.optimizer.state_dict()], file)
    life.module = life.fresh()
    assert life.weight.isfinite().all()
    life.new_optimizer()
    file.seek(0)
    module, optimizer = torch.load(file, weights_only=True)
    life.module.load_state_dict(module)
    life.optimizer.load_state_dict(optimizer)


def load_by_assignment(life: Life) -> None:
    """Load into a module made on the meta device, to the last bit."""
    W = life.weight.detach().clone()
    state = copy.deepcopy(life.module.state_dict())
    with torch.device("meta"):
        life.module = life.fresh()
    life.module.load_state_dict(state, assign=True)
    life.module.to("cpu")
    assert torch.equal(life.weight, W)
    life.new_optimizer()


def fold_and_constrain(life: Life) -> None:
    W = life.weight.detach().clone()
    isometry.fold(life.module)
    assert torch.equal(life.weight, W)
    life.constrain(life.module)
    life.new_optimizer()


def load_a_plain_weight(life: Life) -> None:
    state = isometry.fold(copy.deepcopy(life.module)).state_dict()
    life.module = life.fresh()
    isometry.load_foreign(life.module, state)
    life.new_optimizer()


def cast_and_back(life: Life) -> None:
    """Cast to narrower and wider dtypes; the coordinates are never narrow."""
    if not life.row.dtype.is_complex:
        life.module.to(torch.bfloat16)
        assert life.weight.dtype == torch.bfloat16
    life.module.to(life.double)
    assert life.weight.dtype == life.double
    life.module.to(life.row.dtype)
    life.new_optimizer()


def call_with_other_coordinates(life: Life) -> None:
    """Call with other coordinates; `functional_call` does not keep them."""
    inputs, other = life.inputs(), 0.5 * life.X.detach()
    if inputs:
        coordinates = {f"parametrizations.{life.kind.name}.original": other}
        functional_call(life.module, coordinates, tuple(inputs))


def backward(life: Life) -> Tensor:
    """Compare the gradient with the slow model's gradient, and return the latter."""
    return differentiate(life, lambda loss: loss.backward())


def backward_twice(life: Life) -> None:
    def go(loss: Tensor) -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    differentiate(life, go, times=2)


def backward_through_a_checkpoint(life: Life) -> None:
    differentiate(life, lambda loss: loss.backward(), checkpointed=True)


def differentiate(
    life: Life,
    go: Callable[[Tensor], object],
    *,
    times: int = 1,
    checkpointed: bool = False,
) -> Tensor:
    life.optimizer.zero_grad()
    inputs = life.inputs()
    y = (
        checkpoint(lambda: life.output(inputs), use_reentrant=False)
        if checkpointed
        else life.output(inputs)
    )
    assert isinstance(y, Tensor)
    target = torch.randn_like(y.detach())
    go(((y - target).abs() ** 2).sum())
    twin = life.X.detach().to(life.double, copy=True).requires_grad_()
    W = life.slow(twin)
    slow = times * (life.slow_output(W, inputs) - target.to(life.double)).abs() ** 2
    G_W, G = torch.autograd.grad(slow.sum(), (W, twin))
    # The gradient of the coordinates may be zero up to rounding, as for a reflection of
    # a line, so the tolerance includes the gradient of the weight.
    atol = life.tolerance * (1 + float(G.abs().max() + G_W.abs().max()))
    assert_close(life.X.grad.to(life.double), G, rtol=0, atol=atol)
    return G


# operations that change the weight


def step(life: Life) -> None:
    G = backward(life)
    buffers = life.buffers()
    state = copy.deepcopy(life.optimizer.state_dict())
    # torch widens the state of real parameters only
    for key, value in state["state"].get(0, {}).items():
        if value.is_complex():
            state["state"][0][key] = value.to(life.double)
    twin = nn.Parameter(life.X.detach().to(life.double, copy=True))
    # fused optimizers read memory in order, whatever its strides
    twin.grad = G.contiguous()
    life.optimizer.step()
    with torch.no_grad():
        seen = life.weight.clone()
    # create the second optimizer only after the read: any step would clear the cache
    other = OPTIMIZERS[life.row.optimizer]([twin])
    other.load_state_dict(state)
    other.step()
    life.model = life.slow(twin, buffers).detach()
    life.close(seen, life.model)


def assign(life: Life) -> None:
    other = getattr(life.fresh(), life.kind.name).detach()
    setattr(life.module, life.kind.name, other)
    life.model = other.to(life.double)


def write_into_the_coordinates(life: Life) -> None:
    with torch.no_grad():
        life.X.mul_(0.5)
    life.model = life.slow(life.X).detach()


OPERATIONS: list[Callable[[Life], object]] = [
    read,
    infer,
    evaluate,
    write_into_the_weight,
    rebase,
    step_without_a_gradient,
    freeze,
    copy_it,
    save_and_load,
    load_by_assignment,
    fold_and_constrain,
    load_a_plain_weight,
    cast_and_back,
    call_with_other_coordinates,
    backward,
    backward_twice,
    backward_through_a_checkpoint,
    # listed several times, since other operations matter most between two steps
    step,
    step,
    step,
    assign,
    write_into_the_coordinates,
]
sequences = st.tuples(
    st.sampled_from(ROWS),
    st.integers(0, 2**16),
    st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=12),
)


def live(sequence: tuple) -> None:
    row, seed, operations = sequence
    life = Life(row, seed)
    for operation in operations:
        operation(life)
        life.check()


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("kind", KINDS)
def test_a_short_life_of_each_kind(kind):
    """Each kind of module has a short life, since a hundred random lives may miss one.

    They did miss convolutions in groups.
    """
    rows = [row for row in ROWS if row.kind == kind and row.policy]
    others = [row for row in ROWS if row.kind == kind and not row.policy]
    for row in (rows[0], others[-1]):
        live((row, 0, [step, backward_twice, assign, step]))


options = {"deadline": None, "derandomize": True, "database": None}
checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.mark.filterwarnings("ignore:Complex modules")
@settings(max_examples=100, suppress_health_check=checks, **options)
@given(sequences)
def test_a_hundred_lives(sequence):
    """After any sequence of operations the weight is what its state says."""
    live(sequence)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:Complex modules")
@settings(max_examples=2000, suppress_health_check=checks, **options)
@given(sequences)
def test_two_thousand_lives(sequence):
    """The weight is what its state says after each of two thousand sequences."""
    live(sequence)
