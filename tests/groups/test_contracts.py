"""Every group keeps every contract, and `check_manifold` notices one that does not."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from isometry.groups import QR, SO, AbstractGroup, AbstractManifold, O, Sphere, U
from isometry.linalg import expm_skew, skew
from isometry.testing import check_manifold, check_map
from tests.groups.registry import MANIFOLDS, dtype_of
from tests.helpers import new_generator


@pytest.mark.parametrize("precision", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("manifold", MANIFOLDS, ids=str)
def test_every_manifold_keeps_its_contracts(
    manifold: AbstractManifold,
    precision: torch.dtype,
    rng: torch.Generator,
) -> None:
    """Every manifold passes the suite of `isometry.testing`, in all four dtypes."""
    check_manifold(manifold, dtype=dtype_of(manifold, precision), generator=rng)


def broken(base: AbstractManifold, **methods: Any) -> AbstractManifold:
    """A manifold with some of its methods replaced."""
    derived = type(f"Broken{type(base).__name__}", (type(base),), methods)
    return derived(**vars(base))


def biased(self: Any, *batch: int, **options: Any) -> Tensor:
    """The Q of LAPACK's QR, which is not Haar: its first entries all have one sign."""
    X = torch.randn(*batch, self.n, self.n, **options)
    Q = torch.linalg.qr(X).Q
    return torch.cat([Q[..., :-1], Q[..., -1:] * Q.det()[..., None, None]], -1)


def concentrated(self: Any, *batch: int, **options: Any) -> Tensor:
    """Exponentials of Gaussian matrices, which are concentrated around the identity."""
    return expm_skew(skew(torch.randn(*batch, self.n, self.n, **options)))


@dataclass(frozen=True)
class NotClosed(AbstractGroup):
    """Rotations about two of three axes do not make a group."""

    @property
    def size(self) -> int:
        return 3

    is_complex = False

    def algebra(self, X: Tensor) -> Tensor:
        mask = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 0, 0]])
        return skew(X * mask)


class NotADataclass(AbstractGroup):
    """Without `@dataclass(frozen=True)`, two equal objects do not compare equal."""

    is_complex = False

    @property
    def size(self) -> int:
        return 3

    def algebra(self, X: Tensor) -> Tensor:
        return skew(X)


@dataclass
class NotFrozen(NotADataclass):
    """A dataclass that is not frozen has no hash."""


def _first_of_batch(_self: Any, X: Tensor) -> Tensor:
    """Index from the front, and so mistake a batch axis for rows."""
    A = torch.zeros(3, 3, dtype=X.dtype)
    A[0, 1], A[1, 0] = X[0, 1], -X[0, 1]
    return A


def _across_the_batch(_self: Any, X: Tensor) -> Tensor:
    """Skew matrices of the right shape, in which the matrices of a batch are mixed."""
    return skew(X) + skew(X).mean(0) if X.ndim > 2 else skew(X)


def unseeded(_self: Any, *batch: int, generator: Any = None, **options: Any) -> Tensor:
    """Haar samples from torch's global generator instead of the argument."""
    del generator
    return SO(3).random(*batch, **options)


def tangent(_self: Any, Q: Tensor, X: Tensor) -> Tensor:
    return X - Q * (Q * X).sum(-1, keepdim=True)


def oblique(_self: Any, Q: Tensor, X: Tensor) -> Tensor:
    """A projection to the tangent space that is not orthogonal."""
    d = Q + 0.2 * torch.roll(Q, 1, -1)
    return X - d * (Q * X).sum(-1, keepdim=True) / (Q * d).sum(-1, keepdim=True)


def curved(_self: Any, _Q: Tensor, E: Tensor) -> Tensor:
    length = E.norm(dim=-1)
    return torch.pi - length * (1 + 0.1 * length)


def _without_gradient(_self: Any, Q: Tensor, P: Tensor) -> Tensor:
    return Sphere(3).log(Q, P.detach())


