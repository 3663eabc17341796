"""Checks of arguments: what they accept, what they refuse, and their messages."""

import math

import pytest
import torch

from isometry import _checks as checks
from tests.helpers import DTYPES, eps, random_skew, random_unitary

HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (3, 3), (0, 3, 3), (2, 4, 5, 5)])
def test_skew_matrices_pass(shape, dtype, rng):
    """X - X^H is skew to the last bit, for any batch."""
    X = torch.randn(shape, dtype=dtype, generator=rng)
    checks.check_skew(X - X.mH)
    checks.check_skew(torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_skew_to_rounding_passes(dtype, rng):
    """V A V^H of a skew A is skew up to rounding, and passes after projection."""
    A = random_skew(6, norm=3.0, dtype=dtype, rng=rng)
    V = random_unitary(6, dtype=dtype, rng=rng)
    B = V @ A @ V.mH
    checks.check_skew((B - B.mH) / 2)
    # a sum may leave a defect of 2 eps in one entry
    A[0, 1] *= 1 + 2 * eps(dtype)
    checks.check_skew(A)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_has_its_own_bound(dtype, rng):
    """The bound is 4 eps of the dtype that is checked."""
    X = torch.randn(4, 4, generator=rng).to(dtype)
    checks.check_skew(X - X.mT)


@pytest.mark.errors
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_defect_is_named_with_its_bound(dtype, rng):
    """The error for one bad matrix of a batch has defect, bound and remedy."""
    A = random_skew(4, norm=1.0, dtype=dtype, rng=rng, batch=(3,))
    A[1, 0, 1] *= 1.01
    message = r"`X` must be skew \(A\^H = -A\); got .*, above .* for torch.*skew`, or"
    with pytest.raises(ValueError, match=message):
        checks.check_skew(A, name="X")
    with pytest.raises(ValueError, match="`A` must be skew"):
        checks.check_skew(A)


@pytest.mark.errors
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_skew(bad):
    """Matrices with NaN or infinity are not skew, though their defect is NaN."""
    A = torch.zeros(2, 3, 3)
    A[1, 0, 1], A[1, 1, 0] = bad, -bad
    with pytest.raises(ValueError, match=r"must be skew .* = nan, above"):
        checks.check_skew(A)


@pytest.mark.errors
def test_skewness_does_not_depend_on_the_size_of_the_entries():
    """Skewness is checked at any scale of the entries.

    Norms overflow above 1e19 in float32, so any huge or infinite matrix used to pass.
    """
    A = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    for scale in (1e-30, 1e30):
        checks.check_skew(scale * A)
        with pytest.raises(ValueError, match=r"must be skew .* above"):
            checks.check_skew(scale * torch.tensor([[0.0, -1.0], [2.0, 0.0]]))
    with pytest.raises(ValueError, match=r"must be skew .* = nan, above"):
        checks.check_skew(torch.tensor([[0.0, math.inf], [5.0, 0.0]]))


@pytest.mark.errors
def test_symmetric_and_complex_symmetric_are_not_skew():
    """i I is skew-Hermitian, but i times a skew-symmetric matrix is Hermitian."""
    J = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    checks.check_skew(1j * torch.eye(2))
    for A in (torch.eye(2), 1j * J):
        with pytest.raises(ValueError, match="must be skew"):
            checks.check_skew(A)


@pytest.mark.errors
def test_matrices_are_tensors_of_numbers_with_two_axes():
    """Type, dtype and number of axes are checked, each with its remedy."""
    with pytest.raises(TypeError, match=r"`X` must be a torch.Tensor; got list.*as_t"):
        checks.check_matrix([[1.0]], name="X")  # pyright: ignore[reportArgumentType]
    for dtype in (torch.int64, torch.bool):
        message = rf"`X` must have a floating-point or complex dtype; got {dtype}. .*to"
        with pytest.raises(TypeError, match=message):
            checks.check_matrix(torch.zeros(2, 2, dtype=dtype), name="X")
    message = r"`X` must have shape \(\*batch, n, k\); got \(3,\).*`X\[..., None\]`"
    with pytest.raises(ValueError, match=message):
        checks.check_matrix(torch.zeros(3), name="X")
    checks.check_matrix(torch.zeros(2, 3), name="X")


@pytest.mark.errors
def test_square_matrices_are_square():
    message = r"`A` must have shape \(\*batch, n, n\); got \(2, 4, 3\)"
    with pytest.raises(ValueError, match=message):
        checks.check_square(torch.zeros(2, 4, 3), name="A")
    with pytest.raises(ValueError, match=r"\(\*batch, n, k\); got \(3,\)"):
        checks.check_square(torch.zeros(3), name="A")
    checks.check_square(torch.zeros(0, 3, 3), name="A")


@pytest.mark.errors
@pytest.mark.parametrize(
    ("other", "what"),
    [
        (torch.zeros(2, 3), r"shape of `X`, \(3, 3\); got \(2, 3\)"),
        (torch.zeros(3, 3).double(), "dtype of `X`, torch.float32; got torch.float64"),
        (torch.zeros(3, 3, device="meta"), "device of `X`, cpu; got meta"),
    ],
)
def test_two_arguments_agree(other, what):
    """Shape, dtype and device must agree, and are checked in this order."""
    X = torch.zeros(3, 3)
    checks.check_same_shape(X, X, names=("X", "Y"))
    with pytest.raises(ValueError, match=rf"`Y` must have the {what}.*Convert"):
        checks.check_same_shape(X, other, names=("X", "Y"))
