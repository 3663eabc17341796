"""The cell: one time step of the recurrence."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry.nn import ExpRNN, ExpRNNCell

NONLINEARITIES = ["modrelu", "tanh", "relu", "identity"]


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("bias", [True, False])
def test_is_torchs_cell_with_an_orthogonal_weight(nonlinearity, bias, engine, rng):
    """The cell agrees with an `nn.RNNCell` that has the same weights."""
    cell = ExpRNNCell(3, 5, bias, nonlinearity)
    other = nn.RNNCell(3, 5, bias, nonlinearity)
    with torch.no_grad():
        other.weight_ih.copy_(cell.weight_ih)
        other.weight_hh.copy_(cell.weight_hh)
        if bias:
            assert cell.bias is not None
            nn.init.normal_(cell.bias, generator=rng)
            other.bias_ih.copy_(cell.bias)
            nn.init.zeros_(other.bias_hh)
    x, h = torch.randn(4, 3, generator=rng), torch.randn(4, 5, generator=rng)
    for args in [(x,), (x, h), (x[0],), (x[0], h[0])]:
        assert_close(cell(*args), other(*args))


@pytest.mark.parametrize("unitary", [False, True])
@pytest.mark.parametrize("nonlinearity", ["modrelu", "identity"])
def test_steps_are_those_of_the_layer(nonlinearity, unitary, engine, rng):
    """A layer applies its cell at one time step after the other."""
    layer = ExpRNN(3, 5, 1, nonlinearity, unitary=unitary)
    x = torch.randn(6, 4, 3, generator=rng)
    states, last = layer(x)
    h = None
    for x_t, expected in zip(x, states, strict=True):
        h = layer.cells[0](x_t, h)
        assert_close(h, expected)
    assert_close(last[0], h)


def test_indices_are_one_hot_vectors(engine):
    cell = ExpRNNCell(7, 5)
    x = torch.tensor([0, 3, 6])
    hot = nn.functional.one_hot(x, 7).float()
    assert_close(cell(x), cell(hot))
    assert_close(cell(x[1]), cell(hot[1]))
    assert_close(cell(x.to(torch.uint8)), cell(hot))


def test_first_state_is_trained(rng):
    cell = ExpRNNCell(3, 5, train_h0=True)
    assert cell.h0 is not None
    x = torch.randn(4, 3, generator=rng)
    assert_close(cell(x), ExpRNNCell.forward(cell, x, torch.zeros(4, 5)))
    nn.init.normal_(cell.h0, generator=rng)
    assert_close(cell(x), cell(x, cell.h0.expand(4, 5)))
    cell(x).sum().backward()
    assert cell.h0.grad is not None
    assert cell.h0.grad.abs().sum() > 0


@pytest.mark.parametrize("unitary", [False, True])
@pytest.mark.parametrize("nonlinearity", ["modrelu", "identity"])
def test_gradient_reaches_every_parameter(nonlinearity, unitary, engine, rng):
    cell = ExpRNNCell(3, 5, nonlinearity=nonlinearity, unitary=unitary, train_h0=True)
    cell(torch.randn(4, 3, generator=rng)).abs().square().sum().backward()
    # with h0 = 0 the recurrent weight has no gradient
    gradients = {name: p.grad for name, p in cell.named_parameters()}
    without = [k for k, g in gradients.items() if g is None or not g.any()]
    assert without == ["parametrizations.weight_hh.original"]


@pytest.mark.parametrize("unitary", [False, True])
def test_the_unitary_cell_computes_with_complex_numbers(unitary, engine, rng):
    """h' = sigma(W h + T x), written in complex numbers."""
    dtype = torch.complex128 if unitary else torch.float64
    cell = ExpRNNCell(3, 5, unitary=unitary, dtype=torch.float64)
    assert cell.bias is not None
    nn.init.normal_(cell.bias, generator=rng)
    h = torch.randn(4, 5, dtype=dtype, generator=rng)
    inputs = [torch.randn(4, 3, dtype=torch.float64, generator=rng)]
    if unitary:
        inputs.append(torch.randn(4, 3, dtype=dtype, generator=rng))
    for x in inputs:
        z = h @ cell.weight_hh.mT + x.to(dtype) @ cell.weight_ih.mT
        expected = z / z.abs() * torch.clamp(z.abs() + cell.bias, min=0)
        assert_close(cell(x, h), expected)
        parameters = list(cell.parameters())
        # both losses use one weight, which is computed once: keep its graph
        gradients = torch.autograd.grad(
            cell(x, h).abs().sum(), parameters, retain_graph=True
        )
        expected_gradients = torch.autograd.grad(expected.abs().sum(), parameters)
        assert_close(gradients, expected_gradients)