def _half_gradient(M: Any, Q: Tensor, P: Tensor) -> Tensor:
    """A distance that differentiates the metric but not `log`, as on `Stiefel` once."""
    E = Sphere(3).log(Q, P).detach()
    return M.inner(Q, E, E).sqrt() + 0 * Q[..., 0]


def _infinite_gradient(M: Any, Q: Tensor, P: Tensor) -> Tensor:
    E = M.log(Q, P)
    return M.inner(Q, E, E).sqrt()


def _any_component(_M: Any, Q: Tensor) -> Tensor:
    """A different component for each point of a batch, on a connected group."""
    return torch.arange(len(Q)).to(Q)[:, None]


G = SO(3)
BROKEN = [
    ("algebra.*as if it were alone", broken(G, algebra=_across_the_batch)),
    ("algebra.*closed under brackets", NotClosed()),
    ("algebra.*skew", broken(G, algebra=lambda _, X: X.tril(-1))),
    ("algebra.*linear", broken(G, algebra=lambda _, X: skew(X) + skew(X**2))),
    ("dimension", broken(G, dimension=property(lambda _: 4))),
    (
        "algebra_projection.*onto the values of `algebra`",
        broken(G, algebra_projection=lambda _, X: X - X.mT),
    ),
    (
        "algebra_coordinates.*undone by `algebra`",
        broken(G, algebra_coordinates=lambda _, A: A.triu()),
    ),
    (
        "algebra_coordinates.*least norm",
        broken(G, algebra_coordinates=lambda _, A: A),
    ),
    ("project.*idempotent", broken(Sphere(3), project=lambda *a: 0.9 * tangent(*a))),
    ("project.*self-adjoint", broken(Sphere(3), project=oblique)),
    ("dimension.*tangent", broken(Sphere(3), project=lambda _, Q, X: X + 0 * Q)),
    (
        "inner.*bi-invariant",
        broken(G, inner=lambda _, Q, E, F: ((E * F) @ Q).sum((-2, -1))),
    ),
    ("gradient.*represent", broken(G, gradient=lambda M, Q, X: 2 * M.project(Q, X))),
    ("gradient.*tangent", broken(Sphere(3), gradient=lambda _, Q, X: X + 0 * Q)),
    ("log.*undo", broken(Sphere(3), log=lambda M, Q, P: M.project(Q, P - Q))),
    (
        "exp.*Gauss",
        broken(Sphere(4), exp=lambda M, Q, E: M.nearest(Q + E + (E * E).sum() * E)),
    ),
    (
        "component.*along geodesics",
        broken(O(3), component=lambda _, Q: Q[..., 0, :1].sgn()),
    ),
    ("component.*same at all points", broken(SO(3), component=_any_component)),
    (
        "retract.*agree with `exp`",
        broken(
            G, algebra_retraction=lambda _, A, phi: expm_skew(A * (1 + (phi == QR())))
        ),
    ),
    ("transport.*tangent", broken(Sphere(3), transport=lambda _, _Q, _P, E: E)),
    (
        "curvature.*geodesic triangles",
        broken(Sphere(3), curvature=lambda _, Q, _E, _F: 0.5 * Q[..., 0] ** 0),
    ),
    (
        "connection.*torsion",
        broken(G, connection=lambda _, X, Y: (X @ Y + Y @ X) / 2),
    ),
    ("connection.*torsion", broken(G, connection=lambda _, X, Y: X @ Y - Y @ X)),
    ("random.*Haar", broken(G, random=biased)),
    ("random.*Haar", broken(G, random=concentrated)),
    (
        "random.*uniform",
        broken(
            Sphere(3),
            random=lambda M, *b, **o: M.nearest(torch.randn(*b, 3, **o) + 0.2),
        ),
    ),
    ("random.*repeat itself", broken(G, random=unseeded)),
    (
        "velocity.*derivative",
        broken(Sphere(3), velocity=lambda _, Q, E: 2 * E + 0 * Q),
    ),
    (
        "point.*gradient",
        broken(Sphere(3), point=lambda M, X, B, name="exp": _detached(M, X, B, name)),
    ),
    ("log.*gradient with respect to `P`", broken(Sphere(3), log=_without_gradient)),
    (
        "distance.*gradient with respect to `Q`",
        broken(Sphere(3), distance=_half_gradient),
    ),
    ("distance.*gradient 0 at", broken(Sphere(3), distance=_infinite_gradient)),
    (
        "nearest.*uses only `algebra`",
        broken(G, nearest=lambda _, X: SO(3).nearest(X + 0.1)),
    ),
    ("polish.*square", broken(G, polish=lambda _, Q: Q)),
    ("border_distance.*linear", broken(Sphere(3), border_distance=curved)),
    ("torus.*abelian", broken(G, torus=lambda M, _: _random_algebra(M), rank=2)),
    (
        "contains.*false off",
        broken(G, contains=lambda _, Q: Q[..., 0, 0] == Q[..., 0, 0]),
    ),
]


