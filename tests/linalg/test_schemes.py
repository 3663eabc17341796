"""The committed polynomials are the ones that the tool generates and describes."""

from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from isometry._backend.operations import rows_of
from isometry.linalg._expm import schemes as module
from isometry.linalg._expm.schemes import SCHEMES, Scheme, polynomial
from tests.helpers import eps
from tools import generate_schemes as tool

# these tests use mpmath and tables only: kernels and shapes do not matter
pytestmark = pytest.mark.once

PAIRS = [(dtype, scheme) for dtype, schemes in SCHEMES.items() for scheme in schemes]


def stated(dtype: torch.dtype, scheme: Scheme) -> Any:
    """What the tool states about a scheme, as the docs repeat it."""
    tables = generated()[str(dtype).removeprefix("torch.")]
    return tables[SCHEMES[dtype].index(scheme)]


NAMES = [f"{dtype}-{scheme.theta:g}" for dtype, scheme in PAIRS]
each_scheme = pytest.mark.parametrize(("dtype", "scheme"), PAIRS, ids=NAMES)


# the fit takes seconds, so all tests share it
generated = cache(tool.tables)


def test_committed_coefficients_are_the_generated_ones():
    """schemes.py holds what `python -m tools.generate_schemes` computes, exactly."""
    for precision, tables in generated().items():
        schemes = SCHEMES[getattr(torch, precision)]
        assert len(schemes) == len(tables)
        for scheme, table in zip(schemes, tables, strict=True):
            assert scheme.rows == table.rows
            assert scheme.theta == table.theta
            assert scheme.products == table.products


def test_the_committed_file_is_the_written_one(monkeypatch):
    """`--write` would not change schemes.py."""
    monkeypatch.setattr(tool, "tables", generated)
    text = Path(module.__file__).read_text()
    assert text.split(tool.MARK)[1] == tool.source()


def test_documented_bounds_are_the_generated_ones(monkeypatch):
    """The table of docs/theory/expm_skew.md is what the tool prints."""
    monkeypatch.setattr(tool, "tables", generated)
    page = Path(__file__).parents[2] / "docs" / "theory" / "schemes.inc"
    assert page.read_text() == tool.markdown()


def used_rows(scheme: Scheme, dtype: torch.dtype) -> list[list[Any]]:
    """The coefficients that kernels use, after rounding, in the variable A / theta."""
    theta = mpmath.mpf(scheme.theta)
    rows = []
    for stage in rows_of(polynomial(scheme, 0), dtype, torch.device("cpu")):
        final = stage.factors[:0] if stage.final is None else stage.final
        # a square has one row for both of its factors
        table = torch.cat([stage.factors.expand(2, -1), final]).double().tolist()
        # L has a multiple of I, R has none, and the final combination has one
        identity = torch.tensor(stage.identity, dtype=dtype).item()
        for constant, row in zip((identity, 0.0, 1.0), table, strict=False):
            p = scheme.powers
            units = (*(theta, theta**2, theta**4)[:p], *[1] * (len(row) - p))
            products = [a * unit for a, unit in zip(row, units, strict=True)]
            rows.append([mpmath.mpf(a) for a in (constant, *products)])
    return rows


@each_scheme
def test_kernel_uses_the_committed_rows(dtype, scheme):
    """The table on the device has the rows, rounded once to the working precision."""
    for used, row in zip(used_rows(scheme, dtype), scheme.rows, strict=True):
        assert [float(a) for a in used] == pytest.approx(row, rel=eps(dtype))


@each_scheme
def test_stated_errors_bound_a_dense_sample(dtype, scheme):
    """p(ix) = e^{ix + h}: |h / x| and |h'| obey the bounds at 601 other points.

    They are dense at the end, where h oscillates fastest: 3e-6 apart.
    """
    rows = used_rows(scheme, dtype)
    theta = mpmath.mpf(scheme.theta)
    value_error = gradient_error = mpmath.mpf(0)
    for z in np.sin(np.linspace(1e-3, np.pi / 2, 601)).tolist():
        value, slope, *_ = tool.evaluate(rows, mpmath.mpf(z), theta)
        h = mpmath.log(value * mpmath.expj(-theta * z))
        value_error = max(value_error, abs(h / (theta * z)))
        gradient_error = max(gradient_error, abs(slope / value - 1j))
    table = stated(dtype, scheme)
    assert value_error <= table.value_error
    assert gradient_error <= table.gradient_error
    # the bounds are not looser than rounding up to two digits makes them
    assert value_error >= 0.85 * table.value_error
    assert gradient_error >= 0.85 * table.gradient_error


@each_scheme
def test_errors_are_of_the_size_of_rounding(dtype, scheme):
    """The stated errors are at most 1.5 eps in float32, and 3 eps in float64."""
    allowed = 1.5 if dtype == torch.float32 else 3.0
    table = stated(dtype, scheme)
    assert table.gradient_error <= allowed * eps(dtype)
    assert table.value_error <= allowed * eps(dtype)


@each_scheme
def test_rows_have_the_form_that_keeps_small_angles(dtype, scheme):
    """R never contains I, so products vanish with A; the last row has exactly I."""
    assert all(row[0] == 0.0 for row in scheme.rows[1::2])
    assert scheme.rows[-1][0] == 1.0
    # L_j and R_j are over I, A, A^2, perhaps A^4, and the j - 3 products before them
    lengths = [len(row) for row in scheme.rows]
    p, stages = scheme.powers, len(scheme.rows) // 2
    assert lengths == [*(1 + p + k // 2 for k in range(2 * stages)), p + stages]
    assert scheme.products == p - 1 + stages


def test_schemes_are_cheapest_first():
    """Neither costs nor angles decrease. A product costs 3, or 2 if it is a square."""
    for schemes in SCHEMES.values():
        prices = [3 * scheme.products - scheme.squares for scheme in schemes]
        angles = [scheme.theta for scheme in schemes]
        assert prices in ([5, 7, 10], [5, 7, 9, 10, 10])
        assert sorted(angles) == angles


def test_the_angles_of_the_docstring():
    """The angles are the ones in the docstring.

    0.065, 0.36, 1.7, 3.5, 3.68 in float32; 0.00045, 0.0125 and 0.875 in float64.
    """
    assert [s.theta for s in SCHEMES[torch.float32]] == [0.065, 0.36, 1.7, 3.5, 3.68]
    assert [s.theta for s in SCHEMES[torch.float64]] == [0.00045, 0.0125, 0.875]
