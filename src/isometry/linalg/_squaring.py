"""Scaling and squaring, where each matrix of a batch has its own number of squarings.

The method "products" of `expm_skew` has its own code, which stores $Q - I$ instead of
$Q$.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isometry._operators import Maximum, needs_operator, opaque


def scaled_and_squared(
    function: Callable[..., Tensor],
    powers: dict[int, Tensor],
    *,
    norm: Tensor,
    theta: float,
) -> Tensor:
    r"""$f(2^{-s} M)^{2^s}$ with the smallest $s$ that brings the norm down to `theta`.

    Each matrix has its own $s$. The largest $s$ of the batch is read from the device.

    Args:
        function: $f$. Its arguments are the scaled powers of $M$, in the order of
            `powers`.
        powers: $M$ and some of its powers, keyed by their exponents.
        norm: a bound on the norm or the spectral radius of each matrix, of shape
            `(*batch, 1, 1)`. Where it is NaN or above $1/\varepsilon$, no digit of the
            result would be correct, and the result and its gradient are NaN.
        theta: the norm up to which $f$ is accurate.
    """
    s = torch.log2(norm / theta).ceil().clamp(min=0)
    s = torch.where(norm <= 1 / torch.finfo(norm.dtype).eps, s, math.nan)
    unit = torch.exp2(-s)
    Q = function(*(P * unit**exponent for exponent, P in powers.items()))
    # A graph cannot contain a loop whose length is read from a tensor, so in a graph
    # the loop is a custom operator. An autograd function would not work, because Dynamo
    # in torch 2.13 refuses `.item()` inside an autograd function.
    return _square_op(Q, s) if needs_operator(Q) else _square(Q, s)


def _square(Q: Tensor, s: Tensor) -> Tensor:
    """Q^(2^s), by repeated squaring."""
    # the largest s of the batch; inside `vmap`, the batch includes all mapped matrices
    steps = int(Maximum.apply(s.nan_to_num())) if s.numel() else 0
    for j in range(steps):
        Q = torch.where(j < s, Q @ Q, Q)
    return Q


def _copied_square(Q: Tensor, s: Tensor) -> Tensor:
    # an operator must not return its argument
    return _square(Q.clone(memory_format=torch.contiguous_format), s)


def _square_adjoint(Q: Tensor, s: Tensor, G: Tensor) -> Tensor:
    pull_back = torch.func.vjp(lambda Q: _square(Q, s), Q)[1]
    return pull_back(G)[0].clone(memory_format=torch.contiguous_format)


_square_op = opaque(
    "repeated_square",
    _copied_square,
    fake=lambda Q, _s: Q.new_empty(Q.shape),
    adjoint=_square_adjoint,
    saves=lambda inputs, _: inputs,
)
