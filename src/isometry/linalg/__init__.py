"""Pure functions of (batches of) matrices, real and complex, on any device."""

from isometry._checks import check_skew
from isometry.linalg._skew import skew

__all__ = ["check_skew", "skew"]
