"""The scan, in C and in torch's operations, against one sequence after the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from isometry._backend import TimeSteps
from isometry._backend.constants import SIGMAS, SigmaName
from isometry._backend.nonlinearities import NONLINEARITIES, Sigma
from isometry.nn._scan import Weights, scan, unrolled
from isometry.nn._sequence import Pass
from tests.helpers import eps, random_unitary

REAL = [torch.float32, torch.float64]
SIZES = {
    "equal": (4,) * 9,
    "varied": (5, 5, 4, 4, 2, 1),
    "batch of one": (1,) * 20,
    "one step": (3,),
}
# `last_only` and `chunk`; a chunk may be longer than the sequence
MODES = [(False, None), (True, None), (True, 1), (True, 4), (True, 50)]

N, INPUTS = 6, 3
# the epsilon of smooth modReLU
EPSILON = 0.1


@dataclass(frozen=True)
class Problem:
    """The arguments of a scan."""

    x: Tensor
    T: Tensor
    W: Tensor
    b: Tensor
    h0: Tensor
    steps: TimeSteps
    sigma: SigmaName

    def run(self, how=scan, *, last_only=False, chunk=None) -> list[Tensor]:
        """The outputs of a scan that are not None."""
        run = Pass(self.steps, last_only, chunk)
        weights = Weights(self.T, self.W, self.b, Sigma(self.sigma, EPSILON))
        return [H for H in how(self.x, weights, self.h0, run) if H is not None]

    @property
    def inputs(self) -> list[Tensor]:
        """The arguments that require a gradient."""
        all_five = (self.x, self.T, self.W, self.b, self.h0)
        return [X for X in all_five if X.requires_grad]


def problem(
    sigma: SigmaName,
    sizes: tuple[int, ...],
    *,
    rng: torch.Generator,
    dtype: torch.dtype = torch.float64,
    indices: bool = False,
    n: int = N,
    inputs: int = INPUTS,
) -> Problem:
    """Random arguments, with a W for which states neither fade nor explode."""
    steps = TimeSteps(sizes)

    def randn(*shape: int, scale: float = 1.0) -> Tensor:
        X = scale * torch.randn(*shape, dtype=torch.float64, generator=rng)
        return X.to(dtype).requires_grad_()

    W = random_unitary(n, dtype=dtype, rng=rng).requires_grad_()
    x = randn(steps.rows, inputs)
    if indices:
        x = torch.randint(inputs, (steps.rows,), generator=rng)
    share = NONLINEARITIES[sigma].threshold or 1
    b = randn(int(share * n), scale=0.3)
    return Problem(x, randn(n, inputs), W, b, randn(steps.batch, n), steps, sigma)


def rectified(z: Tensor, b: Tensor, sigma: SigmaName) -> Tensor:
    """The nonlinearity of one vector, by its definition."""
    if sigma == "identity":
        return z + b
    if sigma == "tanh":
        return torch.tanh(z + b)
    if sigma == "relu":
        return torch.clamp(z + b, min=0)
    if sigma == "leaky_relu":
        return torch.clamp(z + b, min=0) + 0.1 * torch.clamp(z + b, max=0)
    if sigma == "modrelu":
        return torch.where(z > 0, 1.0, -1.0) * torch.clamp(z.abs() + b, min=0)
    pairs, epsilon = z.view(-1, 2), EPSILON if sigma == "smooth_modrelu" else 0.0
    m = (pairs.square().sum(-1, keepdim=True) + epsilon).sqrt()
    return (pairs / (m + epsilon) * torch.clamp(m + b[:, None], min=0)).flatten()


def twin(p: Problem) -> list[Tensor]:
    """All states and the last ones, one sequence and one time step at a time."""
    H: list[Tensor] = [torch.empty(0)] * p.steps.rows
    last = []
    for i in range(p.steps.batch):
        h = p.h0[i]
        for start, size in zip(p.steps.starts, p.steps.sizes, strict=False):
            if i < size:
                x = p.x[start + i]
                u = p.T @ x if x.is_floating_point() else p.T[:, x]
                H[start + i] = h = rectified(p.W @ h + u, p.b, p.sigma)
        last.append(h)
    return [torch.stack(H), torch.stack(last)]


def cotangents(outputs: list[Tensor], rng: torch.Generator) -> list[Tensor]:
    return [torch.randn(H.shape, dtype=H.dtype, generator=rng) for H in outputs]


def distance(result: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The relative error, in the norm of all tensors together."""
    with torch.no_grad():
        X, Y = (torch.cat([Z.flatten() for Z in side]) for side in (result, expected))
        return float(torch.dist(X, Y) / torch.linalg.norm(Y))


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_values_and_gradients_are_those_of_the_twin(sigma, sizes, dtype, engine, rng):
    """h_t = sigma(W h_{t-1} + T x_t), and the gradient of every input.

    `unrolled`, which serves the transforms, is compared too.
    """
    # Twice the worst over 600 draws: 189 for both complex modReLUs, whose slope is
    # large across a number near zero, and 11.6 for the others (relu).
    tol = (400 if NONLINEARITIES[sigma].threshold == 0.5 else 24) * eps(dtype)
    calls = [*((scan, mode) for mode in MODES), *((unrolled, m) for m in MODES[:2])]
    for indices in (False, True):
        p = problem(sigma, sizes, rng=rng, dtype=dtype, indices=indices)
        outputs = twin(p)
        cotangent = cotangents(outputs, rng)
        for how, (last_only, chunk) in calls:
            result = p.run(how, last_only=last_only, chunk=chunk)
            expected, G = (X[1:] if last_only else X for X in (outputs, cotangent))
            assert distance(result, expected) <= tol
            gradients = torch.autograd.grad(result, p.inputs, G)
            expected_gradients = torch.autograd.grad(
                expected, p.inputs, G, retain_graph=True
            )
            assert distance(gradients, expected_gradients) <= tol


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("sizes", [(200,) * 7, (300, 300, 299, 100, 1)], ids=str)
def test_many_rows(sizes, dtype, engine, rng):
    """More rows than the gradient of W gathers at once: 512 in C, 8 steps in torch."""
    p = problem("modrelu", sizes, rng=rng, dtype=dtype)
    result, expected = p.run(), p.run(unrolled)
    G = cotangents(expected, rng)
    gradients = torch.autograd.grad(result, p.inputs, G)
    expected_gradients = torch.autograd.grad(expected, p.inputs, G)
    # 10: twice the worst over 100 seeds, 4.6
    assert distance(gradients, expected_gradients) <= 10 * eps(dtype)


