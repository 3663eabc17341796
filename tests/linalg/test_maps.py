"""Maps from skew to orthogonal matrices keep one contract. A new map is one row."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from isometry.groups import QR, AbstractRetraction, Cayley, Exp, Pade, Polar
from isometry.linalg import cayley, expm_skew, logm_unitary
from isometry.testing import check_map

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """A map, and the claims that a function cannot make about itself."""

    name: str
    phi: AbstractRetraction | Map
    claims: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def exponential(name: str, phi: Map) -> Row:
    return Row(name, phi, {"order": math.inf, "inverse": logm_unitary})


OBJECTS = [Exp(), Cayley(), Pade(1), Pade(2), Pade(3), Pade(5), Polar(), QR()]
MAPS = [
    *(Row(phi.name, phi) for phi in OBJECTS),
    exponential("exp by eigh", lambda A: expm_skew(A, method="eigh")),
    exponential("exp by pade", lambda A: expm_skew(A, method="pade")),
    Row(
        "exp with a bound",
        lambda A: expm_skew(A, norm_bound=11.0),
        {"order": math.inf},
    ),
]


# Most of the time goes to differences in every entry; a complex 5 x 5 has 50.
SIZES = [(n, False) for n in (0, 1, 2, 5)] + [(n, True) for n in (0, 1, 2, 3)]


@pytest.mark.parametrize(("n", "is_complex"), SIZES)
@pytest.mark.parametrize("row", MAPS, ids=str)
def test_every_map_keeps_its_contract(row, n, is_complex, rng):
    """Every map passes the suite of `isometry.testing`, in all four dtypes."""
    check_map(row.phi, n=n, is_complex=is_complex, generator=rng, **row.claims)


def keep_nan(phi: Map) -> Map:
    """The map with NaN only at the bad entries, instead of in the whole matrix."""

    def partial(A: Tensor) -> Tensor:
        bad = ~A.isfinite()
        return torch.where(bad, math.nan, phi(torch.where(bad, 0, A)))

    return partial


BROKEN = [
    ("end in the group", lambda A: torch.eye(A.shape[-1], dtype=A.dtype) + A, {}),
    ("be the identity at 0", lambda A: -cayley(A), {}),
    ("agree with exp to order 2", lambda A: cayley(2 * A), {}),
    ("agree with exp to order 5", cayley, {"order": 5.0}),
    ("commute with rotations", QR().at_identity, {}),
    ("keep the shape .* and the dtype", lambda A: cayley(A.double()), {}),
    ("take batches", lambda A: cayley(A * (1 + 0.1 * (A.ndim > 3))), {}),
    ("turn a matrix with nan into NaN", keep_nan(cayley), {}),
    ("undo the map", cayley, {"inverse": logm_unitary}),
    ("have the right gradient", lambda A: cayley(A.detach()) + 0 * A, {}),
]


@pytest.mark.errors
@pytest.mark.parametrize(("message", "phi", "claims"), BROKEN)
def test_broken_maps_are_found(message, phi, claims):
    """Each contract fails for a map that breaks it, and says so."""
    with pytest.raises(AssertionError, match=rf"must {message}; in torch\."):
        check_map(phi, n=4, **claims)


@pytest.mark.errors
def test_maps_have_names_here_too():
    """`check_map` takes a name, and refuses one that is not a retraction."""
    check_map("pade-2", n=2)
    for name in ("expm", "householder"):
        with pytest.raises(ValueError, match="`retraction` must be one of exp, cayley"):
            check_map(name, n=2)
