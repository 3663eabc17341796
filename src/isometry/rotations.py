r"""Rotations of three-dimensional space, as vectors, quaternions and matrices.

A rotation vector is the axis times the angle in radians. A quaternion is
$(x, y, z, w)$ with the scalar part last, as in SciPy and roma; $q$ and $-q$ are the
same rotation. A matrix rotates column vectors, $x \mapsto R x$. All functions accept
any number of leading batch axes, and return NaN for inputs that are not finite. They
are differentiable to any order, with two exceptions: `angle` where the rotations are
equal, and `angle`, `to_vector` and `to_quaternion` where the angle is $\pi$. Inputs in
half precision are converted to single precision, and the results are converted back.

Other geometric functions are methods of the group: `SO(3).geodesic`, `SO(3).mean`,
`SO(3).random`, `SO(3).log`.
"""

import math

import torch
from torch import Tensor

from isometry._checks import check_is_tensor
from isometry._dtypes import in_float32_or_wider
from isometry._orthonormal import identity

__all__ = ["angle", "from_quaternion", "from_vector", "to_quaternion", "to_vector"]

# The number of terms in each power series below. `_series` is used for squared angles
# up to 1, where the first omitted term is below 1e-17.
_TERMS = 9

# The coefficients of asin(sqrt(s)) / sqrt(s) in powers of s. They are used for s up to
# 1/64, where the first omitted term is below 64^-9 < 1e-16.
_ARCSINE = [math.comb(2 * k, k) / (4**k * (2 * k + 1)) for k in range(_TERMS)]
_SMALL = 1 / 64


def from_vector(v: Tensor) -> Tensor:
    r"""Rotation matrix of a rotation vector, by Rodrigues' formula.

    $$ R = I + \frac{\sin\theta}{\theta} K + \frac{1 - \cos\theta}{\theta^2} K^2,
       \qquad \theta = \lVert v \rVert, \quad K x = v \times x. $$

    The map is surjective. It is injective on $\theta < \pi$.

    Args:
        v: rotation vectors `(*batch, 3)`.

    Returns:
        Matrices `(*batch, 3, 3)`.

    Raises:
        ValueError: if the last axis does not have length 3.
        TypeError: if `v` is not a real floating-point tensor.
    """
    _check(v, "v", 3)
    dtype = v.dtype
    v = in_float32_or_wider(v)
    s = (v * v).sum(-1)[..., None, None]
    small = s < 1
    theta = torch.where(small, 1, s).sqrt()
    # 1 - cos(theta) is computed as 2 sin(theta / 2)^2, where nothing cancels
    half = torch.sin(theta / 2) / theta
    a = torch.where(small, _series(s, 1), torch.sin(theta) / theta)
    b = torch.where(small, _series(s, 2), 2 * half * half)
    return (identity(v) + a * _cross(v) + b * _square(v)).to(dtype)


def to_vector(R: Tensor) -> Tensor:
    r"""Shortest rotation vector of a rotation matrix, with angle $\theta \le \pi$.

    This is the inverse of `from_vector` for $\theta < \pi$. At $\theta = \pi$ there are
    two shortest vectors, $v$ and $-v$, and one of them is returned.

    Args:
        R: rotation matrices `(*batch, 3, 3)`; this is not checked.

    Returns:
        Vectors `(*batch, 3)`.

    Raises:
        ValueError: if the matrices are not 3 x 3.
        TypeError: if `R` is not a real floating-point tensor.
    """
    _check(R, "R", 3, axes=2)
    q = to_quaternion(in_float32_or_wider(R))
    u, w = q[..., :3], q[..., 3:]
    s = (u * u).sum(-1, keepdim=True)
    small = s < _SMALL
    length = torch.where(small, 1, s).sqrt()
    series = torch.zeros_like(s)
    for coefficient in reversed(_ARCSINE):
        series = series * s + coefficient
    # the length of u is the sine of half the angle
    half = torch.where(small, series, torch.atan2(length, w) / length)
    return (2 * u * half).to(R.dtype)


def from_quaternion(q: Tensor) -> Tensor:
    r"""Rotation matrix of a quaternion $(x, y, z, w)$.

    $R = I + 2 w K + 2 K^2$ with $K v = u \times v$, where $(u, w) = q / \lVert q
    \rVert$. The length of $q$ does not matter, so the four numbers can be trained
    without a constraint. A zero quaternion does not represent a rotation, and gives
    NaN.

    Args:
        q: quaternions `(*batch, 4)`, scalar part last.

    Returns:
        Matrices `(*batch, 3, 3)`.

    Raises:
        ValueError: if the last axis does not have length 4.
        TypeError: if `q` is not a real floating-point tensor.
    """
    _check(q, "q", 4)
    dtype = q.dtype
    q = in_float32_or_wider(q)
    # divide by the largest absolute value first, so that the squared length neither
    # overflows nor underflows
    q = q / q.detach().abs().amax(-1, keepdim=True)
    q = q / torch.linalg.vector_norm(q, dim=-1, keepdim=True)
    u, w = q[..., :3], q[..., 3, None, None]
    return (identity(u) + 2 * w * _cross(u) + 2 * _square(u)).to(dtype)


