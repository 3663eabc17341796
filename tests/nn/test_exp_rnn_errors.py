"""Errors of ExpRNN for arguments that do not fit."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from isometry.nn import EURNN, ExpGRU, ExpLSTM, ExpRNN, ExpRNNCell, ScoRNN
from tests.nn.comparators import CASES

pytestmark = pytest.mark.errors

COMPARATORS = dict.fromkeys(case.make for case in CASES.values())
NETWORKS = [ExpRNN, ExpLSTM, ExpGRU, *COMPARATORS]
X = torch.zeros(7, 4, 3)


@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        (torch.zeros(7, 4, 2), None, r"`input` must have 3 features .* got 2"),
        (
            torch.zeros(7, 4),
            None,
            r"`input` must have 3 features .* class indices, convert them",
        ),
        (torch.zeros(3), None, r"\(time, batch, features\).* got shape \(3,\)"),
        (torch.zeros(2, 7, 4, 3), None, r"got shape \(2, 7, 4, 3\)"),
        (torch.zeros(2, 7, 4).long(), None, r"\(time, batch\) of indices"),
        (torch.zeros(0, 4, 3), None, r"at least one time step; got shape \(0, 4, 3\)"),
        (torch.zeros(0, 0, 3), None, r"at least one time step; got shape \(0, 0, 3\)"),
        (X.to("meta"), None, r"on the device of the layer, cpu; got meta"),
        (X, torch.zeros(2, 4, 5, device="meta"), r"`hx` must be on the device"),
        (torch.full((7, 4), 3), None, r"class indices from 0 to 2; got 3"),
        (torch.full((7, 4), -2), None, r"class indices from 0 to 2; got -2"),
        (pack_sequence([torch.zeros(4, 2)]), None, r"must have 3 features"),
        (pack_sequence([torch.zeros(4, 2, 3)]), None, r"data of shape \(4, 2, 3\)"),
        (pack_sequence([torch.zeros(4, 3).long()]), None, r"must pack sequences"),
        (X, torch.zeros(1, 4, 6), r"`hx` must have shape \(2, 4, 5\); got \(1, 4, 6\)"),
        (X, torch.zeros(2, 5), r"`hx` must have shape \(2, 4, 5\); got \(2, 5\)"),
        (X[:, 0], torch.zeros(2, 1, 5), r"`hx` must have shape \(2, 5\)"),
    ],
)
def test_values_that_do_not_fit(x, hx, message):
    with pytest.raises(ValueError, match=message):
        ExpRNN(3, 5, 2)(x, hx)


@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        (X.double(), None, r"`input` must have the dtype of the layer, torch.float32"),
        (X + 0j, None, r"torch.float32; got torch.complex64"),
        (torch.zeros(7, 4, dtype=torch.bool), None, r"indices; got torch.bool"),
        ([1, 2], None, r"`input` must be a torch.Tensor or a PackedSequence; got list"),
        (X, torch.zeros(2, 4, 5).double(), r"`hx` must have the dtype of the layer"),
        (X, torch.zeros(2, 4, 5).long(), r"`hx` must have the dtype of the layer"),
        (X, (torch.zeros(2, 4, 5),) * 2, r"`hx` must be a tensor; got tuple"),
        (X, [torch.zeros(2, 4, 5)], r"`hx` must be a tensor; got list"),
    ],
    ids=["double", "complex", "bool", "list", "wide hx", "integer hx", "tuple", "hxs"],
)
def test_types_that_do_not_fit(x, hx, message):
    with pytest.raises(TypeError, match=message):
        ExpRNN(3, 5, 2)(x, hx)


@pytest.mark.parametrize("make", [ExpRNN, ExpLSTM, EURNN])
def test_negative_indices_do_not_count_from_the_end_in_a_transform(make):
    """In a transform the values cannot be checked; -1 used to select the last class."""
    layer = make(3, 6)
    with pytest.raises(IndexError, match=r"out of bounds|out of range"):
        torch.func.vmap(lambda x: layer(x)[0])(torch.full((2, 7, 4), -1))


def test_a_bias_of_the_candidate_needs_a_bias():
    with pytest.raises(ValueError, match=r"`candidate_bias` must be False without"):
        ExpGRU(3, 5, bias=False, candidate_bias=True)


def test_real_states_of_a_unitary_layer_are_an_error():
    """Real states of a unitary layer are refused: they would be half a complex one."""
    with pytest.raises(TypeError, match=r"torch.complex64; got torch.float32"):
        ExpRNN(3, 5, unitary=True)(X, torch.zeros(1, 4, 5))


def test_autocast_does_not_take_the_imaginary_part_away():
    with torch.autocast("cpu"), pytest.raises(TypeError, match=r"got torch.complex64"):
        ExpRNN(3, 5)(X + 0j)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nonlinearity": "selu"}, r"`nonlinearity` must be one of 'modrelu'"),
        ({"nonlinearity": "relu", "unitary": True}, r"with `unitary=True`; got 'relu'"),
        ({"chunk": 4}, r"`chunk` must be positive, and needs `last_only=True`; got 4"),
        ({"chunk": 0, "last_only": True}, r"`chunk` must be positive"),
        ({"chunk": True, "last_only": True}, r"`chunk` must be positive"),
        ({"num_layers": 0}, r"`num_layers` must be a positive integer; got 0"),
        ({"num_layers": 1.5}, r"`num_layers` must be a positive integer; got 1.5"),
        ({"num_layers": True}, r"`num_layers` must be a positive integer; got True"),
        ({"dropout": -0.1}, r"`dropout` must be between 0 and 1; got -0.1"),
        ({"dropout": 1.1}, r"`dropout` must be between 0 and 1; got 1.1"),
        ({"dropout": True}, r"`dropout` must be between 0 and 1; got True"),
        ({"dropout": "none"}, r"`dropout` must be between 0 and 1; got 'none'"),
        ({"rebase_every": 0}, r"`rebase_every` must be"),
        ({"retraction": "svd"}, r"`retraction` must be one of .* got 'svd'"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        ExpRNN(3, 5, **options)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["input_size", "hidden_size", "num_layers"])
@pytest.mark.parametrize("size", [None, 0, -1, 2.5, True, "4"], ids=repr)
def test_sizes_are_positive_integers(network, name, size):
    """All sizes are checked before they are used.

    `ExpRNN(3, None)` used to say "unsupported operand type(s) for *".
    """
    message = rf"`{name}` must be a positive integer; got {size!r}"
    with pytest.raises(ValueError, match=message):
        network(**{"input_size": 3, "hidden_size": 4, name: size})


@pytest.mark.parametrize(
    ("layer", "flags"),
    [
        (ExpRNN, ["bias", "batch_first", "bidirectional", "last_only"]),
        (ExpRNN, ["unitary", "train_h0"]),
        (ExpRNNCell, ["bias", "unitary", "train_h0"]),
        (ExpLSTM, ["bias", "batch_first", "bidirectional", "last_only"]),
        (ExpGRU, ["bias", "batch_first", "bidirectional", "last_only"]),
        (ScoRNN, ["batch_first", "bidirectional", "last_only"]),
        (EURNN, ["unitary"]),
    ],
)
@pytest.mark.parametrize("value", ["tanh", 1, None], ids=repr)
def test_flags_are_true_or_false(layer, flags, value):
    """A flag must be a bool.

    `ExpLSTM(3, 5, 1, "tanh")` used to be a layer with a bias (issue 14).
    """
    for flag in flags:
        message = rf"`{flag}` must be True or False; got {value!r}"
        with pytest.raises(TypeError, match=message):
            layer(4, 8, **{flag: value})


@pytest.mark.parametrize("layer", [ExpRNN, ExpLSTM, ExpGRU, ScoRNN])
def test_dropout_without_effect_is_a_warning(layer):
    """Dropout without a second layer gives a warning, as in torch.

    It used to be accepted silently.
    """
    message = r"`dropout` must be 0 with one layer.*0\.5"
    with pytest.warns(UserWarning, match=message) as warnings:
        layer(3, 5, dropout=0.5)
    # The warning names the caller's line; for ScoRNN and ExpLSTM it used to name one in
    # the library.
    assert warnings[0].filename == __file__
    layer(3, 5, 2, dropout=0.5)


# torch warns about the input weights, which it copies itself
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("unitary", [True, False])
def test_a_checkpoint_of_the_other_field_is_refused(unitary):
    """A checkpoint of the other field is refused.

    It used to load, because all keys matched, and the weight was off by 2.7.
    """
    layer, other = ExpRNN(3, 4, unitary=unitary), ExpRNN(3, 4, unitary=not unitary)
    field = "complex" if unitary else "real"
    with pytest.raises(
        RuntimeError, match=rf"original` must be {field}, like .* the `unitary`\) that"
    ):
        layer.load_state_dict(other.state_dict())


def test_a_checkpoint_with_a_moving_base_names_the_option_of_the_layer():
    """The error names the layer's option for a moving base.

    It does not name `use_trivialization`, which is no argument of ExpRNN.
    """
    with pytest.raises(
        RuntimeError, match=r"saved with one\. .*if they have `rebase_e"
    ):
        ExpRNN(3, 4).load_state_dict(ExpRNN(3, 4, rebase_every=2).state_dict())


def test_a_layer_survives_bad_input(rng):
    """A refused call leaves nothing behind."""
    layer = ExpRNN(3, 5)
    x = torch.randn(7, 4, 3, generator=rng)
    before = layer(x)[0]
    with pytest.raises(ValueError, match="features"):
        layer(torch.zeros(7, 4, 2))
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    assert torch.equal(layer(x)[0], before)
