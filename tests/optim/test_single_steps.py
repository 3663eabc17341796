"""Single steps against SciPy, of any length and with any rate."""

import math
import threading
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from isometry._backend import memory
from isometry.groups import (
    SO,
    SU,
    AbstractManifold,
    O,
    Product,
    Sp,
    Sphere,
    Stiefel,
    Torus,
    U,
)
from isometry.optim import RiemannianAdam, RiemannianRMSprop, RiemannianSGD
from tests.helpers import new_generator
from tests.optim.cases import double_dtype_of, retractions, single_dtype_of


def moved(
    manifold: AbstractManifold, Q: Tensor, G: Tensor, lr: Any, retraction: str = "exp"
) -> Tensor:
    """One step of descent."""
    p = nn.Parameter(Q.clone())
    p.grad = G.clone()
    RiemannianSGD([p], lr=lr, manifold=manifold, retraction=retraction).step()
    return p.detach()


@pytest.mark.parametrize("lr", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("manifold", [SO(6), U(5), O(6)], ids=str)
def test_descent_is_the_exponential_of_scipy(manifold, lr, rng):
    """A step of SGD is Q expm(-lr Q^H grad f)."""
    dtype = double_dtype_of(manifold)
    Q = manifold.random(dtype=dtype, generator=rng)
    G = torch.randn(Q.shape, dtype=dtype, generator=rng)
    A = Q.mH @ G - G.mH @ Q
    expected = Q.numpy() @ scipy.linalg.expm(-lr / 2 * A.numpy())
    # twice the worst of 10 seeds, 2.7e-14 at lr = 2
    assert_close(
        moved(manifold, Q, G, lr), torch.from_numpy(expected), rtol=0, atol=6e-14
    )


@pytest.mark.parametrize("lr", [1e-3, 0.05, 1.0])
@pytest.mark.parametrize("shape", [(9, 3), (4, 3), (50, 5)], ids=str)
def test_descent_on_tall_matrices_is_the_geodesic_of_the_books(shape, lr, rng):
    """A step is (Q, N) expm [[A, -R^T], [R, 0]], the textbook geodesic.

    Here N R = (I - Q Q^T) H and H = -lr (G - Q G^T Q).
    """
    manifold, k = Stiefel(*shape), shape[1]
    Q = manifold.random(dtype=torch.float64, generator=rng)
    G = torch.randn(shape, dtype=torch.float64, generator=rng)
    H = -lr * (G - Q @ G.mT @ Q)
    A = Q.mT @ H
    N, R = torch.linalg.qr(H - Q @ A)
    block = torch.cat(
        [torch.cat([A, -R.mT], 1), torch.cat([R, torch.zeros(k, k)], 1)], 0
    )
    flow: np.ndarray = scipy.linalg.expm(block.numpy())
    expected = torch.cat([Q, N], 1) @ torch.from_numpy(flow[:, :k])
    # twice the worst of 200 seeds, 3.9e-14 (4 x 3, a step of several radians)
    assert_close(moved(manifold, Q, G, lr), expected, rtol=0, atol=8e-14)


SPACES: list[AbstractManifold] = [
    SO(5),
    U(4),
    SU(3),
    Sp(2),
    Torus(3),
    Product(SO(2), SO(3)),
    O(4),
    Stiefel(9, 3),
    Stiefel(4, 3),
    Sphere(5),
]
# Orders of agreement with the geodesic. The order of pade-m is 2m + 1, and cayley is
# pade-1. The polar factor has order three, but only two for tall matrices.
ORDER = {"cayley": 3, "pade-2": 5, "pade-3": 7, "polar": 3, "qr": 2}
TALL_POLAR = [(Stiefel(9, 3), "polar"), (Stiefel(4, 3), "polar")]


@pytest.mark.parametrize(
    ("manifold", "retraction"),
    [
        (M, retraction)
        for M in SPACES
        for retraction in retractions(M)
        if retraction != "exp"
    ],
    ids=str,
)
def test_retractions_agree_with_exp_to_their_order(manifold, retraction, rng):
    """Halving the step divides the difference from exp by 2^order."""
    Q = manifold.random(dtype=double_dtype_of(manifold), generator=rng)
    G = torch.randn(Q.shape, dtype=Q.dtype, generator=rng)
    # steps of length 0.5 and 0.25: shorter ones would differ by rounding for pade-3
    lr = 0.5 / float(torch.dist(manifold.gradient(Q, G), torch.zeros(())))
    far, near = (
        torch.dist(moved(manifold, Q, G, s, retraction), moved(manifold, Q, G, s))
        for s in (lr, lr / 2)
    )
    order = 2 if (manifold, retraction) in TALL_POLAR else ORDER[retraction]
    assert math.log2(far / near) > order - 0.2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("manifold", "retraction"),
    [
        (SO(3), "exp"),
        (SO(3), "cayley"),
        (SO(3), "qr"),
        (SO(8), "pade-5"),
        (U(3), "pade-5"),
        (O(7), "cayley"),
        (Product(SO(2), SO(3)), "cayley"),
        (Stiefel(9, 3), "exp"),
        (Sphere(5), "exp"),
    ],
    ids=str,
)
def test_a_finite_step_without_digits_does_not_destroy_the_weight(
    manifold, retraction, momentum, rng
):
    """A finite gradient so large that no digit is left does not destroy the weight.

    Gradients of 1e3 to 1e18 used to turn rotations into reflections, or to leave a
    defect of 1e26, without any NaN. Skew matrices of odd size are singular, so in the
    solve and the QR of a long step, one row consists of rounding errors; a Pade
    denominator contains a power of such errors.
    """
    dtype = single_dtype_of(manifold)
    for size in (1e1, 1e2, 1e3, 1e4, 1e6, 1e8, 1e10, 1e14, 1e18):
        p = nn.Parameter(manifold.random(20, dtype=dtype, generator=rng))
        optimizer = RiemannianSGD(
            [p], lr=1.0, momentum=momentum, manifold=manifold, retraction=retraction
        )
        for _ in range(2):
            G = torch.randn(p.shape, dtype=dtype, generator=rng)
            p.grad = size * G / G.flatten(1).norm(dim=1).view(-1, *[1] * (G.ndim - 1))
            optimizer.step()
        # the defect of SO includes the determinant
        worst = manifold.defect(p.detach().to(double_dtype_of(manifold))).max()
        # twice the worst of 10 seeds: 1.15e-6, of a random point that did not move
        assert worst < 2.3e-6, size


