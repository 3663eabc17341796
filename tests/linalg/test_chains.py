"""Chains of calls, second gradients, changes in place and hooks under autograd.

In a chain a function is applied to its own result. A backward pass that recomputes
(`create_graph=True`) must stop at its saved inputs, even if these lie upstream of each
other; tests/nn/test_chains.py describes one that did not.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from isometry.groups import Exp, Pade
from isometry.linalg import (
    cayley,
    cayley_inverse,
    expm_skew,
    expm_skew_adjoint,
    expm_skew_frechet,
    expm_tall,
    householder,
    logm_unitary,
    pade,
    polar,
    skew,
)

rotation = Exp().around

Map = Callable[[Tensor], Tensor]
ROW = torch.tensor([0])


def eye_like(X: Tensor) -> Tensor:
    return torch.eye(X.shape[-1], dtype=X.dtype)


def tall(X: Tensor, k: int, f: Map) -> Tensor:
    """Apply a map of tall matrices to the first columns of X; keep the others."""
    return torch.cat([f(X[..., :k]), X[..., k:]], -1)


# each map takes square matrices to square matrices of the same size
MAPS: dict[str, Map] = {
    "expm_skew": lambda X: expm_skew(skew(X)),
    "expm_skew, squared": lambda X: expm_skew(9 * skew(X)),
    "expm_skew, bound": lambda X: expm_skew(skew(X), norm_bound=20.0),
    "expm_skew, eigh": lambda X: expm_skew(skew(X), method="eigh"),
    "expm_skew, pade": lambda X: expm_skew(skew(X), method="pade"),
    "expm_skew_frechet": lambda X: expm_skew_frechet(skew(X), X)[1],
    "expm_skew_adjoint": lambda X: expm_skew_adjoint(skew(X), X)[1],
    "rotation": lambda X: rotation(X, None),
    "rotation, base": lambda X: rotation(X, cayley(skew(eye_like(X).roll(1, 0)))),
    "rotation, base with gradient": lambda X: rotation(X, X),
    "cayley": lambda X: cayley(skew(X)),
    "cayley_inverse": lambda X: cayley_inverse(cayley(skew(X))),
    "pade": lambda X: pade(skew(X), degree=3, squarings=1),
    "householder": householder,
    "logm_unitary": lambda X: logm_unitary(cayley(skew(X))),
    "polar": lambda X: polar(X + 3 * eye_like(X)),
    "polar, tall": lambda X: tall(X + 3 * eye_like(X), 2, polar),
    "expm_tall": lambda X: tall(X, 2, expm_tall),
    "expm_tall, base": lambda X: tall(X, 2, lambda Y: expm_tall(Y, polar(Y))),
    "expm_tall, square": expm_tall,
    "pade, tall": lambda X: tall(X, 2, lambda Y: Pade(2).tall(Y, None)),
}


def on_its_output(f: Map, X: Tensor) -> Tensor:
    return f(f(X))


def with_its_output(f: Map, X: Tensor) -> Tensor:
    """X is both upstream of the inner call and a summand of the outer argument."""
    return f(X + 0.3 * f(X))


def times_its_output(f: Map, X: Tensor) -> Tensor:
    Y = f(X)
    return f(X @ Y) @ Y + X


CHAINS = [on_its_output, with_its_output, times_its_output]
all_chains = pytest.mark.parametrize("chain", CHAINS, ids=lambda f: f.__name__)
# below and above the size from which C computes a rotation in one piece
all_sizes = pytest.mark.parametrize("n", [5, 33])
all_dtypes = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.complex128], ids=str
)


def setup(
    n: int, dtype: torch.dtype, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates with small angles, a cotangent and a direction."""
    X, G, E = torch.randn(3, n, n, dtype=dtype, generator=rng)
    return (X / n).requires_grad_(), G / n, E / n


def inner(X: Tensor, Y: Tensor) -> float:
    return float((X.conj() * Y).real.sum())


