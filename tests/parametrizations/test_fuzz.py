"""Random sequences of what users do, against a slow model of what should happen."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import isometry
from tests.parametrizations.cases import CASES, Weight, defect
from tests.parametrizations.test_trajectory import reference_weight


class Life:
    """A constrained module, and the weight that its state stands for."""

    def __init__(self, name: str, map_name: str, seed: int, policy: dict) -> None:
        self.name, self.map_name, self.policy = name, map_name, policy
        self.case = CASES[name]
        self.rng = torch.Generator().manual_seed(seed)
        self.dtype = self.case.dtype(double=True)
        self.module = self.fresh()
        self.optimizer = self.new_optimizer()
        self.before: Tensor | None = None

    def fresh(self) -> nn.Module:
        W = self.case.random(self.rng, self.dtype)
        return self.case.constrain(Weight(W), self.map_name, **self.policy)

    def new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.module.parameters(), lr=0.05, momentum=0.5)

    def expected(self, X: Tensor) -> Tensor:
        constraint = self.module.parametrizations.weight[0]
        buffers = dict(constraint.named_buffers())
        return reference_weight(self.name, self.map_name, X, buffers)

    def check(self) -> None:
        """The weight is what its state says, to rounding, with its gradient."""
        X = self.module.parametrizations.weight.original
        # 1e-9: torch.matrix_exp itself is off by 1.8e-10 at norm 0.05, in float64
        assert_close(self.module.weight, self.expected(X), rtol=0, atol=1e-9)
        assert defect(self.case, self.module.weight) <= 1e-12

    def read(self) -> None:
        with torch.no_grad():
            assert self.module.weight.shape == self.case.shape

    def infer(self) -> None:
        with torch.inference_mode():
            assert self.module.weight.shape == self.case.shape

    def backward(self) -> None:
        X = self.module.parametrizations.weight.original
        target = self.case.random(self.rng, self.dtype)
        self.optimizer.zero_grad()
        ((self.module.weight - target).abs() ** 2).sum().backward()
        twin = X.detach().clone().requires_grad_()
        loss = ((self.expected(twin) - target).abs() ** 2).sum()
        (gradient,) = torch.autograd.grad(loss, twin)
        assert_close(X.grad, gradient, rtol=1e-8, atol=1e-8)

    def step(self) -> None:
        self.backward()
        self.optimizer.step()

    def rebase(self) -> None:
        W = self.module.weight.detach().clone()
        isometry.rebase(self.module, self.optimizer)
        assert_close(self.module.weight, W, rtol=0, atol=1e-12)

    def save_and_load(self) -> None:
        state = copy.deepcopy(self.module.state_dict())
        W = self.module.weight.detach().clone()
        self.module = self.fresh()
        self.module.load_state_dict(state)
        assert torch.equal(self.module.weight, W)
        self.optimizer = self.new_optimizer()

    def copy(self) -> None:
        W = self.module.weight.detach().clone()
        self.module = copy.deepcopy(self.module)
        assert torch.equal(self.module.weight, W)
        self.optimizer = self.new_optimizer()

    def fold_and_constrain(self) -> None:
        W = self.module.weight.detach().clone()
        isometry.fold(self.module)
        assert torch.equal(self.module.weight, W)
        self.case.constrain(self.module, self.map_name, **self.policy)
        assert_close(self.module.weight, W, rtol=0, atol=1e-12)
        self.optimizer = self.new_optimizer()

    def assign(self) -> None:
        other = self.fresh().weight.detach()
        self.module.weight = other
        assert_close(self.module.weight, other, rtol=0, atol=1e-13)

    def write_into_the_weight(self) -> None:
        with torch.no_grad():
            self.module.weight.zero_()

    def evaluate(self) -> None:
        self.module.eval()
        self.read()
        self.module.train()


OPERATIONS: list[Callable[[Life], None]] = [
    Life.read,
    Life.infer,
    Life.backward,
    Life.step,
    Life.step,
    Life.rebase,
    Life.save_and_load,
    Life.copy,
    Life.fold_and_constrain,
    Life.assign,
    Life.write_into_the_weight,
    Life.evaluate,
]
# reflections have no base, and with it no policy
ROWS = [
    (name, map_name, policy)
    for name, case in CASES.items()
    for map_name in case.maps
    for policy in ({}, {"rebase_every": 2}, {"rebase_radius": 0.2})
    if map_name != "householder" or not policy
]
sequences = st.tuples(
    st.sampled_from(ROWS),
    st.integers(0, 2**16),
    st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=12),
)


def live(sequence: tuple) -> None:
    (name, map_name, policy), seed, operations = sequence
    life = Life(name, map_name, seed, policy)
    for operation in operations:
        operation(life)
        life.check()


options = {"deadline": None, "derandomize": True, "database": None}
checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@settings(max_examples=100, suppress_health_check=checks, **options)
@given(sequences)
def test_a_hundred_lives(sequence):
    """Whatever is done, in any order, the weight is that of its state."""
    live(sequence)


@pytest.mark.soak
@settings(max_examples=2000, suppress_health_check=checks, **options)
@given(sequences)
def test_two_thousand_lives(sequence):
    """The same, for longer."""
    live(sequence)
