"""Each message says what was expected, what was passed and what to do."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import isometry
from isometry import declare
from isometry.groups import (
    QR,
    SO,
    SU,
    AbstractGroup,
    AbstractRetraction,
    Cayley,
    Exp,
    O,
    Pade,
    Polar,
    Product,
    Sp,
    Sphere,
    Stiefel,
    Torus,
    U,
    _stiefel_log,
)
from isometry.linalg import cayley, skew
from tests.groups.registry import Quadrupole

pytestmark = pytest.mark.errors


@pytest.mark.parametrize("group", [SO, U, SU, Sp, Torus])
@pytest.mark.parametrize("n", [-1, 2.0, "3"])
def test_sizes_are_numbers(group, n):
    with pytest.raises(ValueError, match=r"`n` must be an integer, at least 0; got"):
        group(n)


def test_the_sphere_has_a_dimension():
    with pytest.raises(ValueError, match=r"`n` must be an integer, at least 1; got 0"):
        Sphere(0)


@pytest.mark.parametrize("k", [-1, 4])
def test_columns_are_at_most_rows(k):
    with pytest.raises(ValueError, match=rf"`k` must be .* below n = 3; got {k}"):
        Stiefel(3, k)


def test_square_matrices_are_a_group():
    """Stiefel(3, 3) is refused, and the error names the group.

    It used to be O(3) with half of the metric, a special case in every method.
    """
    for is_complex, group in ((False, "O"), (True, "U")):
        with pytest.raises(ValueError, match=rf"below n = 3; got 3\..*`{group}\(3\)`"):
            Stiefel(3, 3, is_complex=is_complex)


def test_factors_are_of_one_field():
    for factors in ((), (SO(2), U(2))):
        with pytest.raises(ValueError, match=r"`factors` must be one or more groups"):
            Product(*factors)


def test_factors_are_groups():
    """A product takes groups only.

    A Stiefel manifold was accepted, and a missing attribute failed later (issue 14).
    """
    wrong: Any = Stiefel(3, 2)
    with pytest.raises(TypeError, match=r"`factors` must be groups.*Stiefel\(n=3, k=2"):
        Product(SO(3), wrong)


@pytest.mark.parametrize("method", ["random", "origin"])
@pytest.mark.parametrize("batch", [((2, 3),), (-1,), (2.0,)], ids=str)
@pytest.mark.parametrize(
    "manifold",
    [SO(2), Sp(1), Torus(2), Stiefel(3, 2), Sphere(2), Quadrupole()],
    ids=str,
)
def test_batches_are_sizes(manifold, batch, method):
    """A tuple for `batch` is refused with the right way to write it.

    The error used to list the signatures of `torch.randn` (issue 14).
    """
    with pytest.raises(
        TypeError, match=r"`batch` must be sizes, .* Write `random\(2, 3"
    ):
        getattr(manifold, method)(*batch)


def test_a_reflection_is_told_by_its_determinant():
    """The error for a reflection names its determinant.

    It used to be "a defect of 3.4e+38" (issue 14).
    """
    Q = torch.eye(3).repeat(2, 1, 1)
    Q[1, 0, 0] = -1
    message = r"`W` must have determinant 1 .*; got determinant -1 \(1 of 2 matrices\)"
    with pytest.raises(ValueError, match=message):
        SO(3).check_point(Q, name="W")
    # This matrix is not orthogonal and has a negative determinant. The error used to be
    # "a defect of inf".
    message = r"point of .* a defect of 5\.2e\+00, above .*, and determinant -8\. Pro"
    with pytest.raises(ValueError, match=message):
        SO(3).check_point(2 * Q, name="W")


@dataclass(frozen=True)
class RigidMotions(AbstractGroup):
    """SE(3), a group that is not compact."""

    @property
    def size(self) -> int:
        return 4

    is_complex = False

    def algebra(self, X: torch.Tensor) -> torch.Tensor:
        A = torch.nn.functional.pad(skew(X[..., :3, :3]), (0, 1, 0, 1))
        return A + torch.nn.functional.pad(X[..., :3, 3:], (3, 0, 0, 1))


def test_groups_are_compact():
    """A group that is not compact is refused.

    Constraining a weight to SE(3) used to give the advice to take the polar factor.
    """
    message = r"`algebra` of Rigid.* must be skew.*entry 1.0e\+00 .*Only compact groups"
    layer = torch.nn.Linear(4, 4)
    for call in (
        lambda: isometry.constrain(layer, "weight", RigidMotions()),
        lambda: declare(layer, "weight", RigidMotions()),
        lambda: RigidMotions().random(),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@dataclass(frozen=True)
class NoFactors(SO):
    """Rotations that accept exp, cayley and pade-m, but not polar and qr."""

    maps = (Exp, Cayley, Pade)


def test_declared_maps_are_the_maps_to_use():
    """A group accepts every map that it declares.

    The error used to say: must be one of exp, cayley, pade-3; got 'pade-3' (issue 14).
    """
    for name in ("exp", "cayley", "pade-3", "pade-1", Pade(3)):
        NoFactors(3).resolve(name)
        isometry.constrain(torch.nn.Linear(3, 3), "weight", NoFactors(3), name)
    for name in ("polar", "qr", QR()):
        with pytest.raises(ValueError, match=r"one of exp, cayley, pade-m for NoFac"):
            NoFactors(3).resolve(name)
    assert Product(SO(2), NoFactors(3)).maps == (Exp, Cayley, Pade)
    assert Product(SO(2), SO(3)).maps == (AbstractRetraction,)
    assert Product(SU(2), Sp(1)).maps == (Exp, Polar)


def test_points_have_a_shape_and_a_field():
    wrong: Any = [[1.0]]
    with pytest.raises(TypeError, match=r"`W` must be a torch.Tensor; got list"):
        SO(1).check_tensor(wrong, name="W")
    with pytest.raises(ValueError, match=r"shape \(\*batch, 3, 3\) .* got \(3, 4\)"):
        SO(3).check_tensor(torch.zeros(3, 4), name="W")
    with pytest.raises(ValueError, match=r"shape \(\*batch, 3, 3\) .* got \(3,\)"):
        SO(3).check_tensor(torch.zeros(3), name="W")
    with pytest.raises(
        TypeError, match=r"real floating-point dtype .* got torch.int64"
    ):
        SO(3).check_tensor(torch.zeros(3, 3, dtype=torch.int64), name="W")
    with pytest.raises(
        TypeError, match=r"complex dtype for U\(n=3\); got torch.float32"
    ):
        U(3).contains(torch.zeros(3, 3))


@pytest.mark.parametrize("method", ["random", "origin"])
@pytest.mark.parametrize("manifold", [SO(2), U(2), Stiefel(3, 2), Sphere(2)], ids=str)
def test_points_are_made_in_the_field(manifold, method):
    wrong = torch.float32 if manifold.is_complex else torch.complex64
    for dtype in (wrong, torch.int64):
        with pytest.raises(
            TypeError, match=r"`dtype` must be .*; got torch\.\w+\. Use"
        ):
            getattr(manifold, method)(2, dtype=dtype)


@pytest.mark.parametrize("value", [2.0, math.nan, math.inf])
def test_points_are_on_the_manifold(value):
    """The error has the defect, its bound and the remedy; NaN is infinitely far."""
    for manifold in (SO(2), U(2), Torus(2), Stiefel(3, 2), Sphere(3), Quadrupole()):
        Q = manifold.origin(2)
        Q[1] *= value
        with pytest.raises(
            ValueError,
            match=r"`W` must be a point of .*; got a defect of \S+, above \S+ for "
            r"torch.*nearest\(W\)",
        ):
            manifold.check_point(Q, name="W")
        manifold.check_point(Q[:1], name="W")
        manifold.check_point(Q[:0], name="W")


@pytest.mark.parametrize("name", ["expo", "cayley-3", "pad", "", "exp-1", 3])
def test_retractions_have_names(name):
    message = r"`retraction` must be one of exp, cayley, pade-m, polar, qr .* got"
    with pytest.raises(ValueError, match=message):
        SO(3).resolve(name)
    with pytest.raises(ValueError, match=message):
        SO(3).retract(torch.eye(3), torch.zeros(3, 3), name)


@pytest.mark.parametrize(
    "name", ["pade", "pade-", "pade-0", "pade-x", "pade--1", "pade-m"]
)
def test_pade_has_a_degree(name):
    for manifold in (SO(3), Stiefel(4, 2), Sphere(3)):
        with pytest.raises(ValueError, match=r"must name the degree .* got 'pade"):
            manifold.resolve(name)


def test_retractions_that_leave_the_group_are_refused():
    """A retraction that leaves the group is refused.

    In SU(3) the determinant of cayley(A) need not be 1. In Sp(n) the columns come in
    pairs, which qr does not preserve.
    """
    for group, name in ((SU(3), "cayley"), (SU(3), "pade-2"), (Sp(1), "qr")):
        with pytest.raises(ValueError, match=r"`retraction` must be one of .* for S"):
            group.resolve(name)
    with pytest.raises(
        ValueError, match=r"one of exp for Quadrupole\(\); got 'cayley'"
    ):
        Quadrupole().resolve("cayley")


@pytest.mark.parametrize("name", ["polar", "qr"])
def test_only_some_retractions_have_coordinates(name):
    for manifold in (SO(3), O(3), Stiefel(3, 2), Sphere(3)):
        Q = manifold.origin()
        with pytest.raises(ValueError, match=r"find coordinates.*itself as the base"):
            manifold.coordinates(Q, None, name)


def test_a_group_need_not_know_its_torus():
    with pytest.raises(
        ValueError, match=r"torus; .* defines no .* in a group, `torus`"
    ):
        Quadrupole().torus(torch.zeros(1))
    assert Quadrupole().rank is None
    assert Product(SO(3), Quadrupole()).rank is None


def test_a_stiefel_logarithm_that_does_not_converge(monkeypatch, rng):
    """If the iteration does not converge, the error says so.

    The test stops it early, since it converged for every pair of points that was tried.
    """
    for name, number in {"_TURNS": 1, "_SHOTS": 0, "_RESTARTS": 1}.items():
        monkeypatch.setattr(_stiefel_log, name, number)
    Q, P = Stiefel(4, 2).random(2, generator=rng)
    with pytest.raises(
        ValueError, match=r"`P` must be joined .*iteration stopped \S+ f"
    ):
        Stiefel(4, 2).log(Q, P)


def test_an_error_names_the_argument_that_is_not_a_point(rng):
    """The error names the argument with the defect.

    Each argument is checked, because the product Q^H P has a smaller defect.
    """
    good = SO(3).random(4, generator=rng, dtype=torch.float64)
    bad = good + 1e-6
    for name, f in (
        ("Q", lambda: SO(3).log(bad, good)),
        ("P", lambda: SO(3).log(good, bad)),
        ("Q", lambda: SO(3).mean(bad)),
    ):
        text = (
            rf"`{name}` must be a point of SO\(n=3\); got a defect of \d\.\de-06.*near"
        )
        with pytest.raises(ValueError, match=text):
            f()


@pytest.mark.parametrize("manifold", [SO(3), O(3), Stiefel(3, 2), Sphere(3)], ids=str)
@pytest.mark.parametrize("method", ["exp", "distance", "geodesic", "log"])
def test_points_of_another_size_are_refused(manifold, method):
    """Points of another size are refused.

    `SO(3).exp` and `SO(3).distance` used to accept 4 x 4 matrices.
    """
    good = manifold.origin()
    bad = torch.eye(4) if good.ndim == 2 else torch.eye(4)[0]
    call = getattr(manifold, method)
    time = (0.5,) if method == "geodesic" else ()
    for pair in ((bad, bad), (good, bad), (bad, good)):
        with pytest.raises(ValueError, match=r"must have shape \(\*batch, 3(, \d)?\)"):
            call(*pair, *time)


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (torch.ones(3, 4, dtype=torch.complex64), ValueError, "`Q` must have shape"),
        (torch.ones(4, 4, dtype=torch.int64), TypeError, "`Q` must have a floating"),
        ([1], TypeError, "`Q` must be a torch.Tensor"),
    ],
    ids=["shape", "dtype", "type"],
)
def test_a_logarithm_in_sp_checks_its_argument(argument, error, message):
    with pytest.raises(error, match=message):
        Sp(2).algebra_log(argument)


def test_coordinates_are_a_tensor():
    with pytest.raises(TypeError, match=r"`X` must be a torch\.Tensor; got list"):
        SO(3).point([1, 2], None)  # pyright: ignore[reportArgumentType]


def test_an_error_about_components_shows_no_other_error():
    """The error about the product of the two points is not shown before it."""
    P = torch.diag(torch.tensor([1.0, 1.0, -1.0]))
    with pytest.raises(ValueError, match="component of `Q`") as info:
        O(3).log(torch.eye(3), P)
    assert info.value.__context__ is None


def test_declarations_are_checked():
    module = torch.nn.Linear(3, 3)
    with pytest.raises(
        TypeError, match=r"`name` must be a parameter .*'heavy'.*weight"
    ):
        declare(module, "heavy", SO(3))
    with pytest.raises(ValueError, match=r"`weight` must be a point of SO\(n=3\)"):
        declare(module, "weight", SO(3))
    with pytest.raises(TypeError, match=r"`weight` must have a complex dtype"):
        declare(module, "weight", U(3))


@pytest.mark.parametrize("shape", [(), (5,), (2, 1)], ids=str)
@pytest.mark.parametrize(
    "manifold", [SO(6), U(3), SU(3), Sp(3), Torus(3), Stiefel(6, 2)], ids=str
)
def test_a_wrong_number_of_angles_is_refused(manifold, shape):
    """A wrong number of angles is refused.

    For five angles U(3) used to return 5 x 5 matrices; SO(6) repeated a single angle.
    """
    with pytest.raises(ValueError, match=r"`theta` must have shape \(\*batch, 3\)"):
        manifold.from_angles(torch.ones(shape))


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("nearest", lambda X: SO(3).nearest(X)),
        ("log", lambda X: Stiefel(3, 2).log(torch.eye(3, 2), cayley(skew(X))[:, :2])),
    ],
)
def test_forward_over_forward_is_refused(name, f):
    """Forward over forward mode is refused.

    torch 2.13 drops the outer tangent there: the derivative of log was off by 0.9.
    """
    derivative = torch.func.jacfwd(torch.func.jacfwd(lambda X: f(X).sin().sum()))
    message = f"`{name}` must be inside at most one level of `torch.func.jvp`"
    with pytest.raises(NotImplementedError, match=message):
        derivative(torch.eye(3))
