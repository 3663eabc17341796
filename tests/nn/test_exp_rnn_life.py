"""The life of an ExpRNN: it starts, trains, moves its base and is saved."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import isometry
from isometry.nn import ExpRNN
from tests.helpers import eps, new_generator

MAPS = ["exp", "cayley", "pade-3"]


def angles(layer: ExpRNN) -> Tensor:
    """The entry of A below the diagonal in each plane."""
    W = layer.cells[0].weight_hh.detach()
    A = isometry.linalg.logm_unitary(W)
    return A[1::2, ::2].diagonal()


def worst_cell_defect(layer: ExpRNN) -> float:
    """||W^H W - I||_F of the worst cell."""
    defects = []
    for cell in layer.cells:
        W = cell.weight_hh.detach()
        eye = torch.eye(len(W), dtype=W.dtype)
        defects.append(float(torch.dist(W.mH @ W, eye)))
    return max(defects)


def train(model: nn.Module, x: Tensor, steps: int, lr: float = 1e-2) -> list[float]:
    """Train a model to end in a fixed state; return the losses."""
    target = torch.linspace(-1, 1, model.hidden_size)
    optimizer = torch.optim.RMSprop(isometry.param_groups(model, lr=lr))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x)[1][-1] - target).abs().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("n", [400, 401])
@pytest.mark.parametrize("init", ["henaff", "cayley"])
def test_recurrent_weight_starts_as_in_the_paper(init, n):
    """W is exp of a matrix with 2 x 2 blocks ((0, -theta), (theta, 0)).

    For "henaff", theta is uniform in (-pi, pi). For "cayley", |theta| is tan(u / 2),
    with u uniform in (0, pi / 2).
    """
    layer = ExpRNN(1, n, init=init, dtype=torch.float64)
    W = layer.cells[0].weight_hh.detach()
    blocks = torch.block_diag(
        *[torch.ones(2, 2)] * (n // 2), *[torch.ones(1, 1)] * (n % 2)
    )
    assert not W[blocks == 0].any()
    if n % 2:
        assert W[-1, -1] == 1
    theta = angles(layer)
    u = theta / math.pi if init == "henaff" else 2 * torch.atan(theta).abs() / math.pi
    low, high = (-1, 1) if init == "henaff" else (0, 0.5)
    assert low < u.min()
    assert u.max() < high
    # Kolmogorov and Smirnov: 2.5 / sqrt(200) is exceeded by one seed in 130,000
    place = ((u.sort().values - low) / (high - low)) - torch.arange(200) / 200
    assert place.abs().max() < 2.5 / math.sqrt(200)


def test_other_weights_start_as_in_the_paper():
    """T is normal of deviation sqrt(2 / d), b uniform in (-0.01, 0.01), h0 zero."""
    cell = ExpRNN(50, 400, train_h0=True).cells[0]
    T, b = cell.weight_ih.detach(), cell.bias.detach()
    # 5 standard deviations of the estimates
    assert abs(float(T.std()) - math.sqrt(2 / 50)) < 5 * 0.2 / math.sqrt(2 * T.numel())
    assert abs(float(T.mean())) < 5 * 0.2 / math.sqrt(T.numel())
    assert b.abs().max() < 0.01
    assert float(b.std()) == pytest.approx(0.01 / math.sqrt(3), rel=0.15)
    assert not cell.h0.any()
    summand = ExpRNN(50, 400, 1, "tanh").cells[0].bias
    assert not summand.any()


def test_the_generator_decides_the_recurrent_weight():
    def drawn(seed: int) -> Tensor:
        generator = new_generator(seed)
        return ExpRNN(2, 6, generator=generator).cells[0].weight_hh.detach()

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize(("d", "n", "k"), [(1, 170, 10), (1, 512, 10), (10, 190, 9)])
def test_number_of_parameters_is_the_papers(d, n, k):
    """A layer has n (n - 1) / 2 + n d + n numbers, and an output layer has n k + k."""
    layer = ExpRNN(d, n)
    plain = [
        p.numel() for name, p in layer.named_parameters() if "original" not in name
    ]
    free = isometry.groups.SO(n).dimension
    paper = {170: 16_415, 512: 136_970, 190: 21_764}
    assert free + sum(plain) == n * (n - 1) // 2 + n * d + n
    assert free + sum(plain) + n * k + k == paper[n]


@pytest.mark.parametrize("unitary", [False, True])
@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize(
    "base", [{}, {"rebase_every": 3}, {"rebase_radius": 0.5}], ids=str
)
def test_stays_orthogonal_and_learns(base, retraction, unitary, rng):
    """Training reduces the loss and keeps W orthogonal, with either kind of base."""
    layer = ExpRNN(
        2, 8, 2, unitary=unitary, retraction=retraction, train_h0=True, **base
    )
    x = torch.randn(12, 4, 2, generator=rng)
    before = [p.detach().clone() for p in layer.parameters()]
    losses = train(layer, x, 20)
    # the worst of 10 seeds was 0.017
    assert losses[-1] < 0.1 * losses[0]
    assert all(
        not torch.equal(p, q) for p, q in zip(layer.parameters(), before, strict=True)
    )
    # 25: twice the worst over 10 seeds, 12.4
    assert worst_cell_defect(layer) <= 25 * eps(torch.float32)
    constraint = layer.cells[0].parametrizations.weight_hh[0]
    assert (constraint.base is None) == (not base)


@pytest.mark.parametrize("base", [{"rebase_every": 1}, {"rebase_radius": 1.0}], ids=str)
def test_a_moving_base_moves(base, rng):
    """Moving the base keeps the weight, and sets its coordinates to zero."""
    layer = ExpRNN(2, 8, **base)
    x = torch.randn(12, 4, 2, generator=rng)
    X = layer.cells[0].parametrizations.weight_hh.original
    with torch.no_grad():
        X.copy_(torch.randn(8, 8, generator=rng))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    before = layer(x)[0]
    before.sum().backward()
    optimizer.step()
    assert not X.any()
    # rounding of a new base, in twelve steps. 22: twice the worst over 60 seeds, 11
    atol = 22 * eps(x.dtype) * float(before.detach().abs().max())
    assert_close(layer(x)[0], before, rtol=0, atol=atol)


def test_trained_first_states_are_those_of_hx(rng):
    """A learned initial state acts as `hx`: one vector per cell, for all sequences."""
    layer = ExpRNN(2, 5, 2, bidirectional=True, train_h0=True)
    for cell in layer.cells:
        nn.init.normal_(cell.h0)
    x = torch.randn(6, 3, 2, generator=rng)
    hx = torch.stack([cell.h0.expand(3, -1) for cell in layer.cells])
    assert_close(layer(x), layer(x, hx))
    layer(x)[0].sum().backward()
    assert all(cell.h0.grad.any() for cell in layer.cells)


@pytest.mark.parametrize(
    "options",
    [{}, {"unitary": True}, {"rebase_every": 2}, {"bias": False, "train_h0": True}],
    ids=str,
)
def test_checkpoints(options, rng):
    """A state loads into a new layer, a deepcopy, and a layer made on `meta`."""
    layer = ExpRNN(2, 5, 2, bidirectional=True, **options)
    x = torch.randn(6, 3, 2, generator=rng)
    layer(x)[0].abs().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    fresh = ExpRNN(2, 5, 2, bidirectional=True, **options)
    empty = ExpRNN(2, 5, 2, bidirectional=True, device="meta", **options)
    assert all(p.is_meta for p in empty.parameters())
    copied = copy.deepcopy(layer)
    state = layer.state_dict()
    fresh.load_state_dict(state, strict=True)
    empty.to_empty(device="cpu").load_state_dict(state, strict=True)
    assigned = ExpRNN(2, 5, 2, bidirectional=True, device="meta", **options)
    assigned.load_state_dict(state, assign=True)
    expected = layer(x)
    for other in (copied, fresh, empty, assigned):
        assert_close(other(x), expected, rtol=0, atol=0)
    # a copy has parameters of its own
    with torch.no_grad():
        copied.cells[0].weight_ih.zero_()
    assert_close(layer(x), expected, rtol=0, atol=0)


def test_folded_it_computes_the_same(rng):
    layer = ExpRNN(2, 5, 2, bidirectional=True)
    x = torch.randn(6, 3, 2, generator=rng)
    before = layer(x)
    isometry.fold(layer)
    assert set(dict(layer.named_parameters())) == {
        f"cells.{i}.{name}"
        for i in range(4)
        for name in ("weight_ih", "weight_hh", "bias")
    }
    assert_close(layer(x), before, rtol=0, atol=0)


def test_evaluation_first_and_training_after(engine, rng):
    """A first call in inference mode, or on another default device, leaves no trace.

    Training used to raise "Inference tensors cannot be saved for backward".
    """
    layer = ExpRNN(2, 5, bidirectional=True, last_only=True)
    x = torch.randn(11, 3, 2, generator=rng)
    with torch.inference_mode():
        expected = layer(x)[0].clone()
    with torch.device("meta"):
        ExpRNN(2, 5, bidirectional=True)(torch.empty(11, 3, 2))
    out = layer(x)[0]
    out.sum().backward()
    assert_close(out, expected)


def test_under_autocast_inputs_are_cast(engine, rng):
    """Inside autocast states are computed in the dtype of the parameters."""
    layer, x = ExpRNN(2, 5, 2), torch.randn(6, 3, 2, generator=rng)
    narrow = x.bfloat16()
    expected = layer(narrow.float(), torch.ones(2, 3, 5))
    with torch.autocast("cpu", torch.bfloat16):
        result = layer(narrow, torch.ones(2, 3, 5, dtype=torch.bfloat16))
        assert_close(layer(x)[0], layer(x, torch.zeros(2, 3, 5))[0])
    assert result[0].dtype == torch.float32
    assert_close(result, expected, rtol=0, atol=0)
    result[0].sum().backward()


def test_in_half_precision(rng):
    """Coordinates stay in float32; all else is bfloat16, and so are the states."""
    layer = ExpRNN(2, 8)
    x = torch.randn(6, 3, 2, generator=rng)
    expected = layer(x)[0]
    layer.to(torch.bfloat16)
    out, last = layer(x.bfloat16())
    assert out.dtype == last.dtype == torch.bfloat16
    # 2: twice the worst over 20 seeds, 0.96
    bound = 2 * eps(torch.bfloat16) * expected.norm()
    assert torch.dist(out.float(), expected) <= bound
    out.sum().backward()
    X = layer.cells[0].parametrizations.weight_hh.original
    assert X.dtype == torch.float32
    assert X.grad.isfinite().all()


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("eager", {}),
        ("aot_eager", {"num_layers": 2, "bidirectional": True}),
        ("aot_eager", {"unitary": True, "last_only": True, "chunk": 2}),
    ],
    ids=str,
)
def test_compiled_it_is_one_graph_that_trains(backend, options, rng):
    torch._dynamo.reset()
    layer = ExpRNN(2, 4, **options)
    x = torch.randn(4, 3, 2, generator=rng)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    gradients = []
    for model in (compiled, layer):
        layer.zero_grad()
        out = model(x)
        (out[0].abs().square().sum() + out[1].abs().sum()).backward()
        gradients.append([*out, *(p.grad.clone() for p in layer.parameters())])
    for gradient, expected in zip(*gradients, strict=True):
        # twice the worst over 25 seeds: the graph uses torch's operations instead of C
        atol = 7.5e-6 * float(expected.detach().abs().max())
        assert_close(gradient, expected, rtol=0, atol=atol)


@pytest.mark.usefixtures("no_shape_hook")
def test_compiled_with_indices(rng):
    torch._dynamo.reset()
    layer = ExpRNN(10, 4)
    x = torch.randint(10, (4, 3), generator=rng)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert_close(compiled(x), layer(x))


def test_a_batch_of_layers(rng):
    """torch.func: one call computes an ensemble, and gradients of each member."""
    layers = [ExpRNN(2, 4, dtype=torch.float64) for _ in range(3)]
    x = torch.randn(5, 2, 2, dtype=torch.float64, generator=rng)
    for layer in layers:
        isometry.fold(layer)
    parameters, _ = torch.func.stack_module_state(layers)

    def loss(state: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layers[0], state, (x,))[0].square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(parameters)
    for i, layer in enumerate(layers):
        expected = torch.autograd.grad(
            layer(x)[0].square().sum(), list(layer.parameters())
        )
        for (name, _), g in zip(layer.named_parameters(), expected, strict=True):
            assert_close(gradients[name][i], g)


def test_gradients_of_any_order(engine, rng):
    """A penalty on the gradient of the input trains the layer."""
    layer = ExpRNN(2, 4, nonlinearity="tanh", dtype=torch.float64)
    x = torch.randn(4, 2, 2, dtype=torch.float64, generator=rng).requires_grad_()
    parameters = dict(layer.named_parameters())

    def penalty(*values: Tensor) -> Tensor:
        # gradcheck writes through `.data`, which a cached weight cannot see
        state = {k: X.clone() for k, X in zip(parameters, values, strict=True)}
        out = torch.func.functional_call(layer, state, (x,))[0]
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return g.square().sum()

    assert torch.autograd.gradcheck(penalty, tuple(parameters.values()), fast_mode=True)
