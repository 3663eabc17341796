"""The points at which constrained weights start."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isometry._torch import is_fake
from isometry.groups import AbstractManifold

# takes the shape of the angles and a random generator, and returns the angles
Angles = Callable[[tuple[int, ...], torch.Generator | None], Tensor]
Init = str | Angles | None


def henaff_angles(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    r"""Angles drawn uniformly from $(-\pi, \pi)$ [HSL16]."""
    return math.pi * (2 * _uniform(shape, generator) - 1)


def cayley_angles(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    r"""Angles $-\tan(u/2)$ with $u$ drawn uniformly from $(0, \pi/2)$ [HWY18]."""
    return -torch.tan(math.pi / 4 * _uniform(shape, generator))


def _uniform(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    # on the CPU, like the generator, even if the user has set another default device
    return torch.rand(shape, generator=generator, device="cpu")


ANGLES: dict[str, Angles] = {"henaff": henaff_angles, "cayley": cayley_angles}


def initial_point(
    manifold: AbstractManifold, X: Tensor, init: Init, generator: torch.Generator | None
) -> Tensor:
    """The point nearest to `X`, or one that `init` chooses, in the dtype of `X`."""
    if init is None:
        return X if X.is_meta else _nearest(manifold, X)
    batch = tuple(X.shape[: X.ndim - len(manifold.shape)])
    if init == "haar":
        cpu = manifold.random(*batch, generator=generator, dtype=X.dtype, device="cpu")
        return cpu.to(X.device)
    if init == "identity":
        return manifold.origin(*batch, dtype=X.dtype, device=X.device)
    sampler = ANGLES.get(init) if isinstance(init, str) else init
    if not callable(sampler):
        names = ", ".join(map(repr, ["haar", "identity", *ANGLES]))
        raise ValueError(  # noqa: TRY004 - an unknown name is a wrong value
            f"`init` must be None (the nearest point), {names} or a function "
            f"(shape, generator) -> angles; got {init!r}."
        )
    return _on_torus(manifold, batch, sampler, generator).to(X)


def _on_torus(
    manifold: AbstractManifold,
    batch: tuple[int, ...],
    sampler: Angles,
    generator: torch.Generator | None,
) -> Tensor:
    """A point on a maximal torus, with the angles that `sampler` draws."""
    rank = manifold.rank
    if rank is None:
        raise ValueError(
            f"`init` must not draw angles for a manifold without a maximal torus; got "
            f"{manifold}. Use 'haar' or 'identity' instead."
        )
    shape = (*batch, rank)
    angles = sampler(shape, generator)
    theta = torch.as_tensor(angles, dtype=torch.float64, device="cpu")
    if tuple(theta.shape) != shape:
        raise ValueError(
            f"`init` must return angles of shape {shape}; got {tuple(theta.shape)}. "
            f"Its first argument is that shape."
        )
    return manifold.from_angles(theta)


def _nearest(manifold: AbstractManifold, X: Tensor) -> Tensor:
    """The nearest point; raises if it is not finite although `X` is finite."""
    Q = manifold.nearest(X)
    if is_fake(Q) or bool(Q.isfinite().all()) or not bool(X.isfinite().all()):
        return Q
    points = Q.reshape(-1, *manifold.shape).flatten(1)
    count = int((~points.isfinite()).any(-1).sum())
    raise ValueError(
        f"the weight must have a nearest point on {manifold}; got NaN or infinity from "
        f"`nearest` for {count} of {len(points)} points. Give the weight another value "
        f"first, or draw the initial weight, for instance with `init='haar'`."
    )
