"""Public functions on tensors without numbers: meta and fake tensors.

Models are built on the meta device before they are loaded, and in FakeTensorMode to
plan memory. Only functions that return or check numbers may refuse such tensors.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

import isometry
from isometry import groups, linalg, optim, rotations
from isometry import nn as layers
from isometry.groups import SO, SU, U
from tests.groups.registry import Quadrupole

# a function of the device, for each public name
Row = Callable[[str], Any]


def zeros(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, device=device, dtype=dtype, requires_grad=True)


def two(device: str, *shape: int) -> tuple[Tensor, Tensor]:
    return zeros(device, *shape), zeros(device, *shape)


def layer(device: str) -> nn.Module:
    return isometry.orthogonal(nn.Linear(4, 4, device=device))


def square(function: Callable[..., Any], **options: Any) -> Row:
    return lambda device: function(zeros(device, 2, 4, 4), **options)


def pair(function: Callable[..., Any]) -> Row:
    return lambda device: function(*two(device, 2, 4, 4))


def recurrent(name: str) -> Row:
    """Apply a layer to a sequence; ModReLU and the cell have other inputs."""
    kind = getattr(layers, name)
    if name == "ModReLU":
        return lambda device: kind(4, device=device)(zeros(device, 2, 4))
    shape = (2, 3) if name == "ExpRNNCell" else (5, 2, 3)
    return lambda device: kind(3, 4, device=device)(zeros(device, *shape))


def on(M: Any) -> Row:
    """Call all methods of a manifold, except for a logarithm that is a search."""

    def run(device: str) -> Tensor:
        dtype = torch.complex64 if M.is_complex else torch.float32
        Q, X = (zeros(device, *M.shape, dtype=dtype) for _ in range(2))
        E = M.project(Q, X)
        M.inner(Q, E, E)
        M.gradient(Q, X)
        M.transport(Q, Q, E)
        M.nearest(X)
        M.contains(Q)
        M.random(2, device=device, dtype=dtype)
        if not isinstance(M, groups.Stiefel):
            E = E + M.log(Q, X) * M.distance(Q, X)
        return M.retract(M.exp(Q, E), E)

    return run


def trained(name: str) -> Row:
    """Two steps of an optimizer on each manifold, and by each kind of map."""

    def run(device: str) -> list[Tensor]:
        points = []
        pairs = [(M, "exp") for M in MANIFOLDS.values()]
        pairs += [(MANIFOLDS["SO"], phi) for phi in ("cayley", "polar", "qr")]
        for M, phi in pairs:
            dtype = torch.complex64 if M.is_complex else torch.float32
            p = nn.Parameter(zeros(device, 2, *M.shape, dtype=dtype))
            optimizer = getattr(optim, name)([p], lr=0.1, manifold=M, retraction=phi)
            for _ in range(2):
                p.abs().sum().backward()
                optimizer.step()
            points += [p, *optimizer.state[p].values()]
        return [X for X in points if X.ndim]

    return run


def rebased(device: str) -> Tensor:
    """Make a step with a layer that moves its base."""
    linear = isometry.orthogonal(nn.Linear(4, 4, device=device), rebase_every=1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    linear(zeros(device, 2, 4)).sum().backward()
    optimizer.step()
    return linear.weight


def mapped(phi: Any) -> Row:
    return lambda device: SO(4).point(zeros(device, 4, 4), None, phi)


MANIFOLDS = {
    "O": groups.O(4),
    "SO": SO(4),
    "U": U(3),
    "SU": SU(3),
    "Sp": groups.Sp(2),
    "Torus": groups.Torus(3),
    "Product": groups.Product(SO(3), SO(2)),
    "Stiefel": groups.Stiefel(5, 2),
    "Sphere": groups.Sphere(4),
}
ROWS: dict[str, Row] = {
    "isometry.orthogonal": lambda d: layer(d)(zeros(d, 2, 4)),
    "isometry.unitary": lambda d: (
        isometry.unitary(nn.Linear(4, 4, device=d, dtype=torch.complex64)).weight
    ),
    "isometry.constrain": lambda d: (
        isometry.constrain(nn.Linear(4, 4, device=d), SO(4)).weight
    ),
    "isometry.declare": lambda d: isometry.declare(nn.Linear(4, 4, device=d), SO(4)),
    "isometry.fold": lambda d: isometry.fold(layer(d)).weight,
    "isometry.rebase": lambda d: isometry.rebase(layer(d)).weight,
    "isometry.param_groups": lambda d: isometry.param_groups(layer(d), lr=0.1),
    "isometry.count_parameters": lambda d: isometry.count_parameters(layer(d)),
    "isometry.linalg.cayley": square(linalg.cayley),
    "isometry.linalg.cayley_inverse": square(linalg.cayley_inverse),
    "isometry.linalg.expm_skew": square(linalg.expm_skew),
    "isometry.linalg.expm_skew_adjoint": pair(linalg.expm_skew_adjoint),
    "isometry.linalg.expm_skew_frechet": pair(linalg.expm_skew_frechet),
    "isometry.linalg.expm_tall": lambda d: linalg.expm_tall(zeros(d, 2, 9, 2)),
    "isometry.linalg.householder": square(linalg.householder),
    "isometry.linalg.logm_unitary": square(linalg.logm_unitary),
    "isometry.linalg.pade": square(linalg.pade, degree=3, squarings="auto"),
    "isometry.linalg.polar": square(linalg.polar),
    "isometry.linalg.skew": square(linalg.skew),
    "isometry.groups.Exp": mapped(groups.Exp(3.0)),
    "isometry.groups.Cayley": mapped(groups.Cayley()),
    "isometry.groups.Pade": mapped(groups.Pade(2)),
    "isometry.groups.Householder": lambda d: (
        isometry.orthogonal(
            nn.Linear(4, 4, device=d), orthogonal_map=groups.Householder()
        ).weight
    ),
    "isometry.groups.Polar": lambda d: SO(4).retract(*two(d, 4, 4), groups.Polar()),
    "isometry.groups.QR": lambda d: SO(4).retract(*two(d, 4, 4), groups.QR()),
    "isometry.rotations.angle": lambda d: rotations.angle(*two(d, 2, 3, 3)),
    "isometry.rotations.from_quaternion": lambda d: rotations.from_quaternion(
        zeros(d, 2, 4)
    ),
    "isometry.rotations.from_vector": lambda d: rotations.from_vector(zeros(d, 2, 3)),
    "isometry.rotations.to_quaternion": lambda d: rotations.to_quaternion(
        zeros(d, 2, 3, 3)
    ),
    "isometry.rotations.to_vector": lambda d: rotations.to_vector(zeros(d, 2, 3, 3)),
    **{f"isometry.nn.{name}": recurrent(name) for name in layers.__all__},
    **{f"isometry.optim.{name}": trained(name) for name in optim.__all__},
    **{f"isometry.groups.{name}": on(M) for name, M in MANIFOLDS.items()},
}
# further paths through functions that have a row
MORE: dict[str, Row] = {
    "class indices": lambda d: layers.ExpRNN(3, 4, device=d)(
        torch.zeros(5, 2, dtype=torch.long, device=d)
    ),
    "a moving base": rebased,
}
# functions that need numbers, and say so if there are none
REFUSES: dict[str, Row] = {
    "isometry.diagnose": lambda d: isometry.diagnose(layer(d)),
    "isometry.linalg.check_skew": square(linalg.check_skew),
    # the iteration ends when the mean no longer moves
    "SO.mean": lambda d: SO(4).mean(zeros(d, 2, 4, 4)),
    # Newton's method from several starts, until one of them ends at the point
    "Stiefel.log": lambda d: groups.Stiefel(4, 2).log(*two(d, 4, 2)),
    # the same method, for a group known by its algebra only
    "AbstractGroup.log": lambda d: Quadrupole().log(*two(d, 5, 5)),
}
# functions that have nothing to do with tensors, or only with their numbers
EXEMPT = {
    "isometry.Diagnosis": "holds what `diagnose` returns",
    "isometry.load_foreign": "reads a checkpoint",
    "isometry.show_config": "is about the machine",
    "isometry.release_memory": "takes no tensor",
    "isometry.groups.AbstractManifold": "is a base class",
    "isometry.groups.AbstractGroup": "is a base class",
    "isometry.groups.AbstractMap": "is a base class",
    "isometry.groups.AbstractRetraction": "is a base class",
    "isometry.manifold_of": "looks a name up",
}


def test_every_public_name_has_a_row():
    """A new public name needs a row, or a reason for an exemption."""
    names = {
        f"{module.__name__}.{name}"
        for module in (isometry, linalg, groups, layers, optim, rotations)
        for name in module.__all__
        if callable(getattr(module, name))
    }
    listed = [*ROWS, *(name for name in REFUSES if name in names), *EXEMPT]
    assert sorted(names) == sorted(listed)


@pytest.mark.parametrize("device", ["meta", "fake"])
@pytest.mark.parametrize("name", [*ROWS, *MORE])
def test_results_have_no_numbers_either(name, device):
    """Results are on the same device, and their gradients have the right shapes.

    The Frechet derivative, logarithms, `declare`, `ExpRNN` and all optimizers used to
    look at the numbers of a fake tensor, and raised an error of torch.
    """
    is_fake = device == "fake"
    row = (ROWS | MORE)[name]
    with FakeTensorMode() if is_fake else contextlib.nullcontext():
        results = tree_leaves(row("cpu" if is_fake else "meta"))
        results = [Y for Y in results if isinstance(Y, Tensor)]
        assert all(isinstance(Y, FakeTensor) if is_fake else Y.is_meta for Y in results)
        assert all(Y.device.type == ("cpu" if is_fake else "meta") for Y in results)
        if any(Y.requires_grad for Y in results):
            torch.stack([Y.abs().sum() for Y in results]).sum().backward()


@pytest.mark.errors
@pytest.mark.parametrize("device", ["meta", "fake"])
@pytest.mark.parametrize("name", REFUSES)
def test_what_is_about_numbers_says_that_there_are_none(name, device):
    context = FakeTensorMode() if device == "fake" else contextlib.nullcontext()
    where = "in FakeTensorMode" if device == "fake" else "on the meta device"
    with context, pytest.raises(TypeError, match=f"must have numbers.* {where}"):
        REFUSES[name]("cpu" if device == "fake" else "meta")
