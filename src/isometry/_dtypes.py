"""The real dtypes in which matrices are computed, and their constants.

A new dtype needs a row in `PRECISIONS`, and a set of schemes from
tools/generate_schemes.py. To be supported in C, it also needs a section at the end of
_backend/c/matrices.c and of _backend/c/scan.c, like the sections of the other dtypes.
`DTYPES` follows from the rows.
"""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Precision(NamedTuple):
    """The numbers and names that belong to one dtype.

    Attributes:
        suffix: the suffix of the C functions for this dtype.
        c_type: the C type of a number.
        gemm: the name of the BLAS function that multiplies matrices.
        pade_degree: the degree of the Pade approximant of the exponential [AMH09a].
        taylor_blocks: a quarter of the degree of the Taylor polynomial in `expm_tall`.
            The polynomial is used if the spectral radius is at most 1.3. There, the
            error of its derivative is about 1.3^degree / degree!, which is below
            eps / 2: 5e-8 at degree 12, 8e-17 at degree 20.
        taylor_angles: the largest angles at which the Taylor polynomials of degree 4
            and of degree 6 equal the exponential up to an error of about eps. Their
            remainders are theta^5 / 5! and theta^7 / 7!.
    """

    suffix: str
    c_type: Any
    gemm: str
    pade_degree: int
    taylor_blocks: int
    taylor_angles: tuple[float, float]


PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float32: Precision(
        suffix="f32",
        c_type=ctypes.c_float,
        gemm="sgemm_",
        pade_degree=7,
        taylor_blocks=3,
        taylor_angles=(0.107, 0.347),
    ),
    torch.float64: Precision(
        suffix="f64",
        c_type=ctypes.c_double,
        gemm="dgemm_",
        pade_degree=13,
        taylor_blocks=5,
        taylor_angles=(1.93e-3, 0.0197),
    ),
}

# Weights may have these dtypes, but they are computed in float32 or wider, because
# LAPACK and cuSOLVER have no routines for half precision.
HALF = (torch.float16, torch.bfloat16)

# the dtypes that a weight can have
DTYPES = (*HALF, *PRECISIONS, *(dtype.to_complex() for dtype in PRECISIONS))


def in_float32_or_wider(X: Tensor) -> Tensor:
    """`X`, converted to float32 if its dtype is narrower."""
    return X.to(torch.promote_types(X.dtype, torch.float32))
