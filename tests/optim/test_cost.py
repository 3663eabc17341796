"""The cost of a step: products are counted, and no tensor is large."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isometry.groups import SO, SU, AbstractManifold, Sp, Stiefel, U
from isometry.groups import _frames as frames
from isometry.optim import RiemannianAdam, RiemannianSGD
from tests.optim.cases import retractions

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "baddbmm_")


class Record(TorchDispatchMode):
    """Counts operations, multiplications in products, and the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.multiplications = 0
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        self.calls[name] += 1
        if name in PRODUCTS:
            left, right = [a for a in args if isinstance(a, Tensor)][-2:]
            self.multiplications += left.numel() * right.shape[-1]
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.numel())
        return result


def record(
    manifold: AbstractManifold,
    retraction: str,
    rng: torch.Generator,
    *,
    lr: float = 1e-3,
    adam: bool = False,
    after: int = 1,
) -> Record:
    """Record a step that follows some others."""
    p = nn.Parameter(manifold.random(generator=rng))
    rule = RiemannianAdam if adam else RiemannianSGD
    options: dict[str, Any] = {} if adam else {"momentum": 0.9}
    optimizer = rule([p], lr=lr, manifold=manifold, retraction=retraction, **options)
    p.grad = manifold.random(generator=rng)
    for _ in range(after):
        optimizer.step()
    with Record() as seen:
        optimizer.step()
    return seen


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize(("lr", "products"), [(1e-4, 4), (6e-3, 5)])
def test_a_step_in_the_group_is_four_or_five_products(lr, products, adam, rng):
    """A step takes Q^H G, two or three products for the exponential, and one with Q."""
    # larger matrices would be squared in C, out of sight of the counter
    n = 90
    seen = record(SO(n), "exp", rng, lr=lr if adam else 10 * lr, adam=adam)
    assert seen.multiplications == products * n**3


def test_a_step_of_polar_is_four_products(rng):
    """A step by polar takes Q^H G, Q A, X^H X and one Newton-Schulz product."""
    n = 64
    seen = record(SO(n), "polar", rng, lr=1e-3)
    assert seen.multiplications == 4 * n**3


@pytest.mark.parametrize("adam", [False, True])
def test_a_step_of_a_tall_matrix_is_seven_products(adam, rng):
    """A step of a tall matrix takes seven large products, and nothing is n x n."""
    n, k = 1024, 8
    seen = record(Stiefel(n, k), "exp", rng, adam=adam)
    assert 7 <= seen.multiplications / (n * k * k) < 7.5
    assert seen.largest <= (n + k) * k


@pytest.mark.parametrize("retraction", ["exp", "cayley", "pade-3", "polar", "qr"])
def test_nothing_is_n_by_n(retraction, rng):
    n, k = 512, 4
    for lr in (1e-3, 10.0):
        seen = record(Stiefel(n, k), retraction, rng, lr=lr)
        assert seen.largest <= 2 * n * k


GROUPS = [SO(8), U(5), SU(4), Sp(2), Stiefel(12, 3), Stiefel(4, 3)]


@pytest.mark.parametrize("after", [1, frames.BodyFrame.polish_every - 1])
@pytest.mark.parametrize(
    ("manifold", "retraction"),
    [(M, r) for M in GROUPS for r in retractions(M)],
    ids=str,
)
def test_no_decomposition_is_made(manifold, retraction, after, rng):
    """Neither a step nor a polish, which comes every 16 steps, decomposes a matrix."""
    for lr in (1e-3, 0.3):
        seen = record(manifold, retraction, rng, lr=lr, after=after)
        decompositions = [name for name in seen.calls if "svd" in name or "eig" in name]
        assert decompositions == []


def test_equal_parameters_are_one_batch(rng):
    """Eight equal matrices need about as many operations as one."""
    calls = []
    for count in (1, 8):
        params = [nn.Parameter(SO(6).random(generator=rng)) for _ in range(count)]
        optimizer = RiemannianAdam(params, manifold=SO(6))
        for p in params:
            p.grad = SO(6).random(generator=rng)
        optimizer.step()
        with Record() as seen:
            optimizer.step()
        calls.append(sum(seen.calls[name] for name in PRODUCTS))
    assert calls[0] == calls[1]
