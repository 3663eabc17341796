"""The contenders of each suite: our functions, layers and optimizers, and peers."""

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import isometry
from isometry import optim
from isometry.groups import O, Stiefel
from isometry.lab import bench
from isometry.lab.bench.timing import Call, Suite, random_skew, unit_cotangent
from isometry.linalg import expm_skew
from isometry.nn import ExpRNN, ModReLU


def both_passes(function: Callable[[Tensor], Tensor], X: Tensor, G: Tensor) -> Call:
    """A forward and backward pass of a function at X, for the cotangent G."""
    X = X.clone().requires_grad_()
    return lambda: torch.autograd.grad(function(X), X, G)


def parametrized(A: Tensor, G: Tensor, name: str) -> Call:
    """A forward and backward pass of a peer's parametrization at the coordinates A.

    Torch's parametrizations are created without a base, so that only the map is timed.
    """
    plain = nn.Module()
    plain.weight = nn.Parameter(torch.linalg.qr(A)[0])
    options = {} if name == bench.GEOTORCH else {"use_trivialization": False}
    # torch adds `parametrizations` at run time, where type checkers cannot see it
    layer: Any = constrain_as(plain, name, **options).to(A.device)
    original = layer.parametrizations.weight.original
    with torch.no_grad():
        original.copy_(A.tril(-1))
    return lambda: torch.autograd.grad(layer.weight, original, G)


def exponential(n: int, device: torch.device) -> dict[str, Call]:
    """The suite "exponential": forward and backward pass at a skew matrix of norm 3."""
    A = random_skew(n, norm=3.0, dtype=torch.float32).to(device)
    G = unit_cotangent(A)
    # Time torch's `matrix_exp` alone, too, because the exponential parametrizations of
    # torch and geotorch call this function.
    functions = {bench.OURS: expm_skew, bench.TORCH_MATRIX_EXP: torch.linalg.matrix_exp}
    names = [bench.TORCH_EXP, bench.TORCH_CAYLEY, bench.TORCH_HOUSEHOLDER, *_geotorch()]
    calls = {name: both_passes(function, A, G) for name, function in functions.items()}
    return calls | {name: parametrized(A, G, name) for name in names}


def _geotorch() -> list[str]:
    """A list with the name of geotorch's contender; empty if it is not installed."""
    return [bench.GEOTORCH] if bench.installed("geotorch") else []


BATCH = 64

# Learning rate in the suites "layer" and "recurrent". The time of an exponential
# depends on the norm of its coordinates, so the coordinates should hardly change while
# steps are timed. At 1e-3, all timed steps together could change a coordinate by more
# than its absolute value.
RATE = 1e-6


def constrain_as(layer: nn.Module, name: str, **options: Any) -> nn.Module:
    """Make the weight of a layer orthogonal with the method of the contender `name`.

    The contender `UNCONSTRAINED` leaves the layer as it is.
    """
    maps = {
        bench.OURS: (isometry.orthogonal, "exp"),
        bench.OUR_CAYLEY: (isometry.orthogonal, "cayley"),
        bench.OUR_HOUSEHOLDER: (isometry.orthogonal, "householder"),
        bench.TORCH_EXP: (parametrizations.orthogonal, "matrix_exp"),
        bench.TORCH_CAYLEY: (parametrizations.orthogonal, "cayley"),
        bench.TORCH_HOUSEHOLDER: (parametrizations.orthogonal, "householder"),
    }
    if name == bench.GEOTORCH:
        importlib.import_module("geotorch").orthogonal(layer, "weight")
    elif name != bench.UNCONSTRAINED:
        register, orthogonal_map = maps[name]
        register(layer, orthogonal_map=orthogonal_map, **options)
    return layer


def orthogonal_linear(inputs: int, outputs: int, *, seed: int) -> nn.Linear:
    """A plain layer with a random orthogonal weight, the same for all contenders."""
    rng = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, generator=rng)
    nn.init.zeros_(layer.bias)
    return layer


