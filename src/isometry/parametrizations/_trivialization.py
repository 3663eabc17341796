"""A parametrization of a manifold around one of its points."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isometry._backend.memory import PLAIN
from isometry._dtypes import in_float32_or_wider
from isometry._orthonormal import unitarity_defect
from isometry._torch import autocast_off
from isometry.groups import AbstractRetraction
from isometry.parametrizations._constraint import AbstractConstraint, rounding_bound
from isometry.parametrizations._layout import replicated_like, whole

_log = logging.getLogger("isometry")


@dataclass(eq=False, repr=False)
class Trivialization(AbstractConstraint[AbstractRetraction]):
    r"""A parametrization $X \mapsto B\,\phi(\operatorname{alg} X)$ around a point $B$.

    $\operatorname{alg}$ turns free coordinates into an element of the Lie algebra, and
    $\phi$ is the exponential or another map, such as the Cayley map. On a manifold that
    is not a group, such as a sphere, the weight is the end of a curve. The curve starts
    at $B$, and its velocity at $B$ is the tangent part of $X$. For the exponential,
    this curve is a geodesic, and for other maps it is an approximation of one. The base
    $B$ is a buffer. During training it moves only between optimizer steps; assigning a
    value to the weight moves it, too.

    The exponential reaches the whole connected component of $B$. On a group, it is a
    diffeomorphism where all angles are below $\pi$. Base and coordinates are float32 or
    wider, whatever the dtype of the weight.

    Args:
        manifold: the manifold of the weight.
        layout: how the weight is arranged as points of the manifold.
        retraction: the map $\phi$.
        dtype: dtype of the weight.
        init: where the weight starts, at first and in `reset_parameters`.
        buffer: $B$, in the shape of the weight; None fixes the base at the origin.
        rebase_every: move the base to the weight after this many optimizer steps.
        rebase_radius: move the base when an estimate of the largest angle of the
            coordinates exceeds this radius.

    References:
        [LM19] for a fixed $B$; [Lez19] for a moving one.
    """

    depends_on = "base"

    rebase_every: int | None
    rebase_radius: float | None
    base: Tensor | None = field(init=False)
    steps: Tensor = field(init=False)

    def __post_init__(self, buffer: Tensor | None) -> None:
        super().__post_init__(buffer)
        device = None if buffer is None else buffer.device
        # the number of optimizer steps since the last move of the base
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))

    @property
    def moves_automatically(self) -> bool:
        """Whether there is a base that moves automatically."""
        return self.rebase_every is not None or self.rebase_radius is not None

    def forward(self, X: Tensor) -> Tensor:
        """The weight with coordinates `X`."""
        with autocast_off(X.device):
            base = self._buffers["base"]
            # in the usual case, nothing needs to be rearranged, and nothing gathered
            # from other processes
            is_whole = type(X) in PLAIN and type(self._buffers["map"]) is Tensor
            if is_whole and self.is_upright and (base is None or type(base) is Tensor):
                return self.manifold.point(X, base, self.retraction).to(self.dtype)
            X = self.layout.points(whole(X))
            Q = self.manifold.point(X, self.base_point(), self.retraction)
            return replicated_like(self.layout.weight(Q).to(self.dtype), self.map)

    @torch.no_grad()
    def start(self, Q: Tensor) -> Tensor:
        """Move the base to `Q`, and return the coordinates of `Q`, which are zero.

        If the base is fixed (`use_trivialization=False`), return the coordinates of `Q`
        around the origin.
        """
        if self.base is None:
            X = Q if Q.is_meta else self.manifold.coordinates(Q, None, self.retraction)
            return self.layout.weight(X).contiguous()
        self.base.copy_(self.layout.weight(Q))
        self.steps.zero_()
        return torch.zeros_like(self.base)

    @torch.no_grad()
    def move_base(self, X: Tensor, velocities: Sequence[Tensor]) -> list[Tensor]:
        """Move the base, which must not be None, to the weight with coordinates `X`.

        A velocity of the coordinates, such as the momentum of an optimizer, is pushed
        forward by the derivative of the map. The result is the velocity of the new
        coordinates that moves the weight in the same way.

        Args:
            X: the coordinates. The caller must set them to zero afterwards.
            velocities: velocities of the coordinates, in the shape of `X`.

        Returns:
            The velocities in the new coordinates.
        """

        def points(X: Tensor) -> Tensor:
            B = self.base_point()
            return self.manifold.point(self.layout.points(X), B, self.retraction)

        with autocast_off(X.device):
            tangents = [torch.func.jvp(points, (X,), (v,))[1] for v in velocities]
            Q = self.manifold.polish(points(X))
            new_velocities = [
                self.layout.weight(self.manifold.velocity(Q, E)) for E in tangents
            ]
        self.start(Q)
        return new_velocities

    @torch.no_grad()
    def repair(self) -> None:
        """Replace a base that is off the manifold with the nearest point.

        `AveragedModel(use_buffers=True)` takes the mean of several bases, and this mean
        is off the manifold. After a cast to a wider dtype, the base still has the
        rounding errors of the narrower one.
        """
        base = self.base
        if base is None or base.is_meta or type(base) is not Tensor:
            return
        Q = self.layout.points(base)
        defects = self.manifold.defect(Q)
        # A matrix that is not finite has no nearest point, and stays until the user
        # loads a good checkpoint. Test whether the matrix is finite, not whether its
        # defect is: on SO(n), a finite matrix of negative determinant has an infinite
        # defect.
        is_finite = Q.isfinite().flatten(defects.ndim).all(-1)
        is_off = is_finite & (defects > self.manifold.tolerance(Q.dtype))
        if not is_off.any():
            return
        worst = float(defects[is_off].max())
        # do not log a smaller defect, which a cast from half precision explains
        if worst > rounding_bound(self.manifold, torch.bfloat16):
            _log.info(
                "replaced a base with the nearest point of %s; its defect was %.1e",
                self.manifold,
                worst,
            )
        Q = Q.clone()
        Q[is_off] = self._nearest(Q[is_off])
        base.copy_(self.layout.weight(Q))

    def _nearest(self, Q: Tensor) -> Tensor:
        return self.manifold.polish(self.manifold.nearest(Q))

    def repair_checkpoint(self, state: dict[str, Tensor], prefix: str) -> str | None:
        """Check a saved base, and remove the rounding errors of half precision.

        A base without a step counter in the checkpoint gets a counter that is zero. If
        the base is not a point of the manifold, an error message is returned.
        """
        base = state.get(f"{prefix}base")
        # A safetensors file holds the tensors of only one of two tied weights. Loading
        # accepts a weight that is missing, but only if all its tensors are missing. So
        # add no counter where there is no base.
        if base is not None:
            state.setdefault(f"{prefix}steps", torch.zeros_like(self.steps))
        if self.base is None or base is None or base.shape != self.base.shape:
            return None
        # sharded and meta tensors have no values that could be checked here
        if base.is_meta or type(base) not in PLAIN:
            return None
        Q = self.layout.points(in_float32_or_wider(base))
        defect = self.manifold.worst_defect(Q)
        bound = rounding_bound(self.manifold, torch.bfloat16)
        if not defect <= bound:
            got = f"a defect of {defect:.1e}, above {bound:.1e}"
            # on SO(n), a matrix of negative determinant has an infinite defect
            if math.isinf(defect) and bool(unitarity_defect(Q).isfinite().all()):
                got = "a negative determinant"
            return (
                f"`{prefix}base` must be a point of {self.manifold}; got {got}. "
                f"Constrain the weight as it was when it was saved, with the same "
                f"`blocks` and `det` or group; a plain weight loads with "
                f"`isometry.load_foreign`."
            )
        if defect > self.manifold.tolerance(Q.dtype):
            state[f"{prefix}base"] = self.layout.weight(self._nearest(Q))
        return None

    def base_point(self) -> Tensor | None:
        """The base as points of the manifold; None if it is fixed at the origin."""
        return None if self.base is None else self.layout.points(whole(self.base))

    def extra_repr(self) -> str:
        """The manifold, the map, and when the base moves."""
        parts = [super().extra_repr()]
        if self.base is None:
            parts.append("use_trivialization=False")
        for name in ("rebase_every", "rebase_radius"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}={value}")
        return ", ".join(parts)