@pytest.mark.parametrize("inputs", [64, 65, 1000])
def test_indices_are_one_hot_vectors(inputs, engine, rng):
    """T e_i is column i; many classes take another path in the gradient than few."""
    p = problem("tanh", (5, 5, 3), rng=rng, indices=True, inputs=inputs)
    hot = torch.nn.functional.one_hot(p.x, inputs).double()
    q = replace(p, x=hot)
    result, expected = p.run(), q.run()
    G = cotangents(expected, rng)
    assert_close(result, expected)
    gradients = torch.autograd.grad(result, p.inputs, G)
    assert_close(gradients, torch.autograd.grad(expected, q.inputs, G))


def strided(X: Tensor) -> Tensor:
    """Copy a tensor to memory with gaps between its numbers."""
    far = X.new_empty(*X.shape, 2)
    far[..., 0] = X.detach()
    return far[..., 0].requires_grad_(X.requires_grad)


@pytest.mark.parametrize("sizes", [SIZES["equal"], SIZES["varied"]], ids=str)
def test_strides_do_not_matter(sizes, engine, rng):
    """Strides of inputs and of incoming gradients do not matter."""
    p = problem("tanh", sizes, rng=rng)
    names = ("x", "T", "W", "b", "h0")
    q = replace(p, **{name: strided(getattr(p, name)) for name in names})
    assert not q.W.is_contiguous()
    result, expected = q.run(), p.run()
    G = cotangents(expected, rng)
    assert_close(result, expected, rtol=0, atol=0)
    gradients = torch.autograd.grad(result, q.inputs, [strided(g) for g in G])
    assert_close(gradients, torch.autograd.grad(expected, p.inputs, G), rtol=0, atol=0)


def test_gradient_of_a_sum(engine, rng):
    """The gradient of a sum is one number for all entries: its strides are 0."""
    p = problem("modrelu", SIZES["equal"], rng=rng)
    gradients = torch.autograd.grad(p.run()[0].sum(), p.inputs)
    expected = torch.autograd.grad(p.run(unrolled)[0].sum(), p.inputs)
    assert_close(gradients, expected)