def test_long_steps_that_have_digits_are_made(rng):
    """Steps of one turn or a hundred are as accurate as their angle."""
    for manifold in (SO(5), Stiefel(9, 3)):
        for size in (10.0, 300.0):
            Q = manifold.random(generator=rng)
            G = torch.randn(Q.shape, generator=rng)
            G = size * G / G.norm()
            exact = moved(manifold, manifold.nearest(Q.double()), G.double(), 1.0)
            P = moved(manifold, Q, G, 1.0)
            # twice the worst of 20 seeds: 1.25
            assert torch.dist(P.double(), exact) < 2.5 * size * 2**-23
            assert torch.dist(P, Q) > 0.1


@pytest.mark.parametrize("rate", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weight", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", [RiemannianSGD, RiemannianAdam, RiemannianRMSprop])
@pytest.mark.parametrize(
    "manifold",
    [SO(4), Stiefel(9, 3), Stiefel(9, 3, is_complex=True), Stiefel(4, 3), Sphere(5)],
    ids=str,
)
def test_a_rate_may_be_a_tensor_of_another_precision(manifold, make, weight, rate, rng):
    """The rate may be a tensor of another precision.

    On tall matrices a float64 rate used to raise an error about dtypes.
    """
    dtype = weight.to_complex() if manifold.is_complex else weight
    Q = manifold.random(dtype=dtype, generator=rng)
    G = torch.randn(Q.shape, dtype=dtype, generator=rng)
    ends = []
    for lr in (0.25, torch.tensor(0.25, dtype=rate)):
        p = nn.Parameter(Q.clone())
        optimizer = make([p], lr=lr, manifold=manifold)
        for _ in range(3):
            p.grad = G
            optimizer.step()
        ends.append(p.detach())
    # Adam divides the rate by its bias correction, in the rate's precision
    eps = max(torch.finfo(weight).eps, torch.finfo(rate).eps)
    assert_close(*ends, rtol=0, atol=10 * eps)


LARGE: list[AbstractManifold] = [SO(260), U(190), Stiefel(1100, 64), O(260)]
RULES: list[tuple[Any, dict[str, Any]]] = [
    (RiemannianSGD, {"momentum": 0.9, "nesterov": True}),
    (RiemannianAdam, {"amsgrad": True}),
    (RiemannianRMSprop, {"momentum": 0.9}),
]


def interleaved(seed: int) -> list[Tensor]:
    """Step many optimizers in turns, with short and long steps.

    Return their results.
    """
    rng = new_generator(seed)
    jobs = []
    for M in LARGE:
        for make, options in RULES:
            p = nn.Parameter(torch.eye(*M.shape, dtype=single_dtype_of(M)))
            jobs.append((p, make([p], lr=0.003, manifold=M, **options)))
    for size in (0.1, 0.1, 3.0):
        for p, optimizer in jobs:
            p.grad = size * torch.randn(p.shape, dtype=p.dtype, generator=rng)
            optimizer.step()
    states = [x for p, optimizer in jobs for x in optimizer.state[p].values()]
    return [p.detach() for p, _ in jobs] + states


def test_memory_that_is_kept_is_never_read_by_another(monkeypatch):
    """Results have the same bits with recycled and fresh memory, and in two threads."""
    results: dict[int, list[Tensor]] = {}

    def work(seed: int) -> None:
        results[seed] = interleaved(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(memory, "_SMALLEST", math.inf)
    for seed, tensors in results.items():
        for x, y in zip(tensors, interleaved(seed), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("make", [RiemannianSGD, RiemannianAdam, RiemannianRMSprop])
def test_steps_are_counted_whatever_the_default_dtype_is(make, rng):
    """Steps are counted in float32, whatever the default dtype is.

    bfloat16 counts to 256 and no further, so polish and bias correction stopped.
    """
    p = nn.Parameter(SO(3).random(dtype=torch.float32, generator=rng))
    plain = nn.Parameter(torch.ones(2))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        optimizer = make([{"params": [p], "manifold": SO(3)}, {"params": [plain]}])
        for _ in range(300):
            p.grad, plain.grad = torch.zeros_like(p), torch.zeros_like(plain)
            optimizer.step()
    finally:
        torch.set_default_dtype(before)
    assert optimizer.state[p]["step"] == 300
    # SGD does not count steps of plain parameters, as in torch
    assert optimizer.state[plain].get("step", 300) == 300
