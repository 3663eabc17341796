"""ExpLSTM and ExpGRU in the place of nn.LSTM and nn.GRU."""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.testing import assert_close

import isometry
from isometry.groups import Pade
from isometry.nn import ExpGRU, ExpLSTM, _gated
from tests.helpers import eps

DTYPE = torch.float64
# our layer, torch's layer, and the number of recurrent matrices
KINDS = {"LSTM": (ExpLSTM, nn.LSTM, 4), "GRU": (ExpGRU, nn.GRU, 3)}
OPTIONS = [
    dict(zip(("num_layers", "bidirectional", "batch_first"), values, strict=True))
    for values in itertools.product([1, 2], [False, True], [False, True])
]

both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(params=["torch's loop", "unrolled"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """torch's own loop, and the loop in ordinary operations for the transforms."""
    if request.param == "unrolled":
        monkeypatch.setattr(_gated, "needs_plain_operations", lambda *_: True)
    return request.param


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """One of our layers, and torch's layer with its weights."""
    ours, theirs, _ = KINDS[kind]
    layer = ours(3, 5, dtype=DTYPE, **options)
    other = theirs(3, 5, dtype=DTYPE, **options)
    directions = 2 if layer.bidirectional else 1
    state = {}
    for i, cell in enumerate(layer.cells):
        end = f"_l{i // directions}" + ("_reverse" if i % directions else "")
        state["weight_ih" + end] = cell.weight_ih
        state["weight_hh" + end] = cell.weight_hh.flatten(0, 1)
        if cell.bias is not None:
            state |= {"bias_ih" + end: cell.bias, "bias_hh" + end: 0 * cell.bias}
    other.load_state_dict(state)
    return layer, other


def randn(*shape: int, rng: torch.Generator) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, generator=rng)


def tensors(result: Any) -> list[Tensor]:
    """The tensors that a layer returns, in a flat list."""
    if isinstance(result, PackedSequence):
        return [result.data]
    if isinstance(result, tuple):
        return [X for part in result for X in tensors(part)]
    return [result]


@both
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_takes_and_gives_what_torchs_layer_does(kind, options, loop, rng):
    """Values and gradients agree with torch for all kinds of input and first states."""
    layer, other = pair(kind, **options)
    cells = len(layer.cells)
    x = randn(*((4, 7) if layer.batch_first else (7, 4)), 3, rng=rng)
    hx: Any = tuple(randn(cells, 4, 5, rng=rng).requires_grad_() for _ in "hc")
    one: Any = tuple(h[:, 0] for h in hx)
    hx, one = (hx, one) if kind == "LSTM" else (hx[0], one[0])
    sequences = [randn(T, 3, rng=rng) for T in (2, 5, 1, 5)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    kernels = [
        [p for name, p in model.named_parameters() if "weight_ih" in name]
        for model in (layer, other)
    ]
    for arguments in [
        (x,),
        (x, hx),
        (sequences[1],),
        (sequences[1], one),
        (packed, hx),
    ]:
        outputs, expected = layer(*arguments), other(*arguments)
        assert_close(tensors(outputs), tensors(expected))
        assert type(outputs[1]) is type(expected[1])
        gradients = []
        for result, parameters in zip((outputs, expected), kernels, strict=True):
            loss = sum(X.square().sum() for X in tensors(result))
            inputs = [*parameters, *tensors(hx)]
            gradients.append(torch.autograd.grad(loss, inputs, allow_unused=True))
        assert_close(gradients[0], gradients[1])


@both
def test_gradient_of_every_map_is_torchs(kind, loop, rng):
    """Each matrix has torch's gradient; (gates, n, n) becomes (gates * n, n)."""
    layer, other = pair(kind)
    isometry.fold(layer)
    x = pack_sequence([randn(T, 3, rng=rng) for T in (2, 5, 1)], enforce_sorted=False)
    for model in (layer, other):
        model(x)[0].data.square().sum().backward()
    cell = layer.cells[0]
    assert_close(cell.weight_hh.grad.flatten(0, 1), other.weight_hh_l0.grad)
    assert_close(cell.weight_ih.grad, other.weight_ih_l0.grad)
    assert_close(cell.bias.grad, other.bias_ih_l0.grad)


@both
def test_without_bias(kind, loop, rng):
    layer, other = pair(kind, bias=False)
    x = randn(7, 4, 3, rng=rng)
    assert_close(tensors(layer(x)), tensors(other(x)))
    assert not any("bias" in name for name, _ in layer.named_parameters())


@both
@pytest.mark.parametrize("retraction", ["exp", "cayley", "pade-3", Pade(2)])
@pytest.mark.parametrize("base", [{}, {"rebase_every": 3}], ids=str)
def test_each_map_is_orthogonal_after_training(kind, retraction, base, rng):
    """After training W_i^T W_i = I for each gate, and the loss has fallen."""
    layer = KINDS[kind][0](2, 6, 2, retraction=retraction, **base)
    x = torch.randn(9, 4, 2, generator=rng)
    before = [cell.weight_hh.detach().clone() for cell in layer.cells]
    optimizer = torch.optim.Adam(isometry.param_groups(layer, lr=0.05))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (layer(x)[0][-1] - torch.linspace(-0.5, 0.5, 6)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # the worst of 200 seeds was 0.23
    assert losses[-1] < 0.5 * losses[0]
    for cell, start in zip(layer.cells, before, strict=True):
        W = cell.weight_hh.detach()
        assert torch.dist(W, start) > 0.01
        # 30: twice the worst over 10 seeds, 14.2 (cayley)
        assert torch.dist(W.mT @ W, torch.eye(6).expand_as(W)) <= 30 * eps(W.dtype)
        assert (torch.linalg.det(W) > 0).all()


def jacobian(layer: Any, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """dh' / dh for one time step of one sequence."""

    def step(h: Tensor) -> Tensor:
        state: Any = (h[None], c[None]) if isinstance(layer, ExpLSTM) else h[None]
        return layer(x, state)[0][0]

    return torch.func.jacrev(step)(h)


@both
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_no_step_lets_gradients_explode(kind, size, rng):
    """The norm of a step's Jacobian obeys the bound of the docstring."""
    layer = KINDS[kind][0](3, 20, dtype=DTYPE)
    cell = layer.cells[0]
    with torch.no_grad():
        cell.weight_ih.mul_(size)
    worst = 0.0
    for _ in range(20):
        x, c = randn(1, 3, rng=rng), 3 * randn(20, rng=rng)
        h = torch.tanh(2 * randn(20, rng=rng))
        norm = float(torch.linalg.matrix_norm(jacobian(layer, x, h, c), 2).detach())
        free = c if kind == "LSTM" else cell.weight_hh[2].detach() @ h
        bound = (1.5 if kind == "LSTM" else 2) + float(free.abs().max()) / 4
        assert norm <= bound
        worst = max(worst, norm)
    # the bound is not trivial: the norm is not tiny
    assert worst > 0.2


def test_an_unbounded_map_breaks_the_bound(rng):
    """A matrix that is not orthogonal breaks the bound, so the test above can fail."""
    layer = isometry.fold(ExpLSTM(3, 20, dtype=DTYPE))
    with torch.no_grad():
        layer.cells[0].weight_hh.mul_(10)
    h, c = 0.01 * randn(20, rng=rng), 0.1 * randn(20, rng=rng)
    J = jacobian(layer, 0 * randn(1, 3, rng=rng), h, c)
    assert torch.linalg.matrix_norm(J, 2) > 1.5 + float(c.abs().max()) / 4


@both
def test_class_indices_are_one_hot_vectors(kind, rng):
    layer = KINDS[kind][0](10, 5, 2, dtype=DTYPE, batch_first=True)
    x = torch.randint(10, (4, 7), generator=rng)
    hot = nn.functional.one_hot(x, 10).to(DTYPE)
    results = []
    for one in (x, hot):
        out = layer(one)[0]
        gradients = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
        results.append([out, *gradients])
    assert_close(results[0], results[1])


@both
@pytest.mark.parametrize("n", [4, 5, 64])
def test_number_of_parameters(kind, n):
    """The number of parameters is k (n (n - 1) / 2 + n d + n) for k gates."""
    ours, _, gates = KINDS[kind]
    layer = ours(3, n)
    plain = sum(p.numel() for k, p in layer.named_parameters() if "original" not in k)
    free = gates * isometry.groups.SO(n).dimension
    assert free + plain == gates * (n * (n - 1) // 2 + 3 * n + n)


@both
def test_starts_as_torchs_layer_does(kind):
    """Input weight and bias are uniform in +-1 / sqrt(n); the gates' maps differ."""
    layer = KINDS[kind][0](50, 100)
    for parameter in (layer.cells[0].weight_ih, layer.cells[0].bias):
        values = parameter.detach()
        # a number close to the end of the range may be rounded to the end
        assert values.abs().max() <= torch.tensor(0.1)
        assert float(values.std()) == pytest.approx(0.1 / math.sqrt(3), rel=0.1)
    W = layer.cells[0].weight_hh.detach()
    # the distance of two random rotations is about sqrt(2 n)
    assert all(torch.dist(U, V) > 10 for U, V in itertools.combinations(W, 2))


@both
def test_checkpoints(kind, rng):
    """A state loads into a new layer, a deepcopy, and a layer made on `meta`."""
    ours = KINDS[kind][0]
    options = {"num_layers": 2, "bidirectional": True}
    layer, fresh = ours(3, 5, **options), ours(3, 5, **options)
    empty = ours(3, 5, device="meta", **options).to_empty(device="cpu")
    copied = copy.deepcopy(layer)
    fresh.load_state_dict(layer.state_dict(), strict=True)
    empty.load_state_dict(layer.state_dict(), strict=True)
    x = torch.randn(7, 4, 3, generator=rng)
    expected = tensors(layer(x))
    for other in (fresh, empty, copied):
        assert_close(tensors(other(x)), expected, rtol=0, atol=0)
    isometry.fold(layer)
    assert_close(tensors(layer(x)), expected, rtol=0, atol=0)


@both
def test_dropout_is_between_layers_in_training(kind, rng):
    """Dropout changes the last state of the top layer, but not of the bottom layer."""
    layer = KINDS[kind][0](3, 5, 2, dropout=0.5)
    x = torch.randn(7, 4, 3, generator=rng)
    first, second = (tensors(layer(x))[1] for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@both
def test_derivatives_are_those_of_differences(kind, loop, rng):
    """First and second derivatives through a packed sequence."""
    layer = isometry.fold(KINDS[kind][0](2, 3, dtype=DTYPE))
    names = [name for name, _ in layer.named_parameters()]
    sequences = [randn(T, 2, rng=rng) for T in (1, 3)]
    packed = pack_sequence(sequences, enforce_sorted=False)

    def call(x: Tensor, *values: Tensor) -> Tensor:
        state = dict(zip(names, values, strict=True))
        sequence = PackedSequence(x, *packed[1:])
        return torch.func.functional_call(layer, state, (sequence,))[0].data

    inputs = (packed.data.requires_grad_(), *layer.parameters())
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@both
def test_second_derivatives_in_float32(kind, rng):
    """In float32, where torch's loop is oneDNN's, second derivatives are right too."""
    wide = KINDS[kind][0](2, 4, dtype=DTYPE)
    layer = copy.deepcopy(wide).float()
    x = randn(6, 3, 2, rng=rng)
    results = []
    for model, dtype in ((layer, torch.float32), (wide, DTYPE)):
        leaf = x.to(dtype).requires_grad_()
        (g,) = torch.autograd.grad(model(leaf)[0].sum(), leaf, create_graph=True)
        second = torch.autograd.grad(g.square().sum(), list(model.parameters()))
        results.append([Y.to(DTYPE) for Y in (g, *second)])
    # 1e-5: a few eps of sums of some hundred terms of order one
    assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


@both
def test_transforms(kind, rng):
    """vmap agrees with a loop, and <G, J E> = <J^T G, E>."""
    layer = isometry.fold(KINDS[kind][0](2, 4, dtype=DTYPE))

    def call(x: Tensor) -> Tensor:
        return layer(x)[0]

    many = randn(3, 5, 2, 2, rng=rng)
    assert_close(torch.func.vmap(call)(many), torch.stack([call(x) for x in many]))
    x, E, G = many[0], many[1], randn(5, 2, 4, rng=rng)
    out, tangent = torch.func.jvp(call, (x,), (E,))[:2]
    pull_back: Any = torch.func.vjp(call, x)[1]
    assert_close(out, call(x))
    assert_close((G * tangent).sum(), (pull_back(G)[0] * E).sum())


@pytest.mark.usefixtures("no_shape_hook")
@both
def test_compiled_it_is_one_graph_that_trains(kind, rng):
    torch._dynamo.reset()
    layer = KINDS[kind][0](2, 4)
    x = torch.randn(2, 3, 2, generator=rng)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = []
    for model in (compiled, layer):
        layer.zero_grad()
        out = tensors(model(x))
        sum(X.square().sum() for X in out).backward()
        results.append([*out, *(p.grad.clone() for p in layer.parameters())])
    assert_close(results[0], results[1])


@both
def test_half_precision(kind, rng):
    """Autocast keeps the dtype of the parameters; `.to` makes everything bfloat16."""
    layer = KINDS[kind][0](3, 5)
    x = torch.randn(7, 4, 3, generator=rng).bfloat16()
    expected = layer(x.float())[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(layer(x)[0], expected, rtol=0, atol=0)
    out = layer.to(torch.bfloat16)(x)[0]
    assert out.dtype == torch.bfloat16
    # 1.4: twice the worst over 20 seeds, 0.67
    assert torch.dist(out.float(), expected) <= 1.4 * eps(out.dtype) * expected.norm()
    out.sum().backward()
    assert layer.cells[0].parametrizations.weight_hh.original.dtype == torch.float32


@both
def test_evaluation_can_be_differentiated(kind, loop, rng):
    """After `eval()`, which is about dropout, gradients still reach the input."""
    layer = KINDS[kind][0](3, 5).eval()
    x = torch.randn(7, 4, 3, generator=rng).requires_grad_()
    layer(x)[0].sum().backward()
    assert x.grad is not None
    with torch.inference_mode():
        assert_close(layer(x)[0], layer(x.detach().clone())[0])


@pytest.mark.errors
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ExpLSTM(3, 5, proj_size=2),
            ValueError,
            r"`proj_size` must be 0; got 2",
        ),
        (lambda: ExpGRU(3, 0), ValueError, r"`hidden_size` must be a positive integer"),
        (lambda: ExpGRU(3, 5, 0), ValueError, r"`num_layers` must be a positive"),
        (
            lambda: ExpLSTM(3, 5)(torch.zeros(7, 4, 3), torch.zeros(1, 4, 5)),
            TypeError,
            r"`hx` must be a tuple of 2 tensors; got Tensor",
        ),
        (
            lambda: ExpGRU(3, 5)(torch.zeros(7, 4, 3), (torch.zeros(1, 4, 5),) * 2),
            TypeError,
            r"`hx` must be a tensor; got tuple",
        ),
        (
            lambda: ExpLSTM(3, 5)(torch.zeros(7, 4, 3), (torch.zeros(1, 4, 4),) * 2),
            ValueError,
            r"`hx` must have shape \(1, 4, 5\)",
        ),
        (
            lambda: ExpGRU(3, 5)(torch.zeros(7, 4, 3).double()),
            TypeError,
            r"`input` must have the dtype of the layer",
        ),
    ],
)
def test_what_does_not_fit(call: Callable[[], Any], error: type, message: str):
    with pytest.raises(error, match=message):
        call()
