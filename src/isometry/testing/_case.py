"""A manifold to check, with a dtype, a source of random numbers and error bounds."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isometry.groups import AbstractManifold

# a function t -> error, where t is the size of a step
Decay = Callable[[float], Tensor]

# The largest error that is accepted as rounding, in units of n eps. The worst error in
# any of the checks over 20 seeds and four dtypes is 5.1 for groups (Quadrupole in
# tests/groups) and 7.3 for maps (polar, U(5)). The bound is twice 7.3.
ROUNDING = 14.6

# The step sizes t at which an error is computed, to fit the slope of log error against
# log t. Only the `_FITTED` smallest t with an error above rounding are used.
_STEPS = [2.0**-j for j in range(11)]
_FITTED = 4


@dataclass(frozen=True)
class Case:
    """A manifold, the dtype in which to check it, and a source of random numbers."""

    manifold: AbstractManifold
    dtype: torch.dtype
    generator: torch.Generator

    @property
    def wide(self) -> "Case":
        """This case in double precision, which finite differences and slopes need."""
        dtype = torch.promote_types(self.dtype, torch.float64)
        return Case(self.manifold, dtype, self.generator)

    @property
    def unit(self) -> float:
        """The unit of rounding errors, n eps."""
        return max(1, *self.manifold.shape) * torch.finfo(self.dtype).eps

    def points(self, *batch: int) -> Tensor:
        """Random points on the manifold."""
        return self.manifold.random(*batch, generator=self.generator, dtype=self.dtype)

    def ambient(self, *batch: int) -> Tensor:
        """Gaussian arrays with the shape of a point, scaled to Euclidean norm 1."""
        X = self.manifold.gaussian(*batch, dtype=self.dtype, generator=self.generator)
        return X / norm(self.manifold, X, keepdim=True).clamp(min=1e-30)

    def tangent(self, Q: Tensor, *, angle: float) -> Tensor:
        """Random tangent vectors at `Q` whose largest rotation angle is `angle`."""
        M = self.manifold
        E = M.project(Q, self.ambient(*Q.shape[: Q.ndim - len(M.shape)]))
        largest = math.pi - M.border_distance(Q, E)
        # A vector whose angle is at most `unit**2` counts as zero, and is set to zero
        # instead of scaled up. On a manifold of dimension 0, all tangent vectors are
        # zero.
        nonzero = largest > self.unit**2
        scale = torch.where(nonzero, angle / torch.where(nonzero, largest, 1), 0)
        # project again, because the scaling has also enlarged the rounding errors
        return M.project(Q, self.times(scale, E))

    def times(self, s: Tensor, E: Tensor) -> Tensor:
        """Each array in the batch `E`, multiplied by its own number in `s`."""
        return s.reshape(*s.shape, *[1] * len(self.manifold.shape)) * E

    def require(self, method: str, must: str, gap: Tensor, scale: float = 1.0) -> None:
        """Raise unless `gap` is zero up to rounding, `ROUNDING * n * eps * scale`.

        The error message says that `method` must do what `must` says.
        """
        self.bound(method, must, gap, ROUNDING * self.unit * scale)

    def zero(self, method: str, must: str, X: Tensor, scale: float = 1.0) -> None:
        """Raise unless the arrays `X` are zero up to rounding; see `require`."""
        self.require(method, must, norm(self.manifold, X), scale=scale)

    def bound(self, method: str, must: str, error: Tensor, bound: float) -> None:
        """Raise unless every entry of `error` has an absolute value of at most `bound`.

        The error message says that `method` must do what `must` says.
        """
        worst = largest_of(error)
        # not `worst > bound`, which would accept NaN
        if not worst <= bound:
            self.fail(method, must, f"the error is {worst:.1e}, above {bound:.1e}")

    def order(self, method: str, must: str, error: Decay, order: float = 2.0) -> None:
        """Raise unless error(t) is O(t^order), according to a fitted slope.

        The case must be in double precision. Errors at the level of rounding are not
        fitted.
        """
        # A low order is fitted without the two longest steps, where higher powers of t
        # are not negligible. A high order needs them, because only long steps have an
        # error above rounding.
        steps = _STEPS if order > 3 else _STEPS[2:]
        noise = 25 * ROUNDING * self.unit
        slope = fitted_slope(steps, [largest_of(error(t)) for t in steps], noise)
        if not slope >= order - 0.1:
            facts = f"the fitted slope is {slope:.2f}, below {order - 0.1:.1f}"
            self.fail(method, must, facts)

    def fail(self, method: str, must: str, facts: str) -> None:
        """Raise an error that says what `method` must do, and what contradicts it."""
        raise AssertionError(
            f"`{method}` of {self.manifold} must {must}; in {self.dtype} {facts}."
        )


def norm(manifold: AbstractManifold, X: Tensor, *, keepdim: bool = False) -> Tensor:
    """Euclidean norm of each array in a batch. The arrays have the shape of a point."""
    axes = tuple(range(-len(manifold.shape), 0))
    return torch.linalg.vector_norm(X, dim=axes, keepdim=keepdim)


def dot(manifold: AbstractManifold, X: Tensor, Y: Tensor) -> Tensor:
    """Real part of the inner product of arrays with the shape of a point."""
    return (X.conj() * Y).real.sum(tuple(range(-len(manifold.shape), 0)))


def largest_of(error: Tensor) -> float:
    """The largest absolute value in a tensor: NaN if any entry is NaN, 0 if empty."""
    return float(error.abs().max()) if error.numel() else 0.0


def fitted_slope(steps: list[float], errors: list[float], noise: float) -> float:
    """Slope of log error against log step, for the errors above the noise.

    The steps must be in descending order. Of the steps whose error is above the noise,
    only the `_FITTED` smallest are used, because the leading power dominates there. The
    slope is infinite if fewer than two errors are above the noise, and NaN if any error
    is NaN.
    """
    t, error = torch.tensor([steps, errors], dtype=torch.float64)
    if error.isnan().any():
        return math.nan
    is_fitted = error > noise
    x, y = t[is_fitted][-_FITTED:].log(), error[is_fitted][-_FITTED:].log()
    if len(x) < 2:
        return math.inf
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())
