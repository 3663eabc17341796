"""Geometry inside `torch.autocast` is the same as outside.

Autocast computes products of float32 matrices in bfloat16, which has 8 bits. Methods
used to compute under it: the result of `SO(6).nearest` was in bfloat16 and off by 1e-2,
`SO(6).contains` raised, and the default `defect` of a user's own group was wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isfunction
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from isometry._orthonormal import newton_schulz
from isometry.groups import SO, AbstractGroup, AbstractManifold
from isometry.linalg import polar
from isometry.testing._points import maps_of
from tests.groups.registry import MANIFOLDS, Adjoint, Spin, dtype_of

# Every method that computes with tensors, with one letter for each argument: points P
# and Q, tangent vectors E and F at Q, an array X, an element A of the Lie algebra, a
# group element R near the identity, angles t, and the position s on a geodesic.
ARGUMENTS = {
    "algebra": "X",
    "algebra_coordinates": "A",
    "algebra_log": "R",
    "algebra_projection": "X",
    "angles": "X",
    "border_distance": "QE",
    "check_point": "Q",
    "component": "Q",
    "connection": "AA",
    "contains": "Q",
    "coordinates": "PQ",
    "curvature": "QEF",
    "defect": "Q",
    "distance": "QP",
    "exp": "QE",
    "from_angles": "t",
    "geodesic": "QPs",
    "gradient": "QX",
    "inner": "QEF",
    "largest_angle": "XQ",
    "log": "QP",
    "mean": "Q",
    "nearest": "X",
    "point": "XQ",
    "polish": "Q",
    "project": "QX",
    "torus": "t",
    "transport": "QPE",
    "velocity": "QE",
    "worst_defect": "X",
}
# these methods take more than tensors, and have tests of their own below
OTHERS = {"random", "refusal", "retract", "step", "algebra_retraction"}
# these methods compute nothing, or draw numbers and do not multiply them
NO_PRODUCTS = {
    "check_tensor",
    "check_tensors",
    "frame",
    "gaussian",
    "origin",
    "resolve",
    "resolve_coordinates",
    "resolve_dtype",
    "tolerance",
}

GEOMETRY = [*MANIFOLDS, Spin(3), Adjoint(SO(3))]


def methods(manifold: AbstractManifold) -> set[str]:
    """The names of the public methods of a manifold."""
    items = [item for cls in type(manifold).__mro__ for item in vars(cls).items()]
    return {k for k, f in items if isfunction(f) and not k.startswith("_")}


def cases() -> list[Any]:
    """Each manifold of the registry with each method that it has."""
    return [
        pytest.param(M, name, id=f"{M}-{name}")
        for M in GEOMETRY
        for name in sorted(methods(M) & ARGUMENTS.keys())
    ]


def arguments(manifold: AbstractManifold, rng: torch.Generator) -> dict[str, Tensor]:
    """Batches of three of everything that `ARGUMENTS` names, by letter."""
    dtype = dtype_of(manifold, torch.float32)
    options: dict[str, Any] = {"dtype": dtype, "generator": rng}
    X = manifold.gaussian(3, **options)
    Q = manifold.random(1, **options).expand(3, *manifold.shape)
    E, F = (
        0.1 * manifold.project(Q, manifold.gaussian(3, **options)) for _ in range(2)
    )
    P = manifold.exp(Q, E)
    inputs = {"Q": manifold.exp(Q, F), "X": X, "P": P, "s": torch.full((3,), 0.5)}
    inputs |= {k: manifold.project(inputs["Q"], V) for k, V in (("E", E), ("F", F))}
    inputs["t"] = torch.randn(3, manifold.rank or 1, generator=rng)
    if isinstance(manifold, AbstractGroup):
        inputs["A"] = manifold.algebra_projection(0.3 * X)
        inputs["R"] = manifold.exp(manifold.origin(3, dtype=dtype), inputs["A"])
    return inputs


def outcome(function: Callable[[], Any]) -> Any:
    """What a function returns, or the error that it raises."""
    try:
        return function()
    except (ValueError, TypeError, RuntimeError) as error:
        return type(error), str(error)


def check_same(function: Callable[[], Any]) -> None:
    """Check that a function has the same result, or error, inside autocast."""
    expected = outcome(function)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = outcome(function)
    if isinstance(expected, Tensor):
        assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert str(result) == str(expected)


@pytest.mark.parametrize(("manifold", "name"), cases())
def test_a_method_is_the_same_inside_autocast(manifold, name, rng):
    inputs = arguments(manifold, rng)
    tensors = [inputs[key] for key in ARGUMENTS[name]]
    named = {"name": "Q"} if name == "check_point" else {}
    check_same(lambda: getattr(manifold, name)(*tensors, **named))


@pytest.mark.parametrize("manifold", GEOMETRY, ids=str)
def test_maps_and_samples_are_the_same_inside_autocast(manifold, rng):
    inputs = arguments(manifold, rng)
    Q, E, X = inputs["Q"], inputs["E"], inputs["X"]
    dtype = Q.dtype
    seed = int(torch.randint(1000, (), generator=rng))
    for phi in maps_of(manifold):
        check_same(lambda phi=phi: manifold.retract(Q, E, phi))
        check_same(lambda phi=phi: manifold.step(Q, E, phi))
        check_same(lambda phi=phi: manifold.point(X, Q, phi))
        if isinstance(manifold, AbstractGroup):
            check_same(lambda phi=phi: manifold.algebra_retraction(inputs["A"], phi))

    def sample() -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return manifold.random(3, dtype=dtype, generator=generator)

    check_same(sample)
    where: dict[str, Any] = {"name": "Q", "projection": "nearest"}
    check_same(lambda: manifold.refusal(X, 1e-6, dtype, **where))


class Rounded:
    """A class that is no manifold, with methods that a user's group inherits."""

    def nearest(self, X: Tensor) -> Tensor:
        return newton_schulz(polar(X)) @ torch.eye(3)

    def where(self, device: str) -> str:
        return device


@dataclass(frozen=True)
class RoundedSO(Rounded, SO):
    """Rotations with the method of another class."""


def test_a_method_of_another_base_class_is_the_same_inside_autocast(rng):
    """A method of a class that is no manifold used to return bfloat16."""
    X = torch.randn(3, 3, generator=rng)
    check_same(lambda: RoundedSO(3).nearest(X))
    assert type("Derived", (RoundedSO,), {}).nearest is RoundedSO.nearest
    # not a method of manifolds, so its argument need not be a device of torch
    assert RoundedSO(3).where(device="here") == "here"


class Halved(Rounded):
    """A class that overrides the method of the other class."""

    def nearest(self, X: Tensor) -> Tensor:
        return super().nearest(X) / 2


def test_base_classes_keep_their_order(rng):
    """A wrapped method calls the next class in the order of base classes.

    It used to be a copy of `Rounded.nearest`, which hid the method of `Halved`.
    """
    X = torch.randn(3, 3, generator=rng)
    both = type("Both", (RoundedSO, Halved), {})
    expected = RoundedSO(3).nearest(X) / 2
    check_same(lambda: both(3).nearest(X))
    assert torch.equal(both(3).nearest(X), expected)


@pytest.mark.parametrize("manifold", GEOMETRY, ids=str)
def test_every_method_is_in_one_of_these_tests(manifold):
    """A new method of manifolds is one row of `ARGUMENTS`."""
    assert methods(manifold) <= ARGUMENTS.keys() | OTHERS | NO_PRODUCTS