@pytest.mark.parametrize("name", ["x", "T", "W", "b", "h0"])
def test_one_gradient_alone(name, engine, rng):
    """If all inputs but one are frozen, its gradient is the same."""
    p = problem("modrelu", SIZES["varied"], rng=rng)
    frozen = replace(
        p,
        **{k: getattr(p, k).detach() for k in ("x", "T", "W", "b", "h0")}
        | {name: getattr(p, name)},
    )
    (gradient,) = torch.autograd.grad(frozen.run()[0].sum(), frozen.inputs)
    (expected,) = torch.autograd.grad(p.run()[0].sum(), getattr(p, name))
    assert_close(gradient, expected)


def test_without_gradients_there_is_no_graph(engine, rng):
    p = problem("modrelu", SIZES["varied"], rng=rng)
    expected = p.run()
    with torch.no_grad():
        result = p.run()
    with torch.inference_mode():
        assert_close(p.run(), expected)
    assert not result[0].requires_grad
    assert_close(result, expected)


@pytest.mark.parametrize("which", [0, 1], ids=["all states", "last states"])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_one_output_alone(sigma, which, engine, rng):
    """A loss may read all states or only the last ones."""
    p = problem(sigma, SIZES["varied"], rng=rng)
    expected = twin(p)
    G = cotangents(expected, rng)
    gradients = torch.autograd.grad(p.run()[which], p.inputs, G[which])
    assert_close(gradients, torch.autograd.grad(expected[which], p.inputs, G[which]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_what_is_not_finite_stays_with_its_sequence(sigma, value, engine, rng):
    """NaN or infinity reaches the gradient, and later states of its own sequence."""
    p = problem(sigma, (3,) * 5, rng=rng)
    x = p.x.detach().clone()
    # Time step 1 of sequence 2. The sign makes the first entry of T x positive, which
    # relu keeps.
    x[3 + 2, 0] = math.copysign(value, p.T[0, 0].item())
    q = replace(p, x=x.requires_grad_())
    result, expected = q.run(), q.run(unrolled)
    assert_close(result, expected, equal_nan=True)
    clean = p.run()
    states, before = (H[0].unflatten(0, (5, 3)) for H in (result, clean))
    assert_close(states[:, :2], before[:, :2])
    assert_close(states[0], before[0])
    # tanh of infinity is one
    if sigma != "tanh" or math.isnan(value):
        assert not states[1, 2].isfinite().all()
        (dW,) = torch.autograd.grad(result[0].sum(), q.W)
        assert not dW.isfinite().all()


@pytest.mark.parametrize("name", ["W", "b", "h0", "T"])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_nan_in_a_parameter_is_seen(sigma, name, engine, rng):
    """NaN in a parameter reaches the states, even at a state of zero.

    modReLU keeps zero, and NaN thresholds used to vanish there.
    """
    p = problem(sigma, (3,) * 2, rng=rng)
    zero = replace(p, x=torch.zeros_like(p.x), h0=torch.zeros_like(p.h0))
    with torch.no_grad():
        broken = replace(zero, **{name: getattr(p, name) * math.nan})
        assert broken.run()[1].isnan().all()


@pytest.mark.parametrize("sigma", ["relu", "modrelu", "complex_modrelu"])
def test_gradients_at_a_state_of_zero(sigma, engine, rng):
    """Gradients at a state of zero are zero, whatever the threshold is."""
    p = problem(sigma, (3,) * 2, rng=rng)
    p = replace(
        p,
        x=torch.zeros_like(p.x).requires_grad_(),
        h0=torch.zeros_like(p.h0).requires_grad_(),
        b=torch.zeros_like(p.b).requires_grad_() if sigma == "relu" else p.b,
    )
    H = p.run()[0]
    assert not H.any()
    assert not any(g.any() for g in torch.autograd.grad(H.sum(), p.inputs))


@pytest.mark.parametrize("threshold", [-0.01, 0.0, 0.01])
def test_smooth_modrelu_has_a_gradient_at_zero(threshold, engine):
    """At zero, the derivative is max(sqrt(eps) + b, 0) / (sqrt(eps) + eps).

    A state of zero may come from a unit that is off or from z = 0.
    """
    epsilon = 1e-5
    z = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    b = torch.full((2,), threshold, dtype=torch.float64)
    eye, off = torch.eye(4, dtype=torch.float64), torch.zeros_like(z.detach())
    sigma = Sigma("smooth_modrelu", epsilon)
    weights = Weights(eye, torch.zeros_like(eye), b, sigma)
    H, _ = scan(z, weights, off, Pass(TimeSteps((1,))))
    assert H is not None
    assert not H.any()
    G = torch.tensor([[1.0, -2.0, 3.0, 0.5]], dtype=torch.float64)
    (dz,) = torch.autograd.grad(H, z, G)
    m = math.sqrt(epsilon)
    assert_close(dz, G * (max(m + threshold, 0) / (m + epsilon)))


@pytest.mark.parametrize("size", [1e-4, 1e-8, 1e-12])
def test_complex_modrelu_near_zero(size, engine, rng):
    """Across h, the gradient is |h| / |z|, but at most 1 / eps.

    If it would be larger, |z| = |h| - b is lost to rounding. The gradient used to be
    NaN in float32, for |z| of 1e-9 and a threshold of 0.01.
    """
    n, dtype = 64, torch.float32
    z = (size * torch.randn(1, n, dtype=dtype, generator=rng)).requires_grad_()
    b = torch.full((n // 2,), 0.01)
    weights = Weights(torch.eye(n), torch.zeros(n, n), b, Sigma("complex_modrelu"))
    H, _ = scan(z, weights, torch.zeros(1, n), Pass(TimeSteps((1,))))
    assert H is not None
    (dz,) = torch.autograd.grad(H, z, torch.ones(1, n))
    assert dz.isfinite().all()
    assert dz.abs().max() <= 2 / eps(dtype)
    if size == 1e-4:
        wide = z.detach().double().requires_grad_()
        m = wide.view(-1, 2).square().sum(-1, keepdim=True).sqrt()
        h = wide.view(-1, 2) / m * (m + 0.01)
        (expected,) = torch.autograd.grad(h.sum(), wide)
        # |z| = |h| - b has an error of eps b, and the gradient is about b / |z|
        bound = eps(dtype) * (0.01 / m.detach()) ** 2
        error = (dz.double() - expected).view(-1, 2).abs()
        # twice the worst over 300 seeds, 2.1
        assert (error <= 4.2 * bound).all()


def test_fading_gradients_end_at_zero(engine, rng):
    """A gradient that decays like 0.5^t may become zero only where it is subnormal."""
    T = 200
    x = torch.zeros(T, N)
    h0 = torch.ones(1, N, requires_grad=True)
    weights = Weights(torch.eye(N), 0.5 * torch.eye(N), torch.zeros(N), Sigma("relu"))
    for steps in (T, 100):
        H, last = scan(x[:steps], weights, h0, Pass(TimeSteps.equal(steps, 1)))
        assert H is not None
        tiny = torch.finfo(torch.float32).tiny
        exact = 0.5 ** torch.arange(1, steps + 1, dtype=torch.float64)
        # tiny: the smallest number that is not subnormal
        assert (H[:, 0] - exact).abs().max() < tiny
        (dh0,) = torch.autograd.grad(last.sum(), h0)
        assert (dh0.double() - 0.5**steps).abs().max() < tiny
    # the processor's mode for subnormal numbers is restored
    assert torch.tensor(1e-40) * 1 > 0


@pytest.mark.parametrize("sigma", ["relu", "modrelu"])
def test_an_infinite_gradient_stops_at_a_unit_that_is_off(sigma, engine):
    """At a state of zero, an infinite gradient becomes zero, not inf * 0 as it did."""
    T, W, b = torch.eye(2), torch.eye(2), torch.tensor([-1.0, -1.0])
    x = torch.tensor([[0.5, 3.0]], requires_grad=True)
    run = Pass(TimeSteps.equal(1, 1), last_only=True)
    _, last = scan(x, Weights(T, W, b, Sigma(sigma)), torch.zeros(1, 2), run)
    assert last[0].tolist() == [0.0, 2.0]
    (dx,) = torch.autograd.grad(last, x, torch.tensor([[math.inf, 1.0]]))
    assert dx[0].tolist() == [0.0, 1.0]
