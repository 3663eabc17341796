r"""The unitary network whose map is a product of rotations of pairs of coordinates.

If $L$ layers of rotations were applied one after the other, a state of $n$ coordinates
would be read and written $L$ times, with only a few multiplications each time. So
several layers are multiplied first. Their product consists of small dense blocks, and
is applied as a batch of small matrix products. The cost is still $O(nL)$. The blocks
depend on the pairs that the layers rotate:

- In a product of $g$ layers that pair neighbours, a coordinate of the result depends
  only on the coordinates at a distance of up to $g$. So each interval of coordinates
  of the result is a dense block times a wider interval of the state.
- $m$ consecutive layers with the pairs of a fast Fourier transform mix coordinates
  only within sets of $2^m$, so there is a square block for each set.

The blocks are computed once for all time steps, by applying the layers to unit vectors.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from isometry._backend.nonlinearities import modrelu
from isometry._checks import check_flags
from isometry.nn._cell import FactoryOptions, check_choice, is_positive
from isometry.nn._scan import real_form
from isometry.nn.comparators.cell import (
    AbstractComparator,
    AbstractLoopCell,
    Draw,
    LinearFunction,
)

Style = Literal["tunable", "fft"]

# The largest numbers of consecutive layers whose product is computed as blocks. For 16
# layers that pair neighbours, a block has 32 to 64 rows, and 32 more columns than rows.
# For 4 layers with the pairs of a fast Fourier transform, a block is 16 x 16.
_LAYERS_TOGETHER = 16
_FFT_LAYERS_TOGETHER = 4


@dataclass(frozen=True)
class RotationLayer:
    """A layer of rotations, each in the plane of two coordinates j and j + `distance`.

    The coordinates from `skip` on form runs of length `distance`. The first run is
    paired with the second, the third with the fourth, and so on. With distance 2 and
    skip 0, the pairs are (0, 2), (1, 3), (4, 6), (5, 7), ... With a skip, the last run
    continues at coordinate 0, so that every coordinate has a partner.
    """

    distance: int
    skip: int = 0

    def spread(self, X: Tensor) -> Tensor:
        """Put numbers that are sorted by pair in the order of the coordinates.

        `X` is (..., 2, n / 2), and the result is (..., n). The first row of `X` has one
        number for the coordinate j of each pair, the second for j + `distance`.
        """
        X = X.unflatten(-1, (-1, self.distance)).movedim(-3, -2)
        return X.flatten(-3).roll(self.skip, -1)

    def swap(self, X: Tensor, inner: int) -> Tensor:
        """Exchange the two entries of each pair on the last axis of `X`.

        Consecutive entries of this axis belong to coordinates that are `inner` apart.
        """
        pairs = X.roll(-self.skip, -1).unflatten(-1, (-1, 2, self.distance // inner))
        return pairs.flip(-2).flatten(-3).roll(self.skip, -1)


@dataclass(frozen=True)
class BlockRotation:
    """The product of several layers, as one dense block for each set of coordinates.

    A block computes the new coordinates of its set from the old ones and, with a
    margin, from their neighbours. A set or a margin may extend beyond the first or last
    coordinate, where zeros are read.

    Attributes:
        layers: the layers, in the order in which they act.
        shape: (outer, size, inner). If the axis of all coordinates is split into three
            axes of these sizes, each set of coordinates runs along the second.
        margin: how many neighbours a block reads on either side of its set. A margin
            needs inner = 1.
    """

    layers: list[RotationLayer]
    shape: tuple[int, int, int]
    margin: int = 0

    def gather(self, h: Tensor) -> Tensor:
        """The coordinates that each block reads from an array (rows, coordinates, c).

        Here c is 2 if the last axis holds real and imaginary parts, and 1 otherwise.
        The result is (blocks, rows, m * c) if a block reads m coordinates, including
        its margins.
        """
        outer, size, _ = self.shape
        if self.margin:
            after = self.margin + outer * size - h.shape[1]
            padded = pad(h, (0, 0, self.margin, after))
            windows = padded.unfold(1, size + 2 * self.margin, size)
            # from (rows, blocks, c, m) to (blocks, rows, m, c)
            return windows.permute(1, 0, 3, 2).flatten(2)
        # from (rows, outer, m, inner, c) to (outer, inner, rows, m, c)
        by_block = h.unflatten(1, self.shape).permute(1, 3, 0, 2, 4)
        return by_block.flatten(3).flatten(0, 1)

    def scatter(self, h: Tensor) -> Tensor:
        """Put the results of all blocks, (blocks, rows, size * c), back in order.

        The result is (rows, coordinates, c). If the last set extends beyond the last
        coordinate, the result has additional coordinates, which the caller drops.
        """
        outer, size, inner = self.shape
        by_block = h.unflatten(0, (outer, inner)).unflatten(3, (size, -1))
        # from (outer, inner, rows, size, c) to (rows, outer, size, inner, c)
        return by_block.permute(2, 0, 3, 1, 4).flatten(1, 3)

    def blocks(self, factors: Tensor) -> Tensor:
        """The matrices of all blocks, which multiply columns of real numbers.

        Args:
            factors: `keep` and `cross` of each layer, (layers, 2, n), as returned by
                `Planes._factors`.
        """
        _, size, inner = self.shape
        parts = self.gather(factors.flatten(0, 1)[..., None])
        # both have the axes (blocks, layers, m), where a block reads m coordinates
        keeps, crosses = parts.unflatten(1, (-1, 2)).unbind(2)
        eye = torch.eye(parts.shape[-1], dtype=parts.dtype, device=parts.device)
        # A block is a product of m x m matrices, one for each layer, without the rows
        # that belong to the margins. So begin with the other rows of the identity, and
        # multiply them from the right by each layer's matrix, the last layer first.
        M = eye[self.margin : self.margin + size]
        for i, layer in reversed(list(enumerate(self.layers))):
            keep, cross = keeps[:, i, None], crosses[:, i, None]
            M = M * keep + layer.swap(M * cross, inner)
        return real_form(M) if M.is_complex() else M


class Planes:
    """The layers of rotations of a cell, and the blocks by which they are computed.

    Attributes:
        n: number of coordinates of a state.
        shape: the shape of the angles. In the style "fft", a row has the angles of one
            layer. In the style "tunable", it has the angles of two layers, except for
            the last pair of the second layer, which wraps around and is not rotated.
        unused: the number of pairs, 0 or 1, for which a row of angles has no angle.
        layers: the layers, in the order in which they act.
        rotations: the product of all layers, as a sequence of block rotations.
    """

    def __init__(self, n: int, capacity: int, style: Style) -> None:
        self.n = n
        if style == "fft":
            depth = n.bit_length() - 1
            self.shape = (depth, n // 2)
            self.unused = 0
            self.layers = [RotationLayer(n >> (level + 1)) for level in range(depth)]
            self.rotations = []
            for layers in _groups(self.layers, _FFT_LAYERS_TOGETHER):
                size = 2 ** len(layers)
                inner = layers[-1].distance
                shape = (n // (size * inner), size, inner)
                self.rotations.append(BlockRotation(layers, shape))
            return
        self.shape = (capacity // 2, n - 1)
        self.unused = 1
        self.layers = [RotationLayer(1), RotationLayer(1, skip=1)] * (capacity // 2)
        size = _block_size(n, min(capacity, _LAYERS_TOGETHER))
        shape = (math.ceil(n / size), size, 1)
        self.rotations = [
            BlockRotation(layers, shape, margin=len(layers))
            for layers in _groups(self.layers, _LAYERS_TOGETHER)
        ]

    def product(
        self, theta: Tensor, phi: Tensor | None, omega: Tensor | None
    ) -> LinearFunction:
        r"""A function that applies all rotations and phases $e^{i\omega}$ to states.

        The states are rows: an array (rows, n).
        """
        numbers = [len(rotation.layers) for rotation in self.rotations]
        factors = self._factors(theta, phi, omega).split(numbers)
        parts = zip(self.rotations, factors, strict=True)
        blocks = [rotation.blocks(X) for rotation, X in parts]

        def advance(h: Tensor) -> Tensor:
            pairs = torch.view_as_real(h) if h.is_complex() else h[..., None]
            for rotation, M in zip(self.rotations, blocks, strict=True):
                pairs = rotation.scatter(torch.bmm(rotation.gather(pairs), M.mT))
            pairs = pairs[:, : self.n].contiguous()
            return torch.view_as_complex(pairs) if h.is_complex() else pairs[..., 0]

        return advance

    def _factors(
        self, theta: Tensor, phi: Tensor | None, omega: Tensor | None
    ) -> Tensor:
        """The vectors `keep` and `cross` of each layer, stacked as (layers, 2, n).

        A layer maps h to h * keep + swapped * cross, where `swapped` is h with the two
        entries of each pair exchanged.
        """
        rows = (-1, self.n // 2)
        theta = pad(theta, (0, self.unused)).view(rows)
        c, s = theta.cos(), theta.sin()
        phases = torch.ones_like(theta)
        if phi is not None:
            phases = torch.polar(phases, pad(phi, (0, self.unused)).view(rows))
        # On axis 1, index 0 is for the coordinate j of each pair, and index 1 for its
        # partner j + distance, as `RotationLayer.spread` expects.
        keeps = torch.stack((c, phases * c), 1)
        crosses = torch.stack((-phases * s, s), 1)
        by_layer = zip(self.layers, torch.stack((keeps, crosses), 1), strict=True)
        factors = [layer.spread(X) for layer, X in by_layer]
        if omega is not None:
            # multiply the phases into the last layer, so that they cost nothing in a
            # time step
            factors[-1] = torch.polar(torch.ones_like(omega), omega) * factors[-1]
        return torch.stack(factors)


def _groups(layers: list[RotationLayer], most: int) -> list[list[RotationLayer]]:
    """The layers, split into lists of at most `most` consecutive ones."""
    return [layers[i : i + most] for i in range(0, len(layers), most)]


def _block_size(n: int, layers: int) -> int:
    """The least even divisor of n from 2 * `layers` to 4 * `layers`.

    If there is no such divisor, the result is 2 * `layers`.
    """
    sizes = range(2 * layers, 4 * layers + 1, 2)
    return next((size for size in sizes if n % size == 0), sizes[0])


# all angles are initially uniform in (-3.14, 3.14), as in the authors' code
_LARGEST_ANGLE = 3.14
# the authors' modReLU adds this to the modulus
_EPSILON = 0.01


def _modrelu(z: Tensor, b: Tensor) -> Tensor:
    """The authors' modReLU, which adds 0.01 to the modulus."""
    if not z.is_complex():
        return modrelu(z, b + _EPSILON)
    # In the forward pass, `z.abs()` would be slower than this square root. `tiny` keeps
    # the gradient finite at z = 0, where the gradient of the square root is infinite.
    tiny = torch.finfo(z.real.dtype).tiny
    m = (z.real.square() + z.imag.square() + tiny).sqrt() + _EPSILON
    return z * (torch.relu(m + b) / m)