def layer_at(n: int, name: str, *, norm: float, seed: int = 0) -> nn.Module:
    """A square layer whose coordinates come from a random skew matrix of given norm.

    The norm is the spectral norm. Unconstrained and Householder layers have no skew
    matrix: their parameters keep their initial values.
    """
    # torch adds `parametrizations` at run time, where type checkers cannot see it
    layer: Any = constrain_as(orthogonal_linear(n, n, seed=seed), name)
    others = (bench.UNCONSTRAINED, bench.OUR_HOUSEHOLDER, bench.TORCH_HOUSEHOLDER)
    if name not in others:
        A = random_skew(n, norm=norm, dtype=torch.float32, seed=seed)
        with torch.no_grad():
            layer.parametrizations.weight.original.copy_(A.tril(-1))
    return layer


def data(batch: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Gaussian inputs (batch, inputs) and targets (batch, outputs)."""
    rng = torch.Generator().manual_seed(5544)
    x = torch.randn(batch, inputs, generator=rng)
    return x, torch.randn(batch, outputs, generator=rng)


def _step(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Call:
    """A function that makes one step of an optimizer."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def training_step(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """A function that makes one training step with Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    return _step(optimizer, lambda: nn.functional.mse_loss(model(x), y))


def layer(n: int, device: torch.device) -> dict[str, Call]:
    """The suite "layer": a training step; skew matrices have spectral norm 3."""
    names = [bench.OURS, bench.TORCH_EXP, bench.TORCH_CAYLEY, bench.TORCH_HOUSEHOLDER]
    names += [*_geotorch(), bench.UNCONSTRAINED]
    x, y = (tensor.to(device) for tensor in data(BATCH, n, n))
    layers = {name: layer_at(n, name, norm=3.0).to(device) for name in names}
    return {name: training_step(layer, x, y) for name, layer in layers.items()}


STEPS, CLASSES = 200, 10


def bare(steps: int, n: int, batch: int, device: torch.device | None = None) -> Call:
    """The matrix products of a recurrent layer, and nothing else.

    Each time step has one product in the forward pass and two in the backward pass.
    """
    h, out = torch.randn(2, batch, n, device=device)
    W = torch.linalg.qr(torch.randn(n, n, device=device))[0]
    dW = torch.empty_like(W)

    def products() -> None:
        for _ in range(steps):
            torch.mm(h, W, out=out)
        for _ in range(steps):
            torch.mm(h, W.mT, out=out)
            torch.mm(h.mT, out, out=dW)

    return products


class Loop(nn.Module):
    r"""A recurrent layer as a Python loop: $h_t = \sigma(W h_{t-1} + T x_t + b)$.

    Here $T$ is the input weight, $b$ is a bias, and $\sigma$ is modReLU.

    Args:
        n: dimension of the hidden state.
        name: the contender that makes $W$ orthogonal.
    """

    def __init__(self, n: int, name: str) -> None:
        super().__init__()
        self.input_map = nn.Linear(1, n)
        # type checkers do not know the type of a parametrized weight
        self.state_map: Any = constrain_as(orthogonal_linear(n, n, seed=0), name)
        self.activation = ModReLU(n)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """All hidden states and the last one, in the same shapes as from `nn.RNN`."""
        # read the weight once, since each access evaluates its parametrization
        W, u = self.state_map.weight, self.input_map(x)
        h, states = torch.zeros_like(u[0]), []
        for u_t in u:
            h = self.activation(h @ W.mT + u_t)
            states.append(h)
        return torch.stack(states), h[None]


def whole_step(layer: nn.Module, n: int, x: Tensor) -> Call:
    """A training step of a recurrent layer and a linear layer for classification."""
    head = nn.Linear(n, CLASSES, device=x.device)
    target = torch.randint(CLASSES, (x.shape[1],), device=x.device)
    parameters = [*layer.parameters(), *head.parameters()]

    def loss() -> Tensor:
        _, last = layer(x)
        return nn.functional.cross_entropy(head(last[0]), target)

    return _step(torch.optim.RMSprop(parameters, lr=RATE), loss)


def recurrent(n: int, device: torch.device) -> dict[str, Call]:
    """The suite "recurrent": a training step of each contender on a long sequence.

    torch and geotorch have no orthogonal recurrent layer, so their orthogonal weights
    are used in a Python loop. The contender `bench.UNCONSTRAINED` is our layer with a
    plain weight. The contender `bench.BARE` computes only the matrix products of a
    training step.
    """
    torch.manual_seed(5544)
    ours = ExpRNN(1, n, init="cayley")
    layers: dict[str, nn.Module] = {
        bench.OURS: ours,
        bench.UNCONSTRAINED: isometry.fold(copy.deepcopy(ours)),
        bench.TORCH_RNN: nn.RNN(1, n),
    }
    for name in (bench.TORCH_EXP, bench.TORCH_CAYLEY, *_geotorch()):
        layers[name] = Loop(n, name)
    x = torch.rand(STEPS, BATCH, 1, device=device)
    steps = {name: whole_step(layer.to(device), n, x) for name, layer in layers.items()}
    return steps | {bench.BARE: bare(STEPS, n, BATCH, device)}


CPU = torch.device("cpu")

# options of the optimizers that are timed, keyed by their update rules
OPTIONS: dict[str, Any] = {"SGD": {"lr": 1e-3, "momentum": 0.9}, "Adam": {"lr": 1e-3}}


def start(n: int, k: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random matrix (n, k) with orthonormal columns, contiguous in memory."""
    rng = torch.Generator().manual_seed(5544)
    Q, _ = torch.linalg.qr(torch.randn(n, k, generator=rng, dtype=dtype))
    return Q.contiguous()


def our_steps(n: int, k: int, rule: str, device: torch.device = CPU) -> dict[str, Call]:
    """A step of our optimizer with each retraction, keyed by the contender's name."""
    kind = getattr(optim, f"Riemannian{rule}")
    options = {"manifold": O(n) if n == k else Stiefel(n, k), **OPTIONS[rule]}
    steps: dict[str, Call] = {}
    for retraction in ("exp", "cayley", "qr"):
        p = _with_gradient(nn.Parameter(start(n, k).to(device)))
        optimizer = kind([p], retraction=retraction, **options)
        steps[f"isometry, {retraction}"] = optimizer.step
    return steps


def geoopt_steps(
    n: int, k: int, rule: str, device: torch.device = CPU
) -> dict[str, Call]:
    """A step of geoopt's optimizer with each metric, keyed by the contender's name."""
    # type checkers cannot analyse these classes, because a metaclass creates them
    geoopt: Any = importlib.import_module("geoopt")
    kind = getattr(geoopt.optim, f"Riemannian{rule}")
    steps: dict[str, Call] = {}
    for metric in ("canonical", "euclidean"):
        manifold = geoopt.Stiefel(canonical=metric == "canonical")
        p = geoopt.ManifoldParameter(start(n, k).to(device), manifold=manifold)
        optimizer = kind([_with_gradient(p)], **OPTIONS[rule])
        steps[f"geoopt, {metric}"] = optimizer.step
    return steps


def optimizers(n: int, device: torch.device) -> dict[str, Call]:
    """The suite "optimizers": SGD with momentum on square orthogonal matrices."""
    steps = our_steps(n, n, "SGD", device)
    if bench.installed("geoopt"):
        steps |= geoopt_steps(n, n, "SGD", device)
    p = _with_gradient(nn.Parameter(start(n, n).to(device)))
    steps[bench.UNCONSTRAINED] = torch.optim.SGD([p], **OPTIONS["SGD"]).step
    return steps


def _with_gradient(p: nn.Parameter) -> nn.Parameter:
    """Give a parameter a random gradient of norm about 1, and return the parameter."""
    G = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    p.grad = (G / p.numel() ** 0.5).to(p.device)
    return p


SUITES = {
    "exponential": Suite(
        title="forward + backward pass of an exponential, norm 3",
        note="The Cayley map and reflections are not exponentials; the Cayley map "
        "cannot reach the eigenvalue -1.",
        contenders=exponential,
    ),
    "layer": Suite(
        title=f"training step of an n x n layer, batch {BATCH}, Adam",
        note="The coordinates have norm 3, except for reflections, which keep their "
        "initial coordinates.",
        contenders=layer,
    ),
    "recurrent": Suite(
        title=f"training step over {STEPS} time steps, batch {BATCH}, RMSprop",
        note="isometry is ExpRNN. torch and geotorch have no such layer, so their "
        "weights are used in a Python loop.",
        contenders=recurrent,
        sizes=(64, 128, 256),
    ),
    "optimizers": Suite(
        title="step of SGD with momentum on n x n orthogonal matrices",
        note="The gradient is given, so this is the cost of the optimizer alone.",
        contenders=optimizers,
        ours="isometry, exp",
    ),
}
