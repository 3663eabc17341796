"""The sphere of unit vectors."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry._checks import check_joined, check_size
from isometry._orthonormal import unit_vectors
from isometry._torch import is_fake, transforms
from isometry.groups._manifold import EXP, AbstractManifold, Base
from isometry.groups._maps import AbstractRetraction, RetractionLike


@dataclass(frozen=True)
class Sphere(AbstractManifold):
    r"""Unit vectors of $\mathbb{R}^n$, as tensors `(*batch, n)`.

    $$ S^{n-1} = \{ q : q^T q = 1 \}, \qquad \dim = n - 1, \qquad
       \exp_q(e) = \cos(\lVert e \rVert)\, q
                 + \frac{\sin \lVert e \rVert}{\lVert e \rVert}\, e. $$

    $S^0$, the numbers 1 and -1, is not connected.

    Args:
        n: length of the vectors.
    """

    is_complex = False
    maps = (AbstractRetraction,)
    n: int

    def __post_init__(self) -> None:
        check_size(self.n, least=1)
        if self.n == 1:
            # a frozen dataclass does not allow assignments
            object.__setattr__(self, "is_connected", False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one point."""
        return (self.n,)

    @property
    def dimension(self) -> int:
        """One less than the length of the vectors."""
        return self.n - 1

    def project(self, Q: Tensor, X: Tensor) -> Tensor:
        r"""The part of `X` that is orthogonal to `Q`: $x - q\, q^T x$."""
        return X - Q * _dot(Q, X)[..., None]

    def inner(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        r"""$e^T f$, the dot product of `E` and `F`."""
        del Q
        return _dot(E, F)

    def retract(self, Q: Tensor, E: Tensor, retraction: RetractionLike = EXP) -> Tensor:
        """Rotate in the plane of `Q` and `E`; polar and qr normalize `Q + E`."""
        return self.resolve(retraction).vector(E, Q)

    def log(self, Q: Tensor, P: Tensor) -> Tensor:
        """Direction from `Q` to `P`, times the angle between them.

        If `P = -Q`, all directions lead from `Q` to `P`, and one of them is chosen.
        """
        self.check_tensors(Q=Q, P=P)
        # In S^0, no geodesic joins the points 1 and -1, so `check_joined` raises an
        # error. For this it must read the values, which is impossible for fake tensors
        # and inside torch.func. In these two cases the logarithm is NaN instead.
        if not (self.is_connected or is_fake(Q) or transforms()):
            here, there = self.component(Q), self.component(P)
            check_joined(here, there, remedy="Negate `P`.")
        # project twice: for opposite points the first projection gives mostly rounding
        # errors, and the second makes them tangent
        tangent = self.project(Q, self.project(Q, P))
        sine = torch.linalg.vector_norm(tangent, dim=-1, keepdim=True)
        cosine = _dot(Q, P)[..., None]
        angle = torch.atan2(sine, cosine)
        # for opposite points, use the direction of the coordinate axis that is closest
        # to the tangent space
        with torch.no_grad():
            axis = torch.nn.functional.one_hot(Q.abs().argmin(-1), self.n).to(Q)
            axis = self.project(Q, axis)
            # Do not use `nearest`, which maps zero to the origin. In S^0 the projection
            # is zero, and the division gives NaN: no geodesic joins the points 1 and
            # -1.
            direction = axis / torch.linalg.vector_norm(axis, dim=-1, keepdim=True)
        # more than the rounding error of `sine` for two opposite points
        rounding = 20 * self.n * torch.finfo(Q.dtype).eps
        is_opposite = (sine <= rounding) & (cosine < 0)
        # Where P = Q, angle / sine is 0 / 0, and its limit is 1. With this value, the
        # derivative with respect to P is the projection onto the tangent space.
        is_same = (sine == 0) & (cosine > 0)
        ratio = torch.where(is_same, 1, angle / torch.where(sine == 0, 1, sine))
        tangent = torch.where(is_opposite, 0, tangent)
        direction = torch.where(is_opposite, direction, 0)
        return tangent * ratio + direction * angle

    def curvature(self, Q: Tensor, E: Tensor, F: Tensor) -> Tensor:
        """The curvature is 1 for any plane."""
        del F
        return torch.ones_like(_dot(Q, E))

    def border_distance(self, Q: Tensor, E: Tensor) -> Tensor:
        r"""$\pi - \lVert E \rVert$: `E` moves `Q` by the angle $\lVert E \rVert$."""
        del Q
        return math.pi - torch.linalg.vector_norm(E, dim=-1)

    def point(self, X: Tensor, B: Base, retraction: RetractionLike = EXP) -> Tensor:
        """The retraction along the tangent part of `X`."""
        B = self._base(B, like=X)
        return self.retract(B, self.project(B, X), retraction)

    def nearest(self, X: Tensor) -> Tensor:
        """`X` divided by its length; the zero vector goes to the origin.

        Every unit vector is at distance 1 from the zero vector, so any could be chosen.
        """
        is_zero = X.detach().abs().amax(-1, keepdim=True) == 0
        # not `self.origin`, since `where` does not mix plain and sharded tensors
        origin = torch.nn.functional.pad(torch.ones_like(X[..., :1]), (0, self.n - 1))
        return torch.where(is_zero, origin, unit_vectors(X))

    def defect(self, Q: Tensor) -> Tensor:
        r"""$|q^T q - 1|$ for the vector $q$ in `Q`."""
        return (_dot(Q, Q) - 1).abs()

    def component(self, Q: Tensor) -> Tensor:
        """The sign of a number in $S^0$; zero if the sphere is connected."""
        return super().component(Q) if self.is_connected else Q / Q.abs()

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Uniformly distributed points: Gaussian vectors divided by their lengths."""
        return self.nearest(self.gaussian(*batch, **options))


def _dot(X: Tensor, Y: Tensor) -> Tensor:
    return (X * Y).sum(-1)