def _check_style(n: int, capacity: int, style: Style) -> None:
    """Raise unless the style is known, and fits the sizes."""
    check_choice("style", style, get_args(Style), "The paper uses 'tunable'.")
    if style == "fft" and (n < 2 or n & (n - 1)):
        raise ValueError(
            f"`hidden_size` must be a power of two for the style 'fft'; got {n}. "
            f"Use 'tunable' for other even sizes."
        )
    if style == "tunable" and (n < 2 or n % 2):
        raise ValueError(
            f"`hidden_size` must be even, because coordinates are rotated in "
            f"pairs; got {n}. Use {n + 1}."
        )
    if style == "tunable" and (not is_positive(capacity) or capacity % 2):
        even = capacity + 1 if is_positive(capacity) else 2
        raise ValueError(
            f"`capacity` must be a positive even integer, because layers come in "
            f"pairs; got {capacity!r}. Use {even}."
        )


class EURNNCell(AbstractLoopCell):
    """One direction of one layer of `EURNN`."""

    sigma = staticmethod(_modrelu)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        *,
        capacity: int,
        style: Style,
        unitary: bool,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_flags(unitary=unitary)
        _check_style(hidden_size, capacity, style)
        self.planes = Planes(hidden_size, capacity, style)
        self.unitary = unitary
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n = self.hidden_size
        shape = self.planes.shape
        uniform = draw.complex_uniform if self.unitary else draw.uniform
        self.weight_ih = uniform(n, self.input_size, bound=0.01)
        self.theta = draw.uniform(*shape, bound=_LARGEST_ANGLE)
        self.phi = draw.uniform(*shape, bound=_LARGEST_ANGLE) if self.unitary else None
        self.omega = draw.uniform(n, bound=_LARGEST_ANGLE) if self.unitary else None
        self.bias = draw.zeros(n)

    def state_map(self) -> LinearFunction:
        """The product of all layers, computed in blocks."""
        return self.planes.product(self.theta, self.phi, self.omega)


