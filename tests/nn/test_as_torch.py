"""Recurrent layers accept the arguments of `nn.RNN`, `nn.LSTM` and `nn.GRU`."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import isometry
from isometry.nn import ExpGRU, ExpLSTM, ExpRNN, ExpRNNCell
from tests.nn.comparators import CASES, INPUTS, N

PAIRS = {"rnn": (ExpRNN, nn.RNN), "lstm": (ExpLSTM, nn.LSTM), "gru": (ExpGRU, nn.GRU)}

all_kinds = pytest.mark.parametrize("kind", PAIRS)


def shapes(result: Any) -> Any:
    if isinstance(result, Tensor):
        return tuple(result.shape)
    return [shapes(part) for part in result]


@all_kinds
@pytest.mark.parametrize(
    "options",
    [{}, {"batch_first": True}, {"num_layers": 2, "bidirectional": True}],
    ids=str,
)
@pytest.mark.parametrize("with_hx", [False, True])
def test_empty_batches_pass(kind, options, with_hx):
    """An empty batch, as the last one of a filtered data set, is accepted.

    It used to be refused (issue 14).
    """
    layer, theirs = (make(3, 5, **options) for make in PAIRS[kind])
    x = torch.zeros((0, 7, 3) if layer.batch_first else (7, 0, 3)).requires_grad_()
    hx = theirs(x)[1] if with_hx else None
    result = layer(x, hx)
    assert shapes(result) == shapes(theirs(x, hx))
    result[0].sum().backward()
    for p in layer.parameters():
        assert p.grad is not None
        assert not p.grad.any()


@pytest.mark.parametrize("options", [{}, {"last_only": True, "chunk": 2}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_empty_batches_of_comparators(name, options):
    """An empty batch of features or of indices gives outputs of the right shapes."""
    network = CASES[name].network(bidirectional=True, **options)
    x = torch.zeros(7, 0, INPUTS, dtype=torch.float64)
    time = 1 if options else 7
    for empty in (x, torch.zeros(7, 0, dtype=torch.int64)):
        H, last = network(empty)
        assert (H.shape, last.shape) == ((time, 0, 2 * N), (2, 0, N))
        H.abs().sum().backward()


def test_empty_batch_of_a_cell():
    x = torch.zeros(0, 3)
    assert ExpRNNCell(3, 5)(x).shape == nn.RNNCell(3, 5)(x).shape


@all_kinds
@pytest.mark.parametrize("shape", [(0, 4, 3), (0, 0, 3), (0, 3)], ids=str)
def test_no_time_steps_are_an_error(kind, shape):
    """A sequence without time steps is an error, as in torch."""
    layer, theirs = (make(3, 5) for make in PAIRS[kind])
    with pytest.raises(RuntimeError, match="sequence length"):
        theirs(torch.zeros(shape))
    with pytest.raises(ValueError, match="at least one time step"):
        layer(torch.zeros(shape))


@all_kinds
@pytest.mark.parametrize("rate", [1, 1.0])
def test_dropout_of_everything(kind, rate, rng):
    """The second layer reads zeros in training, and all outputs in evaluation."""
    layer, theirs = (make(3, 5, 2, dropout=rate) for make in PAIRS[kind])
    x = torch.randn(7, 4, 3, generator=rng)
    assert shapes(layer(x)) == shapes(theirs(x))
    assert_close(layer(x)[0], layer(torch.zeros_like(x))[0], rtol=0, atol=0)
    assert not torch.equal(layer.eval()(x)[0], layer(torch.zeros_like(x))[0])


def test_two_states_in_a_list_or_a_tuple(rng):
    """Two states may come as a list or a tuple, as for `nn.LSTM`.

    States in a checkpoint come back as lists.
    """
    layer = ExpLSTM(3, 5, 2)
    x = torch.randn(7, 4, 3, generator=rng)
    hx = layer(x)[1]
    assert_close(layer(x, list(hx)), layer(x, hx), rtol=0, atol=0)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("hx", "message"),
    [
        ([torch.zeros(1, 4, 5)], r"a tuple of 2 tensors; got list of 1"),
        (torch.zeros(1, 4, 5), r"a tuple of 2 tensors; got Tensor"),
        ((torch.zeros(1, 4, 5), 0), r"`hx` must be a torch.Tensor; got int"),
    ],
    ids=["one", "a tensor", "a number"],
)
def test_states_that_do_not_fit(hx, message):
    with pytest.raises(TypeError, match=message):
        ExpLSTM(3, 5)(torch.zeros(7, 4, 3), hx)


@pytest.mark.errors
@all_kinds
@pytest.mark.parametrize("strict", [True, False])
def test_checkpoints_of_torchs_layers_need_load_foreign(kind, strict):
    """The error for a state of torch's layer names `load_foreign`.

    It used to name a function that then refused the same state (B14).
    """
    model = nn.Sequential(PAIRS[kind][0](3, 5))
    before = copy.deepcopy(model.state_dict())
    state = nn.Sequential(PAIRS[kind][1](3, 5)).state_dict()
    message = r"state of another Exp.* '0\.weight_hh_l0'.* `isometry\.load_foreign"
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(state, strict=strict)
    assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("network", [ExpRNN, ExpLSTM, ExpGRU])
def test_a_folded_network_with_a_local_init_can_be_saved(network):
    """A network keeps the name of a user's `init` function, and not the function."""
    layer = network(3, 6, init=lambda shape, _: torch.zeros(shape))
    assert layer.init == "<lambda>"
    isometry.fold(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    x = torch.randn(4, 2, 3)
    assert torch.equal(loaded(x)[0], layer(x)[0])
