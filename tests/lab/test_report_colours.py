"""Colours of networks, as readers with two or three kinds of cones see them."""

from itertools import combinations

import numpy as np
import pytest

from isometry.lab._report.looks import DARK, LIGHT, NETWORK_LOOKS

# linear RGB as seen without one kind of cones [Machado, Oliveira, Fernandes 2009]
EYES = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}

# linear sRGB to CIE XYZ with white point D65
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
) / np.array([[0.95047], [1.0], [1.08883]])


def lab(colour: str, eye: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour, in which a distance of 2 is just noticeable."""
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ np.clip(eye @ linear, 1e-3, 1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_told_apart(palette, eye):
    """No two colours are close.

    In an earlier palette (Wong's, changed by hand) two colours had a distance of 3.
    """
    seen = [lab(colour, EYES[eye]) for colour in palette]
    closest = min(np.linalg.norm(a - b) for a, b in combinations(seen, 2))
    # the smallest distance is 27 (light, protanopia)
    assert closest > 20


def test_networks_of_one_colour_differ_in_the_marker():
    drawn = [(look.colour, look.marker) for look in NETWORK_LOOKS.values()]
    assert all(a != b for a, b in combinations(drawn, 2))
    assert {colour for colour, _ in drawn} == set(range(len(LIGHT)))
    assert len(LIGHT) == len(DARK)
