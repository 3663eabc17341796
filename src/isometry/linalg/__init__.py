"""Pure functions of (batches of) matrices, real and complex, on any device."""

from isometry._checks import check_skew
from isometry.linalg._cayley import cayley, cayley_inverse
from isometry.linalg._expm_skew import expm_skew, expm_skew_adjoint, expm_skew_frechet
from isometry.linalg._householder import householder
from isometry.linalg._logm import logm_unitary
from isometry.linalg._pade import pade
from isometry.linalg._polar import polar
from isometry.linalg._skew import skew
from isometry.linalg._tall import expm_tall

__all__ = [
    "cayley",
    "cayley_inverse",
    "check_skew",
    "expm_skew",
    "expm_skew_adjoint",
    "expm_skew_frechet",
    "expm_tall",
    "householder",
    "logm_unitary",
    "pade",
    "polar",
    "skew",
]
