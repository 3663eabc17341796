"""Weights under torch's names, checkpoints of torch's layers, and `to_torch`."""

import copy
import io
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import isometry
from isometry.groups import SO
from isometry.nn import ExpGRU, ExpLSTM, ExpRNN, ScoRNN, _gated
from tests.helpers import eps

KINDS: dict[str, tuple[type, type, dict[str, Any], dict[str, Any]]] = {
    "tanh": (ExpRNN, nn.RNN, {"nonlinearity": "tanh"}, {"nonlinearity": "tanh"}),
    "relu": (ExpRNN, nn.RNN, {"nonlinearity": "relu"}, {"nonlinearity": "relu"}),
    "lstm": (ExpLSTM, nn.LSTM, {}, {}),
    "gru": (ExpGRU, nn.GRU, {}, {}),
    "gru, both biases": (ExpGRU, nn.GRU, {"candidate_bias": True}, {}),
}
OPTIONS = [
    {},
    {"bias": False, "batch_first": True},
    {"num_layers": 2, "dropout": 0.3},
    {"num_layers": 3, "bidirectional": True, "batch_first": True},
]

all_kinds = pytest.mark.parametrize("kind", KINDS)
all_options = pytest.mark.parametrize("options", OPTIONS, ids=str)


def layer_of(kind: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    make, _, own, _ = KINDS[kind]
    if not options.get("bias", True):
        own = {k: v for k, v in own.items() if k != "candidate_bias"}
    return make(3, 5, dtype=dtype, **own, **options)


def peer_of(kind: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    _, make, _, own = KINDS[kind]
    return make(3, 5, dtype=dtype, **own, **options)


def inputs(layer: Any, rng: torch.Generator, *, batch: int = 4) -> Tensor:
    dtype = next(layer.parameters()).dtype
    x = torch.randn(7, batch, 3, dtype=dtype, generator=rng)
    return x.transpose(0, 1) if layer.batch_first else x


def assert_outputs_near(result: Any, expected: Any) -> None:
    """Equal up to rounding: two loops over time sum in different orders."""
    pairs = zip(tree_leaves(result), tree_leaves(expected), strict=True)
    for X, Y in pairs:
        scale = max(1.0, float(Y.detach().abs().max()))
        # 26: twice the worst over 60 seeds, 12.9 (tanh, loaded from torch)
        assert_close(X, Y, rtol=0, atol=26 * eps(X.dtype) * scale)


@all_kinds
@all_options
def test_names_are_those_of_torch(kind, options):
    """A layer has the weights of torch's layer as attributes, with torch's shapes."""
    layer, peer = layer_of(kind, **options), peer_of(kind, **options)
    for name, p in peer.named_parameters():
        assert getattr(layer, name).shape == p.shape
    assert [[W.shape for W in cell] for cell in layer.all_weights] == [
        [W.shape for W in cell] for cell in peer.all_weights
    ]
    assert (layer.mode, layer.proj_size) == (peer.mode, peer.proj_size)
    last = layer.num_layers
    absent = ["weight_hr_l0", f"weight_ih_l{last}", f"weight_hh_l{last}_reverse"]
    absent += [] if layer.bidirectional else ["weight_hh_l0_reverse"]
    absent += [] if layer.bias else ["bias_ih_l0", "bias_hh_l0"]
    for name in absent:
        assert not hasattr(layer, name)
        assert not hasattr(peer, name)


def test_names_show_the_constrained_weights():
    """Under torch's name there is a rotation for each gate.

    The gradient of an entry reaches the coordinates.
    """
    lstm, rnn = ExpLSTM(3, 5, 2, bidirectional=True), ExpRNN(3, 5)
    W = lstm.weight_hh_l1_reverse
    assert torch.equal(W, lstm.cells[3].weight_hh.flatten(0, 1))
    for gate in W.chunk(4):
        assert torch.dist(gate @ gate.mT, torch.eye(5)) < 1e-5
    W[0, 1].backward()
    assert lstm.cells[3].parametrizations.weight_hh.original.grad.any()
    assert rnn.weight_hh_l0 is rnn.cells[0].weight_hh
    assert rnn.weight_ih_l0 is rnn.cells[0].weight_ih
    assert lstm.bias_ih_l0 is lstm.cells[0].bias
    assert not lstm.bias_hh_l0.any()


def test_the_threshold_of_modrelu_is_no_bias_of_torch():
    layer = ExpRNN(3, 5)
    assert layer.mode == "RNN_MODRELU"
    assert not hasattr(layer, "bias_ih_l0")
    assert layer.all_weights[0][2] is layer.cells[0].bias


@pytest.mark.errors
def test_torchs_names_are_for_reading():
    """Assigning to torch's names raises: it would make a parameter that is not used."""
    layer = ExpRNN(3, 5)
    with pytest.raises(AttributeError, match=r"`weight_hh_l0` of ExpRNN is read-only"):
        layer.weight_hh_l0 = nn.Parameter(torch.eye(5))
    assert len(list(layer.parameters())) == 3


@all_kinds
@all_options
def test_torchs_layer_computes_the_same(kind, options, rng):
    """torch's layer has the same outputs and last states, with and without `hx`."""
    layer = layer_of(kind, **options).eval()
    peer = layer.to_torch()
    assert type(peer) is KINDS[kind][1]
    assert not peer.training
    x = inputs(layer, rng)
    H, last = layer(x)
    assert_outputs_near(peer(x), (H, last))
    assert_outputs_near(peer(x, last), layer(x, last))


@all_kinds
def test_torchs_layer_computes_the_same_of_packed_sequences(kind, rng):
    layer = layer_of(kind, num_layers=2, bidirectional=True)
    lengths = (3, 9, 5)
    sequences = [torch.randn(T, 3, dtype=torch.float64, generator=rng) for T in lengths]
    packed = pack_sequence(sequences, enforce_sorted=False)
    (H, last), (expected, end) = layer.to_torch()(packed), layer(packed)
    assert_outputs_near((H.data, last), (expected.data, end))


def test_torchs_layer_drops_what_this_one_drops(rng):
    """torch's layer draws the same dropout, between the same layers."""
    layer = ExpLSTM(3, 5, 3, dropout=0.5, dtype=torch.float64)
    peer = layer.to_torch()
    assert peer.training
    x = inputs(layer, rng)
    torch.manual_seed(5)
    expected = layer(x)
    torch.manual_seed(5)
    assert_outputs_near(peer(x), expected)


@all_kinds
def test_a_layer_for_torch_draws_no_numbers_and_shares_none(kind):
    """`to_torch` draws no random numbers and shares no memory.

    Dtype, device and frozen parameters stay as they are.
    """
    layer = layer_of(kind, torch.float32)
    layer.cells[0].parametrizations.weight_hh.original.requires_grad_(False)
    state = torch.random.get_rng_state()
    peer = layer.to_torch()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not peer.weight_hh_l0.requires_grad
    assert peer.weight_ih_l0.requires_grad
    assert peer.weight_ih_l0.dtype == torch.float32
    before = copy.deepcopy(layer.state_dict())
    with torch.no_grad():
        for p in peer.parameters():
            p.zero_()
    assert_close(layer.state_dict(), before, rtol=0, atol=0)


def test_a_layer_for_torch_trains_like_torchs_own(rng):
    """All parameters of torch's layer get gradients, and a step changes its output."""
    peer = ExpLSTM(3, 5, dtype=torch.float64).to_torch()
    x = inputs(peer, rng)
    before = peer(x)[0]
    before.square().sum().backward()
    torch.optim.SGD(peer.parameters(), lr=1e-3).step()
    assert peer(x)[0].square().sum() < before.square().sum()


@all_kinds
@all_options
def test_a_checkpoint_of_rotations_gives_the_same_network(kind, options, rng):
    """If torch's recurrent weights are rotations, our layer has the same outputs."""
    peer = peer_of(kind, **options).eval()
    with torch.no_grad():
        for name, p in peer.named_parameters():
            if "weight_hh" in name:
                gates = p.shape[0] // 5
                Q = SO(5).random(gates, generator=rng, dtype=p.dtype)
                p.copy_(Q.flatten(0, 1))
            if "bias_hh" in name and kind == "gru":
                p[-5:] = 0
    model = nn.Sequential(layer_of(kind, **options).eval())
    result = isometry.load_foreign(model, nn.Sequential(peer).state_dict())
    assert result.missing_keys == result.unexpected_keys == []
    x = inputs(peer, rng)
    assert_outputs_near(model(x), peer(x))


@pytest.mark.parametrize("kind", ["tanh", "lstm", "gru, both biases"])
def test_a_checkpoint_gives_the_nearest_rotations(kind, rng, caplog):
    """Each gate's recurrent weight becomes the nearest rotation, and the log says so.

    All other weights are copied.
    """
    peer, layer = peer_of(kind), layer_of(kind)
    with caplog.at_level(logging.INFO, "isometry"):
        isometry.load_foreign(layer, peer.state_dict())
    assert "cells.0.weight_hh: took the nearest point of SO(n=5)" in caplog.text
    W = peer.weight_hh_l0.detach().unflatten(0, (-1, 5))
    Q = layer.cells[0].weight_hh.view_as(W)
    # 23: twice the worst over 60 seeds, 11.2
    assert_close(Q, SO(5).nearest(W), rtol=0, atol=23 * eps(W.dtype))
    assert torch.equal(layer.weight_ih_l0, peer.weight_ih_l0)
    sums = layer.bias_ih_l0 + layer.bias_hh_l0
    assert_close(sums, peer.bias_ih_l0 + peer.bias_hh_l0)


@all_kinds
def test_there_and_back(kind, rng):
    """The state of `to_torch` loads into a new layer of ours."""
    layer = layer_of(kind, num_layers=2, bidirectional=True)
    again = layer_of(kind, num_layers=2, bidirectional=True)
    isometry.load_foreign(again, layer.to_torch().state_dict())
    x = inputs(layer, rng)
    assert_outputs_near(again(x), layer(x))


@pytest.mark.parametrize("unrolled", [False, True])
def test_gradients_of_torchs_second_bias(unrolled, rng, monkeypatch):
    """torch's second bias has a gradient in both loops: the last third of `bias_hh`."""
    if unrolled:
        monkeypatch.setattr(_gated, "needs_plain_operations", lambda *_: True)
    peer, layer = peer_of("gru"), isometry.fold(layer_of("gru, both biases"))
    isometry.load_foreign(layer, peer.state_dict())
    sequences = [
        torch.randn(T, 3, dtype=torch.float64, generator=rng) for T in (2, 5, 1)
    ]
    for model in (layer, peer):
        H, _ = model(pack_sequence(sequences, enforce_sorted=False))
        H.data.square().sum().backward()
    cell = layer.cells[0]
    assert_close(cell.bias_hn.grad, peer.bias_hh_l0.grad[-5:])
    assert_close(cell.bias.grad, peer.bias_ih_l0.grad)
    assert_close(cell.weight_hh.grad.flatten(0, 1), peer.weight_hh_l0.grad)


def test_a_trained_first_state_becomes_zero():
    """A learned initial state becomes zero, as torch's layers start at zero."""
    layer = ExpRNN(3, 5, nonlinearity="tanh", train_h0=True)
    nn.init.ones_(layer.cells[0].h0)
    isometry.load_foreign(layer, nn.RNN(3, 5).state_dict())
    assert not layer.cells[0].h0.any()


def test_a_folded_layer_takes_the_weights_as_they_are(rng):
    """A folded layer has no constraint, and takes the weights as they are."""
    peer, layer = peer_of("lstm"), isometry.fold(layer_of("lstm"))
    isometry.load_foreign(layer, peer.state_dict())
    x = inputs(peer, rng)
    assert_outputs_near(layer(x), peer(x))


@pytest.mark.errors
@pytest.mark.parametrize(
    ("make", "options", "peer", "message"),
    [
        (ExpRNN, {}, nn.RNN(3, 5), r"must be 'tanh' or 'relu' .* got 'modrelu'"),
        (ExpRNN, {"unitary": True}, nn.RNN(3, 5), r"'modrelu', with complex states"),
        (ExpLSTM, {}, nn.GRU(3, 5), r"torch's LSTM\(3, 5\) .* \(15, 3\)"),
        (ExpLSTM, {}, nn.LSTM(4, 5), r"got 0\.weight_ih_l0 \(20, 4\)\. Build"),
        (ExpLSTM, {}, nn.LSTM(3, 5, bias=False), r"got no 0\.bias_ih_l0, no"),
        (ExpLSTM, {}, nn.LSTM(3, 5, 2), r"got 0\.weight_ih_l1 \(20, 5\), "),
        (ExpLSTM, {"num_layers": 2}, nn.LSTM(3, 5), r"got no 0\.weight_ih_l1, "),
        (ExpLSTM, {}, nn.LSTM(3, 5, proj_size=2), r"0\.weight_hr_l0 \(2, 5\)"),
        (ExpGRU, {}, nn.GRU(3, 5), r"`candidate_bias` must be True"),
        (ScoRNN, {}, nn.RNN(3, 5), r"must have the keys"),
    ],
)
def test_checkpoints_that_do_not_fit(make, options, peer, message):
    """A checkpoint that does not fit is refused, and nothing is loaded."""
    model = nn.Sequential(make(3, 5, **options))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        isometry.load_foreign(model, nn.Sequential(peer).state_dict())
    assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "must be 'tanh' or 'relu' .* 'modrelu', with real states"),
        ({"nonlinearity": "identity"}, "got 'identity'"),
        ({"nonlinearity": "tanh", "last_only": True}, "`last_only` must be False"),
        ({"nonlinearity": "tanh", "train_h0": True}, "`train_h0` must be False"),
    ],
    ids=str,
)
def test_layers_that_torch_does_not_have(options, message):
    with pytest.raises(ValueError, match=message):
        ExpRNN(3, 5, **options).to_torch()


