"""Real problems whose optima are known, solved in double precision."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from isometry.groups import SO, AbstractManifold, Stiefel, U
from isometry.optim import RiemannianAdam, RiemannianSGD

TOLERANCE = 1e-8


def solve(
    manifold: AbstractManifold,
    start: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    lr: float,
    steps: int,
    retraction: str = "exp",
) -> Tensor:
    p = nn.Parameter(start.clone())
    optimizer = RiemannianSGD(
        [p],
        lr=lr,
        momentum=0.9,
        nesterov=True,
        manifold=manifold,
        retraction=retraction,
    )
    for _ in range(steps):
        optimizer.zero_grad()
        loss(p).backward()
        optimizer.step()
    return p.detach()


def gaussian(*shape: int, rng: torch.Generator, dtype: torch.dtype = torch.float64):
    return torch.randn(shape, dtype=dtype, generator=rng)


@pytest.mark.parametrize("retraction", ["exp", "cayley", "pade-2", "polar", "qr"])
def test_orthogonal_procrustes(retraction, rng):
    """Over rotations, |A Q - B| is least at U diag(1, ..., 1, det(U V^T)) V^T.

    Here A^T B = U S V^T is a singular value decomposition.
    """
    n = 8
    A = gaussian(20, n, rng=rng)
    # far from a reflection, where the smallest singular value belongs to a saddle
    B = A @ SO(n).random(dtype=torch.float64, generator=rng)
    B = B + 0.3 * gaussian(20, n, rng=rng)
    U_, _, Vh = torch.linalg.svd(A.mT @ B)
    sign = torch.ones(n, dtype=torch.float64)
    sign[-1] = torch.linalg.det(U_ @ Vh)
    best = (U_ * sign) @ Vh

    Q = solve(
        SO(n),
        SO(n).random(dtype=torch.float64, generator=rng),
        lambda Q: (A @ Q - B).square().sum() / 2,
        lr=0.02,
        steps=250,
        retraction=retraction,
    )

    assert torch.dist(Q, best) < TOLERANCE


@pytest.mark.parametrize(
    ("n", "retraction"), [(20, "exp"), (20, "cayley"), (20, "polar"), (5, "exp")]
)
def test_brockett_finds_principal_components(n, retraction, rng):
    """tr(Q^T C Q N) with N = diag(k, ..., 1) is least at k eigenvectors of C.

    The eigenvector of the smallest eigenvalue comes first.
    """
    k = 3
    V = SO(n).random(dtype=torch.float64, generator=rng)
    rest = torch.linspace(4, 6, n - k, dtype=torch.float64)
    values = torch.cat([torch.arange(1.0, k + 1, dtype=torch.float64), rest])
    C = (V * values) @ V.mT
    weights = torch.arange(k, 0, -1, dtype=torch.float64)

    Q = solve(
        Stiefel(n, k),
        Stiefel(n, k).random(dtype=torch.float64, generator=rng),
        lambda Q: (Q * (C @ Q) * weights).sum(),
        lr=0.02,
        steps=450,
        retraction=retraction,
    )

    quotients = (Q * (C @ Q)).sum(0)
    torch.testing.assert_close(quotients, values[:k], rtol=0, atol=TOLERANCE)
    overlap = (V[:, :k].mT @ Q).abs()
    assert torch.dist(overlap, torch.eye(k)) < TOLERANCE


def test_joint_diagonalization_of_commuting_matrices(rng):
    """min sum_i |off(Q^H C_i Q)|^2 over U(n) is 0 for C_i = V D_i V^H.

    The D_i are cosines, so that no two joint eigenvalues are close: the closest pair
    decides how fast descent is.
    """
    n, many = 5, 4
    V = U(n).random(dtype=torch.complex128, generator=rng)
    phases = torch.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n
    D = torch.stack([torch.cos(i * phases) for i in range(1, many + 1)])
    C = (V * D[:, None, :].to(V.dtype)) @ V.mH

    def off(Q: Tensor) -> Tensor:
        X = Q.mH @ C @ Q
        return (X - torch.diag_embed(X.diagonal(dim1=-2, dim2=-1))).abs().square().sum()

    start = U(n).random(dtype=torch.complex128, generator=rng)
    Q = solve(U(n), start, off, lr=0.02, steps=300)

    assert off(start) > 1
    assert off(Q).sqrt() < TOLERANCE
    # the columns are those of V, in another order and with other phases
    overlap = (V.mH @ Q).abs()
    assert torch.dist(overlap.max(0).values, torch.ones(n)) < TOLERANCE


def test_independent_components_of_a_mixture(rng):
    """min sum E (q_j^T x)^4 over SO(3) unmixes sources flatter than Gaussian ones.

    The sources are all points of a grid, so they are exactly independent even in the
    sample. The minimum is the inverse of the mixture, up to order and signs.
    """
    levels = torch.linspace(-1, 1, 7, dtype=torch.float64)
    levels = levels / levels.square().mean().sqrt()
    sources = torch.tensor(
        list(product(levels.tolist(), repeat=3)), dtype=torch.float64
    )
    mixture = SO(3).random(dtype=torch.float64, generator=rng)
    x = sources @ mixture.mT

    Q = solve(
        SO(3),
        SO(3).random(dtype=torch.float64, generator=rng),
        lambda Q: (x @ Q).pow(4).mean(0).sum(),
        lr=0.05,
        steps=200,
    )

    unmixed = (mixture.mT @ Q).abs()
    assert torch.dist(unmixed.max(0).values, torch.ones(3)) < TOLERANCE
    assert torch.dist(unmixed.sum(0), torch.ones(3)) < TOLERANCE


def test_adam_with_a_decreasing_rate_gets_there_too(rng):
    """Adam with a decreasing rate solves Procrustes on the Stiefel manifold.

    On this manifold, the second moment is one number.
    """
    manifold = Stiefel(12, 3)
    target = manifold.random(dtype=torch.float64, generator=rng)
    B = target + 0.2 * gaussian(12, 3, rng=rng)
    U_, _, Vh = torch.linalg.svd(B, full_matrices=False)
    p = nn.Parameter(manifold.random(dtype=torch.float64, generator=rng))
    # a short memory lets the second moment follow the gradient down
    optimizer = RiemannianAdam([p], lr=0.1, betas=(0.9, 0.9), manifold=manifold)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
    for _ in range(400):
        optimizer.zero_grad()
        (p - B).square().sum().backward()
        optimizer.step()
        scheduler.step()
    assert torch.dist(p.detach(), U_ @ Vh) < TOLERANCE
