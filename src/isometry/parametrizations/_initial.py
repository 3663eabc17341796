"""Where a constrained weight starts."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isometry.groups import AbstractGroup, AbstractManifold, Stiefel
from isometry.linalg import expm_skew

# shape of the angles, and where the numbers come from
Angles = Callable[[tuple[int, ...], torch.Generator | None], Tensor]
Init = str | Angles | None


def henaff(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    r"""Angles uniform in $(-\pi, \pi)$ [HSL16]."""
    return math.pi * (2 * _uniform(shape, generator) - 1)


def cayley(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    r"""$-\sqrt{(1 - \cos u)/(1 + \cos u)}$ with $u$ uniform in $(0, \pi/2)$ [HWY18]."""
    return -torch.tan(math.pi / 4 * _uniform(shape, generator))


def _uniform(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    # not on the default device, where the generator may not be
    return torch.rand(shape, generator=generator, device="cpu")


ANGLES: dict[str, Angles] = {"henaff": henaff, "cayley": cayley}


def initial_point(
    manifold: AbstractManifold,
    X: Tensor,
    init: Init,
    generator: torch.Generator | None,
) -> Tensor:
    """The point nearest to `X`, or one that `init` draws; like `X` in the rest."""
    if init is None:
        return X if X.is_meta else manifold.nearest(X)
    batch = tuple(X.shape[: X.ndim - len(manifold.shape)])
    if init == "haar":
        cpu = manifold.random(*batch, generator=generator, dtype=X.dtype, device="cpu")
        return cpu.to(X.device)
    if init == "identity":
        return manifold.origin(*batch, dtype=X.dtype, device=X.device)
    sampler = ANGLES.get(init) if isinstance(init, str) else init
    if not callable(sampler):
        known = ", ".join(map(repr, ["haar", "identity", *ANGLES]))
        raise ValueError(  # noqa: TRY004 - a name that is not known is a value
            f"`init` must be None (the nearest point), {known} or a function "
            f"(shape, generator) -> angles; got {init!r}. None keeps the weight."
        )
    return _from_torus(manifold, batch, sampler, generator).to(X)


def _from_torus(
    manifold: AbstractManifold,
    batch: tuple[int, ...],
    sampler: Angles,
    generator: torch.Generator | None,
) -> Tensor:
    """Exponential of an element of a maximal torus; its first columns, if tall."""
    if not isinstance(manifold, AbstractGroup | Stiefel):
        raise TypeError(
            f"`init` by angles must be used on a group or a Stiefel manifold; got "
            f"{manifold}. Use 'haar' or 'identity' there."
        )
    rank = manifold.rank
    theta = torch.as_tensor(
        sampler((*batch, rank), generator), dtype=torch.float64, device="cpu"
    )
    if tuple(theta.shape) != (*batch, rank):
        raise ValueError(
            f"`init` must return angles of shape {(*batch, rank)}; "
            f"got {tuple(theta.shape)}. Its first argument is that shape."
        )
    if isinstance(manifold, AbstractGroup):
        return expm_skew(manifold.torus(theta))
    return _tall_torus(manifold, theta)


def _tall_torus(manifold: Stiefel, theta: Tensor) -> Tensor:
    """The first columns of the exponential of a torus element, nothing n x n."""
    n, k = manifold.shape
    if manifold.is_complex:
        phases = torch.polar(torch.ones_like(theta), theta)[..., :k]
        return torch.nn.functional.pad(torch.diag_embed(phases), (0, 0, 0, n - k))
    # planes of two rows; of an odd last row, which no plane has, nothing turns
    planes = min((k + 1) // 2, n // 2)
    theta = theta[..., :planes]
    Q = torch.eye(n, k, dtype=theta.dtype, device=theta.device).repeat(
        *theta.shape[:-1], 1, 1
    )
    even = 2 * torch.arange(planes, device=theta.device)
    Q[..., even, even] = theta.cos()
    Q[..., even + 1, even] = theta.sin()
    # the second column of a plane is there unless k ends between the two
    both = even[even + 1 < k]
    Q[..., both, both + 1] = -theta[..., : len(both)].sin()
    Q[..., both + 1, both + 1] = theta[..., : len(both)].cos()
    return Q
