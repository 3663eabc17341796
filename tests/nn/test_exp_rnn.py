"""ExpRNN in the place of nn.RNN: the same call, shapes and values."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
)
from torch.testing import assert_close

from isometry.nn import ExpGRU, ExpLSTM, ExpRNN
from tests.helpers import shifted_seed

DTYPE = torch.float64


def pair(**options) -> tuple[ExpRNN, nn.RNN]:
    """An ExpRNN and the nn.RNN with its weights."""
    layer = ExpRNN(3, 5, dtype=DTYPE, **options)
    other = nn.RNN(3, 5, dtype=DTYPE, **options)
    directions = 2 if layer.bidirectional else 1
    state = {}
    for i, cell in enumerate(layer.cells):
        end = f"_l{i // directions}" + ("_reverse" if i % directions else "")
        if cell.bias is not None:
            nn.init.normal_(cell.bias)
            state |= {"bias_ih" + end: cell.bias, "bias_hh" + end: 0 * cell.bias}
        state |= {"weight_ih" + end: cell.weight_ih, "weight_hh" + end: cell.weight_hh}
    other.load_state_dict(state)
    return layer, other


def randn(*shape: int, rng: torch.Generator) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, generator=rng)


def same(result: tuple, expected: tuple) -> None:
    """Assert equal outputs and last states, and for packed sequences equal order."""
    out, expected_out = result[0], expected[0]
    assert type(out) is type(expected_out)
    if isinstance(expected_out, PackedSequence):
        assert torch.equal(out.batch_sizes, expected_out.batch_sizes)
        for ours, theirs in ((out[2], expected_out[2]), (out[3], expected_out[3])):
            assert_close(ours, theirs)
        out, expected_out = out.data, expected_out.data
    assert_close(out, expected_out)
    assert_close(result[1], expected[1])


OPTIONS = [
    dict(zip(("num_layers", "bidirectional", "batch_first"), values, strict=True))
    for values in itertools.product([1, 2], [False, True], [False, True])
]


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_takes_and_gives_what_nn_rnn_does(options, nonlinearity, engine, rng):
    """Batches, single and packed sequences, in any order, with and without states."""
    layer, other = pair(nonlinearity=nonlinearity, **options)
    states = len(layer.cells)
    x = randn(*((4, 7) if layer.batch_first else (7, 4)), 3, rng=rng)
    hx = randn(states, 4, 5, rng=rng)
    unsorted = [randn(T, 3, rng=rng) for T in (2, 5, 1, 5)]
    ordered = sorted(unsorted, key=len, reverse=True)
    padded = randn(4, 5, 3, rng=rng)
    inputs = [
        x,
        pack_sequence(unsorted, enforce_sorted=False),
        pack_sequence(ordered),
        pack_padded_sequence(padded, torch.tensor([5, 3, 3, 1]), batch_first=True),
    ]
    for one in inputs:
        same(layer(one), other(one))
        same(layer(one, hx), other(one, hx))
        same(layer(input=one, hx=hx), other(input=one, hx=hx))
    single = randn(7, 3, rng=rng)
    same(layer(single), other(single))
    same(layer(single, hx[:, 0]), other(single, hx[:, 0]))
    same(layer(x[:, :1]), other(x[:, :1]))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_are_those_of_nn_rnn(options, engine, rng):
    """Gradients of inputs, states, weights and biases through a packed sequence."""
    layer, other = pair(nonlinearity="tanh", **options)
    results = []
    sequences = [randn(T, 3, rng=rng).requires_grad_() for T in (2, 5, 1, 5)]
    hx = randn(len(layer.cells), 4, 5, rng=rng).requires_grad_()
    plain = [p for name, p in layer.named_parameters() if "original" not in name]
    theirs = [p for name, p in other.named_parameters() if "hh" not in name]
    for model, parameters in ((layer, plain), (other, theirs)):
        out, last = model(pack_sequence(sequences, enforce_sorted=False), hx)
        loss = out.data.square().sum() + last.sum()
        results.append(torch.autograd.grad(loss, [*sequences, hx, *parameters]))
    assert_close(results[0], results[1])


def test_a_packed_batch_is_its_sequences(engine, rng):
    """Each packed sequence has the states it has alone, with modReLU too."""
    layer = ExpRNN(3, 5, 2, bidirectional=True, dtype=DTYPE)
    sequences = [randn(T, 3, rng=rng) for T in (2, 6, 1, 4)]
    packed, last = layer(pack_sequence(sequences, enforce_sorted=False))
    padded, lengths = pad_packed_sequence(packed)
    for i, x in enumerate(sequences):
        out, state = layer(x)
        assert_close(padded[: lengths[i], i], out)
        assert not padded[lengths[i] :, i].any()
        assert_close(last[:, i], state)


def test_without_bias(rng):
    layer, other = pair(nonlinearity="tanh", bias=False)
    x = randn(7, 4, 3, rng=rng)
    same(layer(x), other(x))
    bare = ExpRNN(3, 5, bias=False, dtype=DTYPE)
    assert not any("bias" in name for name, _ in bare.named_parameters())
    zero = ExpRNN(3, 5, dtype=DTYPE)
    zero.load_state_dict(bare.state_dict() | {"cells.0.bias": torch.zeros(5)})
    same(bare(x), zero(x))


def test_dropout_is_between_layers_in_training(rng):
    """In training, dropout p sets a part p of the first layer's outputs to zero.

    The others grow by 1 / (1 - p).
    """
    layer = ExpRNN(3, 50, 2, "identity", dropout=0.3, dtype=DTYPE)
    below, above = layer.cells
    nn.init.eye_(above.weight_ih)
    above.weight_hh = torch.eye(50, dtype=DTYPE)
    nn.init.zeros_(above.bias)
    x = randn(40, 20, 3, rng=rng)
    out, last = layer(x)
    states, _ = layer.eval()(x)
    # the second layer is a running sum: differences of its states are its inputs
    read = torch.diff(out, dim=0, prepend=0 * out[:1])
    all_inputs = torch.diff(states, dim=0, prepend=0 * states[:1])
    dropped = read == 0
    fraction = float(dropped.double().mean())
    # 5 standard deviations, sqrt(0.3 * 0.7 / 40000)
    assert abs(fraction - 0.3) < 5 * 0.0023
    assert_close(read[~dropped], all_inputs[~dropped] / 0.7)
    # no outputs of the top layer are dropped; in evaluation, no outputs at all
    assert_close(last[1], out[-1])
    same(layer(x), layer(x))
    assert below.weight_ih.shape == (50, 3)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("make", "chunk"),
    [
        *((ExpRNN, {"chunk": chunk}) for chunk in (None, 1, 3)),
        (ExpLSTM, {}),
        (ExpGRU, {}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_last_only_is_the_last_output(make, chunk, options, engine, rng):
    """`last_only` gives each direction's last state, on a time axis of length 1."""
    torch.manual_seed(shifted_seed(1))
    short = make(3, 5, dtype=DTYPE, last_only=True, **chunk, **options)
    layer = make(3, 5, dtype=DTYPE, **options)
    layer.load_state_dict(short.state_dict())
    sequences = [randn(T, 3, rng=rng) for T in (2, 7, 1, 7)]
    time = 1 if layer.batch_first else 0
    batch = torch.randn(7, 4, 3, dtype=DTYPE, generator=rng)
    x = batch.transpose(0, 1) if layer.batch_first else batch
    for one in (x, pack_sequence(sequences, enforce_sorted=False)):
        out, last = short(one)
        _, expected = layer(one)
        assert_close(last, expected)
        # the state of an LSTM also has a memory c, which is no output
        h = expected[0] if make is ExpLSTM else expected
        top = h.unflatten(0, (layer.num_layers, -1))[-1]
        assert_close(out.squeeze(time), top.transpose(0, 1).flatten(1))
        gradients = torch.autograd.grad(out.sum(), list(short.parameters()))
        assert_close(gradients, torch.autograd.grad(top.sum(), [*layer.parameters()]))
    out, last = short(sequences[1])
    assert out.shape == (1, 5 * (1 + layer.bidirectional))
    assert_close(last, layer(sequences[1])[1])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_class_indices_are_one_hot_vectors(dtype, packed, engine, rng):
    """Class indices give the outputs and gradients that one-hot vectors give."""
    layer = ExpRNN(10, 5, 2, bidirectional=True, dtype=DTYPE)
    sequences = [torch.randint(10, (T,), generator=rng) for T in (4, 4, 4, 4)]
    if packed:
        sequences = [torch.randint(10, (T,), generator=rng) for T in (2, 5, 1)]
    hot = [nn.functional.one_hot(x, 10).to(DTYPE) for x in sequences]
    short = [x.to(dtype) for x in sequences]

    def gathered(rows: list[Tensor]) -> Tensor | PackedSequence:
        many = pack_sequence(rows, enforce_sorted=False)
        return many if packed else torch.stack(rows, 1)

    same(layer(gathered(short)), layer(gathered(hot)))
    gradients = []
    for rows in (short, hot):
        out = layer(gathered(rows))[1].square().sum()
        gradients.append(torch.autograd.grad(out, list(layer.parameters())))
    assert_close(gradients[0], gradients[1])
    same(layer(short[1]), layer(hot[1]))


