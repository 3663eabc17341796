"""Factors of diagonal Pade approximants of the exponential, by integer arithmetic."""

import cmath
import functools
import math

from isometry._torch import constant_in_graphs

# a complex number: its real and imaginary part as integers, in units of 2^-bits
_Fixed = tuple[int, int]


def pade_factors(degree: int) -> tuple[tuple[float, float], ...]:
    r"""Coefficients of the factors of the Pade approximant $r_m$ of the exponential.

    The zeros of the numerator of $r_m$ lie in the left half-plane, and they are real or
    come in conjugate pairs, so

    $$ r_m(z) = \prod_j \frac{1 + u_j z + w_j z^2}{1 - u_j z + w_j z^2}, \qquad
       u_j > 0, \quad w_j \ge 0. $$

    Each factor maps skew matrices to unitary ones. There is one factor for each pair of
    zeros, and one with $w = 0$ for the real zero, which exists if $m$ is odd. For a
    large $|z|$, the terms of one factor range in size from 1 to about $|z|^2$, and the
    terms of the whole numerator from 1 to about $|z|^m$. So on the imaginary axis, a
    factor magnifies rounding errors at most about $|z|^2$ times.

    Args:
        degree: $m$.

    Returns:
        The pairs $(u_j, w_j)$, correctly rounded.
    """
    # in a graph the degree may be symbolic, but the length of a range is an int
    return _constant_factors(len(range(degree)))


# without this decorator, Dynamo would trace the cache and the integer arithmetic
@constant_in_graphs
def _constant_factors(degree: int) -> tuple[tuple[float, float], ...]:
    return _factors(degree)


@functools.cache
def _factors(degree: int) -> tuple[tuple[float, float], ...]:
    # near a zero of the numerator, cancellation loses less than 2 bits per degree, so
    # 8 more bits per degree are ample
    bits = 128 + 8 * degree
    # in descending order of imaginary parts: one zero of each pair, then the real zero
    # if there is one, then the conjugates
    zeros = sorted(_zeros(degree, bits), key=lambda zero: -zero[1])
    factors = []
    for x, y in zeros[: degree // 2]:
        # (1 - z / z0) (1 - z / conj(z0)) has u = -2 Re(1 / z0) and w = 1 / |z0|^2
        square = x * x + y * y
        factors.append(((-2 * x << bits) / square, (1 << 2 * bits) / square))
    if degree % 2 == 1:
        factors.append((-(1 << bits) / zeros[degree // 2][0], 0.0))
    return tuple(factors)


def _zeros(degree: int, bits: int) -> list[_Fixed]:
    """All zeros of the numerator, by the Weierstrass iteration."""
    m = degree
    # the numerator times (2m)! / m!, which makes it monic
    numerator = [
        math.comb(m, j) * math.factorial(2 * m - j) // math.factorial(m)
        for j in range(m + 1)
    ]
    # start on a half circle in the left half-plane, near the curve on which the zeros
    # lie
    zeros = []
    for j in range(m):
        z = 1.4 * m * cmath.exp(1j * math.pi * (0.5 + (j + 0.5) / m))
        x, y = int(z.real * 2**40), int(z.imag * 2**40)
        zeros.append((x << bits - 40, y << bits - 40))
    step = 1 << bits
    # Convergence is quadratic: after a step below 2^-60 the error is about 2^-120, far
    # less than the rounding of the factors to double precision.
    while step >> (bits - 60):
        step = 0
        for j, z in enumerate(zeros):
            other_zeros = zeros[:j] + zeros[j + 1 :]
            dx, dy = _correction(z, other_zeros, numerator, bits)
            zeros[j] = (z[0] - dx, z[1] - dy)
            step = max(step, abs(dx), abs(dy))
    return zeros


def _correction(
    z: _Fixed, other_zeros: list[_Fixed], p: list[int], bits: int
) -> _Fixed:
    """Weierstrass' correction: p(z) over the product of z - t for all other zeros t."""
    value = (0, 0)
    for coefficient in reversed(p):
        x, y = _times(value, z, bits)
        value = (x + (coefficient << bits), y)
    product = (1 << bits, 0)
    for t in other_zeros:
        product = _times(product, (z[0] - t[0], z[1] - t[1]), bits)
    # value / product = value * conj(product) / |product|^2
    (a, b), (u, v) = value, product
    square = u * u + v * v
    return ((a * u + b * v) << bits) // square, ((b * u - a * v) << bits) // square


def _times(z: _Fixed, t: _Fixed, bits: int) -> _Fixed:
    """The product of two complex numbers, rounded to units of 2^-bits."""
    (a, b), (x, y) = z, t
    return (a * x - b * y) >> bits, (a * y + b * x) >> bits
