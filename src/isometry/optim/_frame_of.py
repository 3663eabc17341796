"""Which frame a manifold is seen in."""

from isometry.groups import AbstractGroup, AbstractManifold, Stiefel
from isometry.optim._frames import AbstractFrame, AmbientFrame, BodyFrame
from isometry.optim._tall import TallFrame


def frame_of(manifold: AbstractManifold) -> AbstractFrame:
    """The frame in which steps on the manifold are the cheapest."""
    if isinstance(manifold, AbstractGroup):
        return BodyFrame(manifold)
    # else matrices of 2k x 2k are no smaller than the whole group's
    if isinstance(manifold, Stiefel) and manifold.n > 2 * manifold.k:
        return TallFrame(manifold)
    return AmbientFrame(manifold)