def _detached(M: Any, X: Tensor, B: Tensor | None, name: str) -> Tensor:
    base = M.origin(dtype=X.dtype) if B is None else B
    Y = Sphere.point(M, X, base, name)
    return Y + 0.1 * (X - X.detach())


def _random_algebra(M: Any) -> Tensor:
    rng = new_generator(0)
    return M.algebra(torch.randn(2, 3, 3, dtype=torch.float64, generator=rng))


@pytest.mark.errors
@pytest.mark.parametrize(("message", "manifold"), BROKEN, ids=str)
def test_broken_manifolds_are_found(message, manifold):
    """Each contract fails for a manifold that breaks it, and says so."""
    with pytest.raises(AssertionError, match=rf"`{message}.*; in torch\.float64"):
        check_manifold(manifold)


@pytest.mark.errors
def test_wrong_gradients_are_found_in_single_precision():
    """Gradients are checked in double precision, whatever the dtype of the case.

    For a while, a case in single precision checked no gradient.
    """
    sphere = broken(
        Sphere(3), point=lambda M, X, B, name="exp": _detached(M, X, B, name)
    )
    message = r"`point.*have the right gradient.*; in torch\.float64"
    with pytest.raises(AssertionError, match=message):
        check_manifold(sphere, dtype=torch.float32)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("message", "group"),
    [
        (r"__eq__.* does not: make the class a frozen dataclass", NotADataclass()),
        (r"__eq__.* does not: make the class a frozen dataclass", NotFrozen()),
        (
            r"algebra.* \(\*batch, 3, 3\) to .*same shape; .* \(3, 3\) gives \(2, 2\)",
            broken(G, algebra=lambda _, X: skew(X[..., :2, :2])),
        ),
        (
            r"algebra.*same shape; .* \(4, 3, 3\) raises RuntimeError",
            broken(G, algebra=_first_of_batch),
        ),
        (
            r"algebra.*same shape; .* \(4, 3, 3\) gives \(3, 3\)",
            broken(G, algebra=lambda _, X: skew(X if X.ndim == 2 else X[0])),
        ),
    ],
    ids=["no dataclass", "not frozen", "size", "raises", "ignores"],
)
def test_a_class_of_another_form_is_told_what_is_missing(message, group):
    """The error says what is wrong with the class.

    It used to be a raw error of torch, or to name a contract that the class keeps.
    """
    with pytest.raises(AssertionError, match=rf"`{message}"):
        check_manifold(group)


@pytest.mark.parametrize("wrong", [SO, "SO(3)", torch.eye(1)], ids=type)
def test_what_is_checked_is_a_manifold(wrong):
    with pytest.raises(TypeError, match=r"`manifold` must be a manifold.*own; got "):
        check_manifold(wrong)


def test_the_default_is_double_precision_and_a_fixed_seed():
    """`check_manifold` and `check_map` leave torch's own generator alone.

    They do not depend on the default device; both used to raise if it was not the CPU.
    """
    state = torch.get_rng_state()
    for device in ("cpu", "meta"):
        with torch.device(device):
            check_manifold(U(1))
            check_map("exp", n=2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.errors
def test_the_dtype_must_be_of_the_field():
    with pytest.raises(TypeError, match="`dtype` must be complex for U"):
        check_manifold(U(2), dtype=torch.float32)
