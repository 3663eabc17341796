"""Contract suites that check groups, manifolds and maps, ours or your own."""

from isometry.testing._group import check_group
from isometry.testing._map import check_map

__all__ = ["check_group", "check_map"]
