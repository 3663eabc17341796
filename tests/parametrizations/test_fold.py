import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

import isometry
from isometry import declare, manifold_of
from isometry.groups import SO, O, Sphere
from tests.parametrizations.cases import CASES, ROWS, Weight


@pytest.mark.parametrize(("name", "retraction"), ROWS)
def test_folded_weight_is_the_constrained_one(name, retraction, rng):
    case = CASES[name]
    module = case.constrain(Weight(case.random(rng, case.dtype(False))), retraction)
    W = module.weight.detach().clone()
    folded = isometry.fold(module)
    assert folded is module
    assert type(folded) is Weight
    assert isinstance(folded.weight, nn.Parameter)
    assert torch.equal(folded.weight, W)
    assert list(folded.state_dict()) == ["weight"]
    assert manifold_of(folded, "weight") is None


def test_fold_reaches_everything_inside_and_only_what_is_ours():
    """`fold` reaches all modules, but leaves other parametrizations alone.

    A frozen weight stays frozen.
    """
    model = nn.Sequential(
        isometry.orthogonal(nn.Linear(4, 4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.Sequential(isometry.orthogonal(nn.Conv2d(4, 4, 3))),
    )
    model[0].parametrizations.weight.original.requires_grad_(False)
    x = torch.randn(2, 4)
    before = model[0](x)
    isometry.fold(model)
    assert torch.equal(model[0](x), before)
    assert not model[0].weight.requires_grad
    assert model[2][0].weight.requires_grad
    assert nn.utils.parametrize.is_parametrized(model[1])


class Turn(nn.Module):
    """A user's parametrization that contains a constrained weight."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inner = isometry.orthogonal(nn.Linear(n, n, bias=False))

    def forward(self, W: torch.Tensor) -> torch.Tensor:
        return self.inner.weight @ W


def test_what_fold_leaves_is_removed_from_the_copy_alone():
    """Removing what `fold` leaves does not affect the original.

    torch's removal used to take the weight of the original away, since copies share a
    class.
    """
    model = nn.Sequential(nn.Linear(4, 4))
    parametrize.register_parametrization(model[0], "weight", Turn(4))
    x = torch.ones(2, 4)
    y = model(x)
    folded = isometry.fold(copy.deepcopy(model))
    parametrize.remove_parametrizations(folded[0], "weight")
    assert type(folded[0]) is nn.Linear
    assert torch.equal(model(x), y)
    assert_close(folded(x), y)


def test_torch_removes_the_constraint_of_a_copy_alone():
    layer = isometry.orthogonal(nn.Linear(4, 4))
    isometry.constrain(layer, "bias", Sphere(4))
    for other in (copy.deepcopy(layer), copy.deepcopy(copy.deepcopy(layer))):
        parametrize.remove_parametrizations(other, "weight")
        assert torch.equal(other.weight, layer.weight)
        assert parametrize.is_parametrized(other, "bias")
        parametrize.remove_parametrizations(other, "bias")
        assert type(other) is nn.Linear
    assert parametrize.is_parametrized(layer, "weight")
    other = copy.deepcopy(layer)
    other.reset_parameters()
    assert torch.dist(other.weight, layer.weight) > 0.1


@pytest.mark.parametrize("inner", ["words", "heads"])
def test_tied_weights_stay_tied_wherever_they_are(inner):
    """Folding keeps tied weights tied.

    Folding one of a pair used to untie it, and the other stayed constrained.
    """
    heads = nn.ModuleList(nn.Linear(4, 9, bias=False) for _ in range(2))
    model = nn.ModuleDict({"words": nn.Embedding(9, 4), "heads": heads})
    for head in heads:
        head.weight = model["words"].weight
    isometry.orthogonal(model["words"])
    W = model["words"].weight.detach().clone()
    isometry.fold(copy.deepcopy(model)[inner])
    assert parametrize.is_parametrized(model["words"])
    isometry.fold(model[inner])
    assert torch.equal(model["words"].weight, W)
    for head in heads:
        assert head.weight is model["words"].weight
        assert type(head) is nn.Linear


def test_fold_looks_at_all_objects_only_for_weights_in_several_modules(monkeypatch):
    """`fold` searches all objects only if several modules hold a weight.

    The search takes up to a second in a large program.
    """
    model = nn.Sequential(isometry.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 4))
    model.append(model[0])
    model[1].weight = nn.Parameter(torch.ones(4, 4))
    tied = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    tied["b"].weight = tied["a"].weight
    isometry.orthogonal(tied["a"])
    model(torch.ones(2, 4)).sum().backward()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_objects", None)
        isometry.fold(model)
        isometry.fold(copy.deepcopy(tied))
        isometry.fold(tied)
    assert tied["a"].weight is tied["b"].weight


def test_half_precision_folds_to_half_precision():
    layer = isometry.orthogonal(nn.Linear(8, 8).to(torch.bfloat16))
    W = layer.weight.detach().clone()
    isometry.fold(layer)
    assert layer.weight.dtype == torch.bfloat16
    assert torch.equal(layer.weight, W)


def test_a_folded_layer_can_be_constrained_again():
    layer = isometry.orthogonal(nn.Linear(8, 8))
    W = layer.weight.detach().clone()
    isometry.orthogonal(isometry.fold(layer), "weight", "cayley")
    assert_close(layer.weight, W, rtol=0, atol=1e-6)


def test_param_groups_separate_the_coordinates():
    model = nn.Sequential(
        isometry.orthogonal(nn.Linear(4, 4)),
        nn.Linear(4, 4),
        isometry.constrain(nn.Linear(4, 4), "weight", Sphere(4)),
    )
    plain, slow = isometry.param_groups(model, lr=0.1, weight_decay=0.01)
    assert (plain["lr"], plain["weight_decay"]) == (0.1, 0.01)
    assert (slow["lr"], slow["weight_decay"]) == (pytest.approx(0.01), 0.0)
    coordinates = {id(model[i].parametrizations.weight.original) for i in (0, 2)}
    assert {id(p) for p in slow["params"]} == coordinates
    everything = {id(p) for p in model.parameters()}
    assert {id(p) for p in plain["params"]} == everything - coordinates
    optimizer = torch.optim.AdamW([plain, slow])
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()


def test_param_groups_leave_the_decay_of_plain_parameters_to_the_optimizer():
    """`param_groups` leaves the decay of plain parameters to the optimizer.

    Every group used to say 0.0, which switched AdamW's decay of 0.01 off.
    """
    model = nn.Sequential(isometry.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 4))
    for options, decay in (({}, 0.01), ({"weight_decay": 0.1}, 0.1)):
        optimizer = torch.optim.AdamW(isometry.param_groups(model, lr=0.1), **options)
        plain, slow = optimizer.param_groups
        assert (plain["weight_decay"], slow["weight_decay"]) == (decay, 0.0)
    off = torch.optim.AdamW(isometry.param_groups(model, lr=0.1, weight_decay=0.0))
    assert [group["weight_decay"] for group in off.param_groups] == [0.0, 0.0]


def test_param_groups_name_the_manifold_of_a_declared_parameter():
    layer = nn.Linear(4, 4, bias=False)
    layer.weight.data = torch.eye(4)
    declare(layer, "weight", SO(4))
    (group,) = isometry.param_groups(layer, lr=1.0, orthogonal_lr_ratio=0.5)
    assert group["manifold"] == SO(4)
    assert group["lr"] == 0.5
    assert group["params"] == [layer.weight]


def test_param_groups_put_declared_parameters_of_one_manifold_together():
    """Declared parameters of one manifold share a group, and so a batch."""
    layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
    for layer, manifold in zip(layers, (SO(4), O(4), SO(4)), strict=True):
        layer.weight.data = torch.eye(4)
        declare(layer, "weight", manifold)
    rotations, others = isometry.param_groups(layers, lr=1.0)
    assert rotations["manifold"] == SO(4)
    assert rotations["params"] == [layers[0].weight, layers[2].weight]
    assert others["params"] == [layers[1].weight]


def test_param_groups_of_a_plain_model_is_one_group():
    (group,) = isometry.param_groups(nn.Linear(3, 3), lr=0.1)
    assert len(group["params"]) == 2


@pytest.mark.errors
def test_bad_arguments():
    with pytest.raises(ValueError, match=r"`lr` must be at least 0; got -1"):
        isometry.param_groups(nn.Linear(3, 3), lr=-1)
    with pytest.raises(ValueError, match=r"`weight_decay` must be .*; got -0\.1"):
        isometry.param_groups(nn.Linear(3, 3), lr=1, weight_decay=-0.1)
    rate: Any = "0.1"
    with pytest.raises(TypeError, match=r"`lr` must be a number; got '0\.1'\. Pass a"):
        isometry.param_groups(nn.Linear(3, 3), lr=rate)
    # None used to fail in a product, with Python's own message
    none: Any = None
    for name in ("lr", "orthogonal_lr_ratio"):
        with pytest.raises(TypeError, match=f"`{name}` must be a number; got None"):
            isometry.param_groups(nn.Linear(3, 3), **{"lr": 0.1, name: none})
    isometry.param_groups(nn.Linear(3, 3), lr=torch.tensor(0.1))  # as torch does
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got list"):
        isometry.fold([])


@pytest.mark.parametrize("map_name", ["exp", "householder"])
def test_a_layer_folded_in_inference_mode_can_be_trained(map_name):
    """A weight that is folded in inference mode is a normal tensor.

    It used to be an inference tensor, and got no gradient, silently.
    """
    layer = isometry.orthogonal(nn.Linear(4, 4), retraction=map_name)
    with torch.inference_mode():
        isometry.fold(layer)
    layer(torch.ones(2, 4)).sum().backward()
    assert layer.weight.grad is not None
    assert not layer.weight.is_inference()
