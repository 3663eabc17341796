"""The manifolds and optimizers that the suites run over. A new one is one row."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from isometry.groups import (
    SO,
    SU,
    AbstractManifold,
    O,
    Product,
    Sp,
    Sphere,
    Stiefel,
    Torus,
    U,
)
from isometry.groups._maps import parse_map
from isometry.optim import RiemannianAdam, RiemannianRMSprop, RiemannianSGD
from tests.groups.registry import Quadrupole

MANIFOLDS: list[AbstractManifold] = [
    SO(1),
    SO(5),
    U(3),
    SU(3),
    Sp(2),
    Torus(3),
    Product(SO(2), SO(3)),
    Quadrupole(),
    O(4),
    # the last two Stiefel manifolds have n > 2k, and so a `TallFrame`
    Stiefel(4, 3),
    Stiefel(3, 2, is_complex=True),
    Stiefel(9, 3),
    Stiefel(7, 2, is_complex=True),
    Sphere(5),
]

#: by name: the class, the kind of its slow twin, and options
OPTIMIZERS: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "SGD": (RiemannianSGD, "sgd", {}),
    "momentum": (RiemannianSGD, "sgd", {"momentum": 0.9}),
    "dampening": (RiemannianSGD, "sgd", {"momentum": 0.9, "dampening": 0.5}),
    "Nesterov": (RiemannianSGD, "sgd", {"momentum": 0.9, "nesterov": True}),
    "ascent": (RiemannianSGD, "sgd", {"momentum": 0.5, "maximize": True}),
    "Adam": (RiemannianAdam, "adam", {}),
    "AMSGrad": (RiemannianAdam, "adam", {"amsgrad": True, "betas": (0.8, 0.9)}),
    "no eps": (RiemannianAdam, "adam", {"eps": 0.0}),
    "RMSprop": (RiemannianRMSprop, "rmsprop", {}),
    "RMSprop with momentum": (RiemannianRMSprop, "rmsprop", {"momentum": 0.9}),
    "TensorFlow 1": (
        RiemannianRMSprop,
        "rmsprop",
        {"alpha": 0.9, "eps": 1e-10, "initial_accumulator": 1.0, "eps_inside": True},
    ),
    "Adagrad": (
        RiemannianRMSprop,
        "rmsprop",
        {"eps": 0.0, "initial_accumulator": 0.1, "sum_squares": True},
    ),
}


def retractions(manifold: AbstractManifold) -> list[str]:
    """Names of the maps that an optimizer can step along."""
    names = ("exp", "cayley", "polar", "qr", "pade-2", "pade-3")
    return [name for name in names if isinstance(parse_map(name), manifold.maps)]


def double_dtype_of(manifold: AbstractManifold) -> torch.dtype:
    return torch.complex128 if manifold.is_complex else torch.float64


def single_dtype_of(manifold: AbstractManifold) -> torch.dtype:
    return torch.complex64 if manifold.is_complex else torch.float32


def loss(Q: Tensor, target: Tensor) -> Tensor:
    """A loss that is not quadratic."""
    far = (Q - target).abs().square().sum()
    if Q.is_complex():
        return far + (Q.real**4).sum() - (Q.imag**3).sum()
    return far + (Q**4).sum()


def plain(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """A plain parameter group, as the list that an optimizer takes."""
    return [{"params": list(parameters), "manifold": None}]
