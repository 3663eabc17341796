"""Public functions on tensors without values: the meta device, and fake tensors.

Models are built on the meta device before they are loaded, and in FakeTensorMode to
plan memory. Only what returns or checks numbers may ask for values there.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

import isometry
from isometry import groups, linalg, optim, rotations
from isometry import nn as layers
from isometry.groups import SO, SU, U

# a function of the device, for each public name
Row = Callable[[str], Any]


def zeros(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, device=device, dtype=dtype, requires_grad=True)


def layer(device: str) -> nn.Module:
    return isometry.orthogonal(nn.Linear(4, 4, device=device))


def square(function: Callable[..., Any], **options: Any) -> Row:
    return lambda device: function(zeros(device, 2, 4, 4), **options)


def pair(function: Callable[..., Any]) -> Row:
    return lambda device: function(zeros(device, 2, 4, 4), zeros(device, 2, 4, 4))


def recurrent(name: str) -> Row:
    """A layer on a sequence; the two that are no layers have other inputs."""
    kind = getattr(layers, name)
    if name == "ModReLU":
        return lambda device: kind(4, device=device)(zeros(device, 2, 4))
    shape = (2, 3) if name == "ExpRNNCell" else (5, 2, 3)
    return lambda device: kind(3, 4, device=device)(zeros(device, *shape))


def on(M: Any) -> Row:
    """Everything of a manifold that needs no logarithm."""

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
        return M.retract(M.exp(Q, E), E)

    return run


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
    "isometry.groups.Polar": lambda d: SO(4).retract(*both(d), groups.Polar()),
    "isometry.groups.QR": lambda d: SO(4).retract(*both(d), groups.QR()),
    "isometry.groups.declare": lambda d: groups.declare(
        nn.Linear(4, 4, device=d), "weight", SO(4)
    ),
    "isometry.rotations.angle": lambda d: rotations.angle(
        zeros(d, 2, 3, 3), zeros(d, 2, 3, 3)
    ),
    "isometry.rotations.from_quaternion": lambda d: rotations.from_quaternion(
        zeros(d, 2, 4)
    ),
    "isometry.rotations.from_vector": lambda d: rotations.from_vector(zeros(d, 2, 3)),
    "isometry.rotations.to_quaternion": lambda d: rotations.to_quaternion(
        zeros(d, 2, 3, 3)
    ),
    "isometry.rotations.to_vector": lambda d: rotations.to_vector(zeros(d, 2, 3, 3)),
    **{f"isometry.nn.{name}": recurrent(name) for name in layers.__all__},
    **{f"isometry.groups.{name}": on(M) for name, M in MANIFOLDS.items()},
}
# what is about values, or has nothing to do with tensors
EXEMPT = {
    "isometry.diagnose": "returns numbers",
    "isometry.load_foreign": "reads a checkpoint",
    "isometry.show_config": "is about the machine",
    "isometry.linalg.check_skew": "checks numbers",
    "isometry.linalg.release_memory": "takes no tensor",
    "isometry.groups.AbstractManifold": "is a base class",
    "isometry.groups.AbstractGroup": "is a base class",
    "isometry.groups.AbstractRetraction": "is a base class",
    "isometry.groups.manifold_of": "looks a name up",
    "isometry.optim.RiemannianSGD": "measures the length of a step",
    "isometry.optim.RiemannianAdam": "measures the length of a step",
    "isometry.optim.RiemannianRMSprop": "measures the length of a step",
}
# What looks at values to choose a branch. A fake tensor may stand for a tensor whose
# values come later, so there a wrong guess would be a wrong program.
LOOKS = {
    "isometry.groups.declare",
    "isometry.linalg.expm_skew_adjoint",
    "isometry.linalg.expm_skew_frechet",
    "isometry.linalg.logm_unitary",
    # their coordinates start at a logarithm
    "isometry.nn.ExpRNN",
    "isometry.nn.ExpRNNCell",
}


def both(device: str) -> tuple[Tensor, Tensor]:
    return zeros(device, 4, 4), zeros(device, 4, 4)


def test_every_public_name_has_a_row():
    """A new one needs a row, or a reason."""
    names = {
        f"{module.__name__}.{name}"
        for module in (isometry, linalg, groups, layers, optim, rotations)
        for name in module.__all__
        if callable(getattr(module, name))
    }
    assert names == ROWS.keys() | EXEMPT.keys()
    assert not ROWS.keys() & EXEMPT.keys()


@pytest.mark.parametrize("name", ROWS)
def test_on_the_meta_device(name):
    """Results are on that device, and have gradients there."""
    results = [Y for Y in tree_leaves(ROWS[name]("meta")) if isinstance(Y, Tensor)]
    assert all(Y.is_meta for Y in results)
    if any(Y.requires_grad for Y in results):
        torch.stack([Y.abs().sum() for Y in results]).sum().backward()


@pytest.mark.parametrize("name", sorted(ROWS.keys() - LOOKS))
def test_on_fake_tensors(name):
    with FakeTensorMode():
        ROWS[name]("cpu")


@pytest.mark.parametrize("name", sorted(LOOKS))
def test_what_looks_at_values_refuses_fake_tensors(name):
    """With an error, never with a guess."""
    with (
        FakeTensorMode(),
        pytest.raises((TypeError, RuntimeError), match=r"plain tensor|scalar_dense"),
    ):
        ROWS[name]("cpu")