@dataclass(eq=False, repr=False, kw_only=True)
class EURNN(AbstractComparator):
    r"""A unitary recurrent network whose map is made of $L$ layers of rotations.

    $$ h_t = \sigma(W h_{t-1} + T x_t), \qquad
       W = \operatorname{diag}(e^{i\omega})\, F_L \cdots F_2 F_1, $$

    where each $F_l$ rotates pairs of coordinates,

    $$ \begin{pmatrix} a \\ b \end{pmatrix} \mapsto
       \begin{pmatrix} \cos\theta & -e^{i\phi} \sin\theta \\
       \sin\theta & e^{i\phi} \cos\theta \end{pmatrix}
       \begin{pmatrix} a \\ b \end{pmatrix}. $$

    In the style "tunable", the pairs are (0, 1), (2, 3), ... in odd layers and (1, 2),
    (3, 4), ... in even layers, so that $L = n$ layers reach all of $U(n)$. The style
    "fft" has $\log_2 n$ layers, with pairs at the distances $n/2, n/4, \dots, 1$. Real
    networks have neither $\phi$ nor $\omega$. A time step costs $O(nL)$, and for large
    $n$ no $n \times n$ matrix is formed. The network runs in a loop over time, with
    autograd.

    It is called like `torch.nn.RNN`. The nonlinearity $\sigma$ is the authors' modReLU,
    $\sigma(z) = \max(m + b, 0)\, z / m$ with $m = |z| + 0.01$; for real states,
    $\max(m + b, 0)$ times the sign of $z$. A cell has one bias vector, $b$. The
    authors' output layer reads only the real parts of the states.

    Options that are not listed here have the same meaning as in `ExpRNN`, except that
    `generator` is the source of all random initial values.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of the state. It must be even, and a power of
            two for "fft".
        num_layers: number of layers; each reads the outputs of the previous layer.
        capacity: $L$ in the tunable style. It must be even.
        style: "tunable" or "fft".
        unitary: whether $W$ is unitary and states are complex; otherwise both are real.

    References:
        [JSD17].
    """

    capacity: int = 2
    style: Style = "tunable"
    unitary: bool = True

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> EURNNCell:
        return EURNNCell(
            inputs,
            self.hidden_size,
            Draw(**factory),
            capacity=self.capacity,
            style=self.style,
            unitary=self.unitary,
        )