def to_quaternion(R: Tensor) -> Tensor:
    r"""Unit quaternion $(x, y, z, w)$ of a rotation matrix, with $w \ge 0$.

    The entries of $R$ give the vectors $4 q_j q$ for $j = 1, \dots, 4$ without a square
    root. The vector with the largest $|q_j|$ is normalized, so no digits are lost at
    any angle.

    Args:
        R: rotation matrices `(*batch, 3, 3)`; this is not checked.

    Returns:
        Quaternions `(*batch, 4)`, scalar part last.

    Raises:
        ValueError: if the matrices are not 3 x 3.
        TypeError: if `R` is not a real floating-point tensor.

    References:
        [She78].
    """
    _check(R, "R", 3, axes=2)
    rows = (row.unbind(-1) for row in in_float32_or_wider(R).unbind(-2))
    (a, b, c), (d, e, f), (g, h, i) = rows
    x, y, z = h - f, c - g, d - b
    formulas = (
        (1 + a - e - i, b + d, c + g, x),
        (b + d, 1 - a + e - i, f + h, y),
        (c + g, f + h, 1 - a - e + i, z),
        (x, y, z, 1 + a + e + i),
    )
    products = torch.stack([torch.stack(row, -1) for row in formulas], -2)
    best = products.detach().diagonal(dim1=-2, dim2=-1).argmax(-1)
    index = best[..., None, None].expand(*best.shape, 1, 4)
    q = products.gather(-2, index).squeeze(-2)
    length = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
    # a finite entry divided by an infinite length would be 0 instead of NaN
    q = q / torch.where(length.isinf(), math.nan, length)
    return torch.where(q[..., 3:] < 0, -q, q).to(R.dtype)


def angle(P: Tensor, Q: Tensor) -> Tensor:
    r"""Angle between two rotations, from 0 to $\pi$.

    This is the angle of $P^T Q$. No digits are lost near 0 and $\pi$, but at these two
    values the angle is not differentiable. Where $P = Q$, autograd gives gradient 0.

    Args:
        P: rotation matrices `(*batch, 3, 3)`.
        Q: rotation matrices whose batch axes broadcast with the batch axes of `P`.

    Returns:
        Angles `(*batch,)`.

    Raises:
        ValueError: if the matrices are not 3 x 3.
        TypeError: if the matrices are not real and floating point.
    """
    for R, name in ((P, "P"), (Q, "Q")):
        _check(R, name, 3, axes=2)
    # a sum instead of the matrix product P^T Q, which autocast would compute in half
    # precision
    terms = in_float32_or_wider(P)[..., :, None] * in_float32_or_wider(Q)[..., None, :]
    q = to_quaternion(terms.sum(-3))
    length = torch.linalg.vector_norm(q[..., :3], dim=-1)
    return (2 * torch.atan2(length, q[..., 3])).to(torch.result_type(P, Q))


def _series(s: Tensor, first: int) -> Tensor:
    """The series 1 / first! - s / (first + 2)! + s^2 / (first + 4)! - ..."""
    total = torch.zeros_like(s)
    for k in reversed(range(_TERMS)):
        total = 1 / math.factorial(2 * k + first) - s * total
    return total


def _cross(v: Tensor) -> Tensor:
    """The matrix K such that K u is the cross product of v and u."""
    x, y, z = v.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).unflatten(-1, (3, 3))


def _square(v: Tensor) -> Tensor:
    """The square of `_cross(v)`, which is v v^T - (v . v) I."""
    outer = v[..., :, None] * v[..., None, :]
    squared_length = (v * v).sum(-1)[..., None, None]
    return outer - squared_length * identity(v)


def _check(X: Tensor, name: str, size: int, *, axes: int = 1) -> None:
    """Raise unless `X` is real and its last `axes` axes all have the length `size`."""
    check_is_tensor(X, name=name)
    if X.shape[-axes:] != (size,) * axes:
        shape = ", ".join([f"{size}"] * axes)
        raise ValueError(
            f"`{name}` must have shape (*batch, {shape}); got {tuple(X.shape)}."
        )
    if not X.is_floating_point():
        raise TypeError(
            f"`{name}` must have a real floating-point dtype; got {X.dtype}. "
            f"Convert it with `{name}.to(torch.get_default_dtype())`."
        )