@pytest.mark.once
@all_dtypes
@all_sizes
@all_chains
@pytest.mark.parametrize("name", MAPS)
def test_the_first_gradient_of_a_chain(name, chain, n, dtype, rng):
    """The gradient agrees with differences, recorded or not, single or batched."""
    X, G, E = setup(n, dtype, rng)

    def f(X: Tensor) -> Tensor:
        return chain(MAPS[name], X)

    (plain,) = torch.autograd.grad(f(X), X, G)
    (recorded,) = torch.autograd.grad(f(X), X, G, create_graph=True)
    (many,) = torch.autograd.grad(
        f(X), X, torch.stack([G, 2 * G]), is_grads_batched=True
    )
    # a chain may be constant, as the one of reflections is
    size = max(float(plain.norm()), float(G.norm()))
    for other in (recorded.detach(), many[0], many[1] / 2):
        assert float((other - plain).norm()) <= 1e-12 * size
    with torch.no_grad():
        h = 1e-6
        slope = inner(G, (f(X + h * E) - f(X - h * E)) / (2 * h))
    assert abs(inner(plain, E) - slope) <= 1e-7 * size


@pytest.mark.once
@all_chains
@pytest.mark.parametrize("name", MAPS)
def test_the_second_gradient_of_a_chain(name, chain, rng):
    """The gradient of <g(X), E> is the derivative of g along E, by differences."""
    X, G, E = setup(33, torch.float64, rng)

    def gradient(X: Tensor) -> Tensor:
        return torch.autograd.grad(chain(MAPS[name], X), X, G, create_graph=True)[0]

    (second,) = torch.autograd.grad(gradient(X), X, E)
    h = 1e-5
    ahead, behind = (
        gradient((X + s * h * E).detach().requires_grad_()).detach() for s in (1, -1)
    )
    slope = (ahead - behind) / (2 * h)
    assert float((second - slope).norm()) <= 1e-6 * max(float(second.norm()), 1.0)


@all_sizes
@all_dtypes
@pytest.mark.parametrize("name", MAPS)
def test_results_can_be_changed_in_place(name, dtype, n, rng):
    """A result can be changed in place, as results of `torch.linalg` can.

    `expm_skew(A).mul_(2)` used to raise.
    """
    X, G, _ = setup(n, dtype, rng)
    Y = MAPS[name](X)
    (expected,) = torch.autograd.grad(Y, X, 2 * G)
    (gradient,) = torch.autograd.grad(MAPS[name](X).mul_(2), X, G)
    # an overwritten row has no gradient
    (rest,) = torch.autograd.grad(MAPS[name](X).index_fill_(0, ROW, 0.0), X, G)
    G[0] = 0
    (expected_rest,) = torch.autograd.grad(MAPS[name](X), X, G)
    assert_close(gradient, expected)
    assert_close(rest, expected_rest)


@pytest.mark.parametrize("function", ["expm_skew", "rotation"])
@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_hooks_that_unpack_with_other_strides(batch, n, function, rng):
    """Saved tensors may come back with other strides, as from hooks that use a file.

    `expm_skew` used to raise at `view`.
    """
    X = torch.randn(*batch, n, n, dtype=torch.float64, generator=rng) / n
    X.requires_grad_()
    G = torch.randn(X.shape, dtype=torch.float64, generator=rng)

    def f(X: Tensor) -> Tensor:
        return rotation(X, None) if function == "rotation" else expm_skew(skew(X))

    def unpack(X: Tensor) -> Tensor:
        # the old values, with the memory layout of the transpose
        return X.mT.contiguous().mT if X.ndim >= 2 else X

    (expected,) = torch.autograd.grad(f(X), X, G)
    with torch.autograd.graph.saved_tensors_hooks(lambda X: X, unpack):
        (g,) = torch.autograd.grad(f(X), X, G)
        (recorded,) = torch.autograd.grad(f(X), X, G, create_graph=True)
    assert_close(g, expected)
    assert_close(recorded, expected)
