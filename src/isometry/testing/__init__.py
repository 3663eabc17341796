"""Contract suites: what every group, manifold and map here obeys, and yours can."""

from isometry.testing._group import check_group
from isometry.testing._map import check_map

__all__ = ["check_group", "check_map"]
