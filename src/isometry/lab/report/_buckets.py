"""Long curves in few points, with the spikes kept."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

# enough for the width of a figure; all points of 4000 steps make megabytes of SVG
MOST = 240


class Buckets(NamedTuple):
    """Medians of consecutive points, and their range."""

    x: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


def buckets(x: Sequence[float], y: Sequence[float], most: int = MOST) -> Buckets:
    """A curve in at most so many points.

    Args:
        x: places, in order.
        y: values.
        most: number of points.

    Returns:
        The place of the last point of each bucket, and median, minimum and maximum of
        its values.
    """
    size = -(-len(x) // most) or 1
    cuts = range(0, len(x), size)
    parts = [y[i : i + size] for i in cuts]
    return Buckets(
        [x[min(i + size, len(x)) - 1] for i in cuts],
        [median(part) for part in parts],
        [min(part) for part in parts],
        [max(part) for part in parts],
    )