def test_says_what_it_is():
    assert "3, 5, modrelu, unitary" in repr(ExpRNNCell(3, 5, unitary=True))


def test_folded_it_computes_the_same(rng):
    cell = ExpRNNCell(3, 5)
    x, h = torch.randn(4, 3, generator=rng), torch.randn(4, 5, generator=rng)
    before = cell(x, h)
    isometry.fold(cell)
    assert type(cell) is ExpRNNCell
    assert_close(cell(x, h), before)


def test_states_may_have_any_strides(rng):
    cell = ExpRNNCell(3, 5)
    x, h = torch.randn(3, 4, generator=rng), torch.randn(5, 4, generator=rng)
    assert_close(cell(x.mT, h.mT), cell(x.mT.contiguous(), h.mT.contiguous()))


@pytest.mark.errors
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(4, 2),), r"`input` must have 3 features .* got 2"),
        ((torch.zeros(4, 3), torch.zeros(4, 4)), r"`hx` must have shape \(4, 5\)"),
        ((torch.zeros(4, 3), torch.zeros(5)), r"`hx` must have shape \(4, 5\)"),
        ((torch.zeros(3), torch.zeros(1, 5)), r"`hx` must have shape \(5,\)"),
        ((torch.tensor([0, 3]),), r"class indices from 0 to 2; got 3"),
        ((torch.tensor([-1, 0]),), r"class indices from 0 to 2; got -1"),
        # the message used to mention a time axis, and to show a shape that had one
        ((torch.zeros(2, 4, 3),), r"\(batch, input_size\).* got shape \(2, 4, 3\)"),
        ((torch.tensor([[0, 1]]),), r"\(batch,\) of class indices.* shape \(1, 2\)"),
    ],
    ids=str,
)
def test_values_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        ExpRNNCell(3, 5)(*arguments)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(4, 3).double(),), r"`input` must have the dtype of the layer"),
        ((torch.zeros(4, 3) + 0j,), r"torch.float32; got torch.complex64"),
        ((torch.zeros(4, 3), torch.zeros(4, 5).double()), r"`hx` must have the dtype"),
        ((torch.zeros(4, dtype=torch.bool),), r"class indices; got torch.bool"),
        (([1.0, 2.0, 3.0],), r"`input` must be a torch.Tensor; got list"),
    ],
    ids=["double", "complex", "state", "bool", "list"],
)
def test_types_that_do_not_fit(arguments, message):
    with pytest.raises(TypeError, match=message):
        ExpRNNCell(3, 5)(*arguments)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 0}, r"`input_size` must be a positive integer; got 0"),
        ({"hidden_size": 2.0}, r"`hidden_size` must be a positive integer; got 2.0"),
        ({"nonlinearity": "gelu"}, r"`nonlinearity` must be one of .* got 'gelu'"),
        (
            {"nonlinearity": "tanh", "unitary": True},
            r"`nonlinearity` must be 'modrelu' or 'identity' with `unitary=True`",
        ),
        (
            {"dtype": torch.bfloat16, "unitary": True},
            r"`dtype` must be torch.float32 or torch.float64 with `unitary=True`",
        ),
        ({"dtype": torch.complex64}, r"`dtype` must be real; got torch.complex64"),
        ({"retraction": "qr"}, r"`retraction` must be one of"),
        ({"init": "he"}, r"`init` must be"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        ExpRNNCell(**{"input_size": 3, "hidden_size": 5} | options)


def test_one_feature_has_no_angle():
    """SO(1) has one point, so h' = sigma(h + T x)."""
    cell = ExpRNNCell(1, 1, nonlinearity="identity")
    assert cell.weight_hh.item() == 1
    assert math.isfinite(cell(torch.ones(1)).item())
