r"""Layers of rotations of pairs, and their products as blocks.

Layer by layer, a state is read and written $L$ times for a few multiplications each.
Products of several layers are small dense blocks, which a processor multiplies at full
speed, and still $O(nL)$ for all of them:

- Of $g$ layers that pair neighbours, the rotations in triangles over intervals of
  $2k \ge 2g$ coordinates come first: layer $l$ of them leaves out $l - 1$ coordinates
  at either end. Those in the gaps follow, over intervals shifted by $k$. No rotation in
  a triangle waits for one in a gap.
- $m$ layers of a fast Fourier transform mix groups of $2^m$ coordinates.

The blocks are what the layers make of unit vectors, once for all steps of time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from isometry.nn._pairs import real_blocks

Style = Literal["tunable", "fft"]

# layers that are multiplied out together, for blocks of 32 and of 16
_TOGETHER = 16
_TOGETHER_FFT = 4


@dataclass(frozen=True)
class Layer:
    """Rotations of coordinates j and j + distance, from coordinate `skip` on."""

    distance: int
    skip: int = 0

    def partners(self, size: int) -> Tensor:
        """The other coordinate of each pair, on a circle of so many."""
        j = torch.arange(size)
        return (((j - self.skip) % size ^ self.distance) + self.skip) % size


@dataclass(frozen=True)
class BlockRotation:
    """Some rotations of some layers, which mix coordinates within blocks only.

    Attributes:
        layers: numbers of the layers.
        shape: coordinates as (outer, size, inner), of which the middle makes a block.
        shift: where the first block begins, on a circle.
        part: which rotations, of layers of neighbours: those of triangles or of gaps.
    """

    layers: range
    shape: tuple[int, int, int]
    shift: int = 0
    part: Literal["all", "triangles", "gaps"] = "all"

    def gather(self, h: Tensor) -> Tensor:
        """(blocks, rows, size * c) of (rows, coordinates, c)."""
        h = h.roll(-self.shift, 1) if self.shift else h
        h = h.unflatten(1, self.shape).permute(1, 3, 0, 2, 4)
        return h.flatten(3).flatten(0, 1)

    def scatter(self, h: Tensor) -> Tensor:
        """Undo `gather`."""
        outer, size, inner = self.shape
        h = h.unflatten(0, (outer, inner)).unflatten(3, (size, -1))
        h = h.permute(2, 0, 3, 1, 4).flatten(1, 3)
        return h.roll(self.shift, 1) if self.shift else h

    def acts_on(self, depth: int) -> Tensor:
        """Which coordinates turn here, in the layer that has so many before it."""
        outer, size, inner = self.shape
        if self.part == "all":
            return torch.ones(outer * size * inner, dtype=torch.bool)
        place = torch.arange(size).repeat(outer)
        inside = (place >= depth) & (place < size - depth)
        return inside if self.part == "triangles" else ~inside


class Planes:
    """Which coordinates each layer of rotations pairs, and in which blocks.

    Attributes:
        n: coordinates of a state.
        padded: the same and some that stay zero, so that blocks fit.
        shape: of the angles. Of the tunable style a row has those of two layers.
        layers: one after the other.
        stages: the same as products of blocks.
    """

    def __init__(self, n: int, capacity: int, style: Style) -> None:
        self.n = self.padded = n
        self.stages: list[BlockRotation] = []
        if style == "fft":
            depth = n.bit_length() - 1
            self.shape = (depth, n // 2)
            self.layers = [Layer(n >> (level + 1)) for level in range(depth)]
            for numbers in _groups(depth, _TOGETHER_FFT):
                inner = self.layers[numbers[-1]].distance
                size = 2 ** len(numbers)
                self.stages.append(
                    BlockRotation(numbers, (n // (size * inner), size, inner))
                )
            return
        self.shape = (capacity // 2, n - 1)
        self.layers = [Layer(1), Layer(1, skip=1)] * (capacity // 2)
        k = _half_block(n, min(capacity, _TOGETHER))
        blocks = -(-n // (2 * k))
        self.padded = 2 * k * blocks
        for numbers in _groups(capacity, _TOGETHER):
            shape = (blocks, 2 * k, 1)
            self.stages += [
                BlockRotation(numbers, shape, part="triangles"),
                BlockRotation(numbers, shape, shift=k, part="gaps"),
            ]

    def product(
        self, theta: Tensor, phi: Tensor | None, omega: Tensor | None
    ) -> Callable[[Tensor], Tensor]:
        r"""What the rotations, and the phases $e^{i\omega}$, make of rows."""
        factors = self._factors(theta, phi, omega)
        blocks = [real_blocks(self._blocks(stage, factors)) for stage in self.stages]
        room = self.padded - self.n

        def advance(h: Tensor) -> Tensor:
            h = pad(h, (0, room)) if room else h
            pairs = torch.view_as_real(h) if h.is_complex() else h[..., None]
            for stage, M in zip(self.stages, blocks, strict=True):
                pairs = stage.scatter(torch.bmm(stage.gather(pairs), M))
            pairs = pairs[:, : self.n].contiguous()
            return torch.view_as_complex(pairs) if h.is_complex() else pairs[..., 0]

        return advance

    def _factors(
        self, theta: Tensor, phi: Tensor | None, omega: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Factors of a coordinate and of its partner, for each layer."""
        ones = torch.ones_like(theta)
        phase = ones if phi is None else torch.polar(ones, phi)
        sizes = [(self.n - 2 * layer.skip) // 2 for layer in self.layers]
        cosines, sines, phases = (
            X.flatten().split(sizes) for X in (theta.cos(), theta.sin(), phase)
        )
        factors = [
            (
                self._placed(c.to(e.dtype), e * c, layer, rest=1.0),
                self._placed(-e * s, s.to(e.dtype), layer, rest=0.0),
            )
            for layer, c, s, e in zip(self.layers, cosines, sines, phases, strict=True)
        ]
        if omega is not None:
            # the phases are a part of the last layer, and cost nothing
            D = torch.polar(torch.ones_like(omega), omega)
            D = pad(D, (0, self.padded - self.n), value=1.0)
            keep, cross = factors[-1]
            factors[-1] = (D * keep, D * cross)
        return factors

    def _placed(
        self, first: Tensor, second: Tensor, layer: Layer, *, rest: float
    ) -> Tensor:
        """Numbers of the first and the second of each pair, where these are."""
        rows = (-1, layer.distance)
        both = torch.stack((first.reshape(rows), second.reshape(rows)), 1).flatten()
        after = self.padded - self.n + layer.skip
        return pad(both, (layer.skip, after), value=rest)

    def _blocks(
        self, stage: BlockRotation, factors: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """What a stage makes of the unit vectors of each block, as rows."""
        outer, size, inner = stage.shape
        like = factors[0][0]
        eye = torch.eye(size, dtype=like.dtype, device=like.device)
        h = stage.scatter(eye.expand(outer * inner, size, size))[..., 0]
        for depth, number in enumerate(stage.layers):
            here = stage.acts_on(depth).to(like.device)
            keep, cross = factors[number]
            partner = h[:, self.layers[number].partners(self.padded).to(like.device)]
            keep, cross = torch.where(here, keep, 1), torch.where(here, cross, 0)
            h = h * keep + partner * cross
        return stage.gather(h[..., None])


def _groups(layers: int, most: int) -> list[range]:
    """Numbers of layers, cut into ranges of at most `most`."""
    return [range(i, min(i + most, layers)) for i in range(0, layers, most)]


def _half_block(n: int, layers: int) -> int:
    """Half of a block that is long enough, and fits n if one of these does."""
    fitting = [k for k in range(layers, 2 * layers + 1) if n % (2 * k) == 0]
    return fitting[0] if fitting else layers
