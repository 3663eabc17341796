"""Declarations: which tensor of a module lives where."""

import copy

import torch
from torch import nn

from isometry.groups import SO, O, Stiefel, declare, manifold_of
from isometry.groups._declare import declared, points, record


def rotation() -> nn.Linear:
    module = nn.Linear(3, 3)
    with torch.no_grad():
        module.weight.copy_(torch.eye(3))
    return module


def test_a_declaration_is_found_and_leaves_the_weight_alone():
    module = rotation()
    weight = module.weight
    assert declare(module, "weight", SO(3)) is module
    assert manifold_of(module, "weight") == SO(3)
    assert manifold_of(module, "bias") is None
    assert module.weight is weight


def test_a_copy_is_declared_too_and_by_itself():
    """deepcopy makes new parameters: the mark is on the module, by name."""
    module = declare(rotation(), "weight", SO(3))
    other = copy.deepcopy(module)
    assert manifold_of(other, "weight") == SO(3)
    record(other, "weight", None)
    assert manifold_of(other, "weight") is None
    assert manifold_of(module, "weight") == SO(3)


def test_a_later_declaration_replaces_an_earlier_one():
    module = declare(rotation(), "weight", SO(3))
    declare(module, "weight", O(3))
    assert manifold_of(module, "weight") == O(3)


def test_all_declarations_of_a_model():
    """With the path of the owner; removing one that is not there is no error."""
    model = nn.Sequential(rotation(), nn.ReLU(), declare(rotation(), "weight", SO(3)))
    assert [(path, name, m) for path, _, name, m in declared(model)] == [
        ("2", "weight", SO(3))
    ]
    record(model, "weight", None)
    assert len(list(declared(model))) == 1


def test_batches_may_be_declared():
    module = nn.Module()
    module.Q = nn.Parameter(Stiefel(4, 2).random(5))
    declare(module, "Q", Stiefel(4, 2))
    assert manifold_of(module, "Q") == Stiefel(4, 2)


def test_wide_matrices_are_declared_as_their_transpose():
    """The rows of nn.Linear(5, 2).weight are the columns of a point."""
    layer = nn.Linear(5, 2)
    layer.weight = nn.Parameter(Stiefel(5, 2).random().mT)
    declare(layer, "weight", Stiefel(5, 2))
    assert manifold_of(layer, "weight") == Stiefel(5, 2)
    assert torch.equal(points(layer.weight, Stiefel(5, 2)), layer.weight.mT)
    # a square matrix is itself
    Q = SO(3).random()
    assert points(Q, SO(3)) is Q
