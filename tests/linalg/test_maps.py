"""Maps from skew to orthogonal matrices keep one contract: a new one is one row."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from isometry.groups._retraction import retraction_at_identity
from isometry.linalg import cayley, cayley_inverse, expm_skew, logm_unitary, pade, polar
from isometry.linalg._pade import pade_inverse
from isometry.testing import check_map

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    name: str
    phi: Map
    order: float
    inverse: Map | None = None
    equivariant: bool = True

    def __str__(self) -> str:
        return self.name


def of_degree(m: int) -> Row:
    return Row(
        f"pade-{m}",
        lambda A: pade(A, degree=m),
        2 * m + 1,
        lambda Q: pade_inverse(Q, degree=m),
    )


MAPS = [
    Row("exp", expm_skew, math.inf, logm_unitary),
    Row("exp by eigh", lambda A: expm_skew(A, method="eigh"), math.inf, logm_unitary),
    Row("exp by pade", lambda A: expm_skew(A, method="pade"), math.inf, logm_unitary),
    Row("exp with a bound", lambda A: expm_skew(A, norm_bound=11.0), math.inf),
    Row("cayley", cayley, 3, cayley_inverse),
    of_degree(1),
    of_degree(2),
    of_degree(3),
    of_degree(5),
    Row("polar", lambda A: polar(torch.eye(A.shape[-1], dtype=A.dtype) + A), 3),
]
QR = Row("qr", lambda A: retraction_at_identity(A, "qr"), 2, equivariant=False)


# the time goes to the differences in every entry, of which a complex 5 x 5 has 50
SIZES = [(n, False) for n in (0, 1, 2, 5)] + [(n, True) for n in (0, 1, 2, 3)]


@pytest.mark.parametrize(("n", "is_complex"), SIZES)
@pytest.mark.parametrize("row", [*MAPS, QR], ids=str)
def test_every_map_keeps_its_contract(row, n, is_complex, rng):
    """The suite of `isometry.testing`, in all four dtypes."""
    check_map(
        row.phi,
        n=n,
        is_complex=is_complex,
        inverse=row.inverse,
        order=float(row.order),
        equivariant=row.equivariant,
        generator=rng,
    )


def keep_nan(phi: Map) -> Map:
    """The map without the house policy: NaN only where it stands."""

    def partial(A: Tensor) -> Tensor:
        bad = ~A.isfinite()
        return torch.where(bad, math.nan, phi(torch.where(bad, 0, A)))

    return partial


BROKEN = [
    ("end in the group", lambda A: torch.eye(A.shape[-1], dtype=A.dtype) + A, {}),
    ("be the identity at 0", lambda A: -cayley(A), {}),
    ("agree with exp to order 2", lambda A: cayley(2 * A), {}),
    ("agree with exp to order 5", cayley, {"order": 5.0}),
    ("commute with rotations", QR.phi, {}),
    ("keep the shape .* and the dtype", lambda A: cayley(A.double()), {}),
    ("take batches", lambda A: cayley(A * (1 + 0.1 * (A.ndim > 3))), {}),
    ("turn a matrix with nan to NaN", keep_nan(cayley), {}),
    ("undo the map", cayley, {"inverse": logm_unitary}),
    ("have the right gradient", lambda A: cayley(A.detach()) + 0 * A, {}),
]


@pytest.mark.errors
@pytest.mark.parametrize(("message", "phi", "claims"), BROKEN)
def test_broken_maps_are_found(message, phi, claims):
    """Each contract fails for a map that breaks it, and says so."""
    with pytest.raises(AssertionError, match=rf"must {message}; in torch\."):
        check_map(phi, n=4, **claims)