def test_batch_first_indices(rng):
    layer = ExpRNN(10, 5, batch_first=True)
    x = torch.randint(10, (4, 7), generator=rng)
    other = ExpRNN(10, 5)
    other.load_state_dict(layer.state_dict())
    assert_close(layer(x)[0], other(x.mT)[0].transpose(0, 1))


@pytest.mark.parametrize("unitary", [False, True])
def test_a_sequence_in_two_parts(unitary, engine, rng):
    """The last states of the first part are the first states of the second."""
    layer = ExpRNN(3, 5, 2, unitary=unitary, dtype=DTYPE)
    x = randn(9, 4, 3, rng=rng)
    whole, last = layer(x)
    first, hx = layer(x[:4])
    second, end = layer(x[4:], hx)
    assert_close(torch.cat((first, second)), whole)
    assert_close(end, last)
    assert whole.is_complex() == unitary


def test_states_do_not_grow_or_fade(engine, rng):
    """|h_t| = |h_0| without input and nonlinearity; the gradient keeps its norm too."""
    layer = ExpRNN(3, 20, 1, "identity", dtype=DTYPE)
    h0 = randn(1, 2, 20, rng=rng).requires_grad_()
    _, last = layer(torch.zeros(2000, 2, 3, dtype=DTYPE), h0)
    g = randn(1, 2, 20, rng=rng)
    (gradient,) = torch.autograd.grad(last, h0, g)
    # rounding in 2000 steps, each below n eps
    tol = 2000 * 20 * torch.finfo(DTYPE).eps
    assert_close(last.norm(dim=-1), h0.norm(dim=-1), rtol=tol, atol=0)
    assert_close(gradient.norm(dim=-1), g.norm(dim=-1), rtol=tol, atol=0)
    assert math.isclose(float(layer.cells[0].weight_hh.detach().det()), 1, rel_tol=tol)


def test_says_what_is_not_usual():
    text = repr(ExpRNN(3, 5, 2, last_only=True, chunk=4, bidirectional=True))
    assert "3, 5, num_layers=2, bidirectional=True, last_only=True, chunk=4" in text
    assert "3, 5, bias=False, init='haar'" in repr(
        ExpRNN(3, 5, bias=False, init="haar")
    )
    # positional options come first, as in the constructor
    text = repr(ExpGRU(3, 5, batch_first=True, init="identity", candidate_bias=True))
    assert "3, 5, batch_first=True, init='identity', candidate_bias=True" in text