@pytest.mark.errors
@pytest.mark.parametrize("layer", [ExpLSTM, ExpGRU])
def test_gated_layers_of_torch_return_all_outputs(layer):
    with pytest.raises(ValueError, match="`last_only` must be False"):
        layer(3, 5, last_only=True).to_torch()


class Tagger(nn.Module):
    """A model around a layer, as TorchScript and quantization need one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        H, _ = self.layer(x)
        return self.head(H)


def tagger(kind: str) -> Tagger:
    layer = layer_of(kind, torch.float32, num_layers=2, bidirectional=True)
    return Tagger(layer.to_torch()).eval()


# torch warns about its own layer during the export
@pytest.mark.filterwarnings("ignore:The tensor attributes self.layer._flat_weights")
@pytest.mark.usefixtures("no_shape_hook")
@all_kinds
def test_torchs_layer_is_exported_with_a_free_batch(kind, rng):
    model = tagger(kind)
    x, y = (inputs(model.layer, rng, batch=batch) for batch in (4, 9))
    program = export(model, (x,), dynamic_shapes=({1: Dim("batch")},)).module()
    assert_outputs_near(program(y), model(y))


@all_kinds
def test_torchs_layer_is_scripted(kind, rng):
    """torch's layer can be scripted, saved and loaded."""
    model = tagger(kind)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    x = inputs(model.layer, rng)
    assert_outputs_near(torch.jit.load(file)(x), model(x))


# torch has deprecated its functions for this
@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_torchs_layer_is_quantized(kind, rng):
    """With weights of 8 bits, outputs are off by a few percent of the largest."""
    model = tagger(kind)
    small = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM, nn.GRU, nn.Linear})
    assert type(small.layer) is not type(model.layer)
    x = inputs(model.layer, rng)
    expected = model(x).detach()
    # 0.07: twice the worst over 20 seeds, 0.033
    assert float((small(x) - expected).abs().max()) < 0.07 * float(expected.abs().max())
