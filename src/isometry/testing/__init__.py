"""Contract suites that check groups, manifolds and maps, ours or your own."""

from isometry.testing._manifold import check_manifold
from isometry.testing._map import check_map

__all__ = ["check_manifold", "check_map"]
