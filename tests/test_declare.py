"""Declarations: which parameter of a module lives on which manifold."""

import copy
import gc
import inspect
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from isometry import constrain, declare, manifold_of
from isometry._declare import declared, points, record
from isometry.groups import SO, O, Stiefel
from isometry.parametrizations._register import _Keywords


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


def test_the_short_form_means_the_weight():
    module = declare(rotation(), SO(3))
    assert manifold_of(module) == SO(3)
    with pytest.raises(TypeError, match=r"`name` must be a string.*`declare\(module, "):
        declare(module, SO(3), SO(3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="`manifold` must be a manifold"):
        declare(module, "weight")  # pyright: ignore[reportArgumentType]


def test_type_checkers_ask_for_the_manifold():
    """A type checker refuses a call without a manifold, which used to pass.

    Otherwise pyright would report the comments below, since they would ignore nothing.
    """
    with pytest.raises(TypeError, match="`manifold` must be a manifold"):
        declare(rotation())  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="`manifold` must be a manifold"):
        constrain(rotation())  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="unexpected keyword argument 'block'"):
        constrain(rotation(), SO(3), block=1)  # pyright: ignore[reportCallIssue]
    assert manifold_of(constrain(rotation(), manifold=SO(3))) == SO(3)


def test_the_typed_options_are_the_options():
    """Type checkers know the same keywords as `constrain` itself."""
    parameters = inspect.signature(constrain).parameters.values()
    keywords = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert keywords == _Keywords.__annotations__


def test_a_copy_is_declared_too_and_by_itself():
    """A deepcopy is declared too, although its parameters are new.

    Modules hold the mark, by the name of the parameter.
    """
    module = declare(rotation(), "weight", SO(3))
    other = copy.deepcopy(module)
    assert manifold_of(other, "weight") == SO(3)
    record(other, "weight", None)
    assert manifold_of(other, "weight") is None
    assert manifold_of(module, "weight") == SO(3)


def saved(module: nn.Sequential) -> nn.Sequential:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.errors
@pytest.mark.parametrize(
    "duplicate",
    [
        copy.deepcopy,
        lambda model: copy.deepcopy(copy.deepcopy(model)),
        saved,
        lambda model: pickle.loads(pickle.dumps(model)),
        copy.copy,
    ],
    ids=["deepcopy", "twice", "torch.save", "pickle", "copy"],
)
def test_a_copy_does_not_leave_its_manifold_silently(
    duplicate: Callable[[nn.Sequential], nn.Sequential],
):
    """Plain SGD refuses the parameters of a copy.

    The parameters are new tensors, and SGD used to step them off the manifold.
    """
    model = nn.Sequential(declare(rotation(), "weight", SO(3)))
    other = duplicate(model)
    del model
    gc.collect()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(3)).square().sum().backward()
    with pytest.raises(TypeError, match=r"got SGD, which ignores the SO\(n=3\) of"):
        optimizer.step()
    torch.optim.SGD([other.get_parameter("0.bias")], lr=0.1).step()


def test_a_compiled_function_may_copy_a_declared_module():
    """A compiled function may copy a declared module.

    Dynamo used to warn about a function with `functools.cache`.
    """
    module = declare(rotation(), SO(3))

    def copied(x: torch.Tensor) -> torch.Tensor:
        return copy.deepcopy(module)(x)

    compiled = torch.compile(copied, backend="eager")
    assert_close(compiled(torch.ones(3)), copied(torch.ones(3)), rtol=0, atol=0)


def test_a_copy_of_a_constrained_weight_may_become_plain():
    """After `remove_parametrizations` the weight of a copy is free: nothing raises."""
    layer = copy.deepcopy(isometry.orthogonal(nn.Linear(3, 3)))
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    layer(torch.ones(3)).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()


@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("declares_another", [True, False])
def test_a_constraint_that_torch_removed_is_forgotten(declares_another, leave):
    """After torch's `remove_parametrizations` the weight is plain, on no manifold.

    `manifold_of` used to return O(3), and SGD with `param_groups` raised. If the module
    also has a declared parameter, SGD still refuses it.
    """
    layer = isometry.orthogonal(nn.Linear(3, 3))
    if declares_another:
        layer.Q = nn.Parameter(torch.eye(3))
        declare(layer, "Q", SO(3))
    assert manifold_of(layer) == O(3)
    nn.utils.parametrize.remove_parametrizations(
        layer, "weight", leave_parametrized=leave
    )
    assert manifold_of(layer) is None
    plain = isometry.param_groups(layer, lr=0.1)[0]
    assert {id(p) for p in plain["params"]} == {id(layer.weight), id(layer.bias)}
    layer(torch.ones(3)).square().sum().backward()
    torch.optim.SGD([plain]).step()
    if declares_another:
        with pytest.raises(TypeError, match=r"which ignores the SO\(n=3\) of"):
            torch.optim.SGD(layer.parameters(), lr=0.1).step()


def test_a_module_without_declarations_keeps_no_trace():
    """A module without declarations has no trace of them.

    So the file of a folded module can be read without isometry.
    """
    module = isometry.fold(isometry.orthogonal(nn.Linear(3, 3)))
    assert b"isometry" not in pickle.dumps(module)


@pytest.mark.errors
def test_only_parameters_are_declared():
    """Only a parameter can be declared.

    The declaration of a constrained weight used to be accepted, and did nothing.
    """
    layer = isometry.orthogonal(nn.Linear(3, 3), init="identity")
    with pytest.raises(
        ValueError, match=r"`weight` must be a plain parameter; .* or call `isometry.f"
    ):
        declare(layer, "weight", O(3))
    layer.register_buffer("Q", torch.eye(3))
    with pytest.raises(TypeError, match=r"has no parameter 'Q'"):
        declare(layer, "Q", O(3))


def test_a_later_declaration_replaces_an_earlier_one():
    module = declare(rotation(), "weight", SO(3))
    declare(module, "weight", O(3))
    assert manifold_of(module, "weight") == O(3)


def test_all_declarations_of_a_model():
    """All declarations are found, with the path of their module.

    Removing a declaration that does not exist is no error.
    """
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
    """A wide matrix is declared as the transpose of a point.

    The rows of nn.Linear(5, 2).weight are the columns of a point.
    """
    layer = nn.Linear(5, 2)
    layer.weight = nn.Parameter(Stiefel(5, 2).random().mT)
    declare(layer, "weight", Stiefel(5, 2))
    assert manifold_of(layer, "weight") == Stiefel(5, 2)
    assert torch.equal(points(layer.weight, Stiefel(5, 2)), layer.weight.mT)
    # a square matrix is not transposed
    Q = SO(3).random()
    assert points(Q, SO(3)) is Q
