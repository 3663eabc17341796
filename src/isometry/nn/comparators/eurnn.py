r"""The unitary network whose map is a product of rotations of pairs of coordinates.

If $L$ layers of rotations were applied one after the other, a state of $n$ coordinates
would be read and written $L$ times, with only a few multiplications each time. So
several layers are multiplied first. Their product consists of small dense blocks, and
is applied as a batch of small matrix products. The cost is still $O(nL)$. The blocks
depend on the pairs that the layers rotate:

- Take $g$ layers that pair neighbours, and intervals of $2k \ge 2g$ coordinates. In
  each interval, first apply the rotations inside a triangle: the $l$-th of these layers
  leaves out $l - 1$ coordinates at either end. Then apply the rotations in the gaps
  between triangles, which lie in intervals shifted by $k$. No rotation in a triangle
  depends on a rotation in a gap, so the product is the same in this order.
- $m$ consecutive layers with the pairs of a fast Fourier transform mix coordinates
  only within sets of $2^m$.

The blocks are computed once for all time steps, by applying the layers to unit vectors.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from isometry._backend.nonlinearities import modrelu
from isometry._checks import check_flags
from isometry.nn._recurrent import check_choice, is_positive
from isometry.nn._scan import real_form
from isometry.nn.comparators.cell import (
    AbstractComparator,
    AbstractLoopCell,
    Draw,
    LinearFunction,
)

Style = Literal["tunable", "fft"]

# The largest number of layers that are multiplied together, in blocks. Blocks of 16
# layers that pair neighbours have 32 to 64 rows; blocks of 4 layers of a Fourier
# transform have 16 rows.
_LAYERS_TOGETHER = 16
_FFT_LAYERS_TOGETHER = 4


@dataclass(frozen=True)
class RotationLayer:
    """A layer of rotations, each in the plane of two coordinates j and j + `distance`.

    The first and the last `skip` coordinates are not rotated.
    """

    distance: int
    skip: int = 0

    def partners(self, size: int) -> Tensor:
        """The index of each coordinate's partner among `size` coordinates.

        Indices wrap around, so coordinates that are not rotated have partners too.
        """
        j = torch.arange(size)
        return (((j - self.skip) % size ^ self.distance) + self.skip) % size


@dataclass(frozen=True)
class BlockRotation:
    """Rotations of several layers that mix coordinates only within blocks.

    Attributes:
        layers: the indices of the layers.
        shape: (outer, size, inner), where the coordinates of a block run along `size`.
        shift: the coordinate at which the first block begins; the last block wraps
            around.
        part: which rotations of the layers are applied: "all" or, for layers that pair
            neighbours, only the rotations in "triangles" or only the ones in "gaps".
    """

    layers: range
    shape: tuple[int, int, int]
    shift: int = 0
    part: Literal["all", "triangles", "gaps"] = "all"

    def gather(self, h: Tensor) -> Tensor:
        """Regroup an array (rows, coordinates, c) as blocks (blocks, rows, size * c).

        Here c is 2 if the last axis holds real and imaginary parts, and 1 otherwise.
        """
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
        """A mask of the coordinates that are rotated in layer `self.layers[depth]`."""
        outer, size, inner = self.shape
        if self.part == "all":
            return torch.ones(outer * size * inner, dtype=torch.bool)
        position = torch.arange(size).repeat(outer)
        inside = (position >= depth) & (position < size - depth)
        return inside if self.part == "triangles" else ~inside


class Planes:
    """The pairs of coordinates that each layer rotates, grouped in blocks.

    Attributes:
        n: number of coordinates of a state.
        padded: number of coordinates after zeros are appended so that the blocks fit.
        shape: the shape of the angles. In the tunable style, a row has the angles of
            two layers.
        layers: the layers, in the order in which they act.
        rotations: the product of all layers, as a sequence of block rotations.
    """

    def __init__(self, n: int, capacity: int, style: Style) -> None:
        self.n = self.padded = n
        self.rotations: list[BlockRotation] = []
        if style == "fft":
            depth = n.bit_length() - 1
            self.shape = (depth, n // 2)
            self.layers = [RotationLayer(n >> (level + 1)) for level in range(depth)]
            for numbers in _groups(depth, _FFT_LAYERS_TOGETHER):
                inner = self.layers[numbers[-1]].distance
                size = 2 ** len(numbers)
                shape = (n // (size * inner), size, inner)
                self.rotations.append(BlockRotation(numbers, shape))
            return
        self.shape = (capacity // 2, n - 1)
        self.layers = [RotationLayer(1), RotationLayer(1, skip=1)] * (capacity // 2)
        k = _half_block(n, min(capacity, _LAYERS_TOGETHER))
        blocks = -(-n // (2 * k))
        self.padded = 2 * k * blocks
        for numbers in _groups(capacity, _LAYERS_TOGETHER):
            shape = (blocks, 2 * k, 1)
            self.rotations += [
                BlockRotation(numbers, shape, part="triangles"),
                BlockRotation(numbers, shape, shift=k, part="gaps"),
            ]

    def product(
        self, theta: Tensor, phi: Tensor | None, omega: Tensor | None
    ) -> LinearFunction:
        r"""A function that applies all rotations and phases $e^{i\omega}$ to rows."""
        factors = self._factors(theta, phi, omega)
        blocks = [self._blocks(rotation, factors) for rotation in self.rotations]
        # the blocks multiply rows from the right, but `real_form` is for columns
        blocks = [real_form(M.mT).mT if M.is_complex() else M for M in blocks]
        zeros = self.padded - self.n

        def advance(h: Tensor) -> Tensor:
            h = pad(h, (0, zeros)) if zeros else h
            pairs = torch.view_as_real(h) if h.is_complex() else h[..., None]
            for rotation, M in zip(self.rotations, blocks, strict=True):
                pairs = rotation.scatter(torch.bmm(rotation.gather(pairs), M))
            pairs = pairs[:, : self.n].contiguous()
            return torch.view_as_complex(pairs) if h.is_complex() else pairs[..., 0]

        return advance

    def _factors(
        self, theta: Tensor, phi: Tensor | None, omega: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """For each layer, `keep` and `cross`: h becomes h * keep + partner * cross."""
        ones = torch.ones_like(theta)
        phase = ones if phi is None else torch.polar(ones, phi)
        sizes = [(self.n - 2 * layer.skip) // 2 for layer in self.layers]
        cosines, sines, phases = (
            X.flatten().split(sizes) for X in (theta.cos(), theta.sin(), phase)
        )
        factors = []
        for layer, c, s, e in zip(self.layers, cosines, sines, phases, strict=True):
            keep = self._at_pairs(c.to(e.dtype), e * c, layer, rest=1.0)
            cross = self._at_pairs(-e * s, s.to(e.dtype), layer, rest=0.0)
            factors.append((keep, cross))
        if omega is not None:
            # multiply the phases into the last layer, where they cost nothing
            D = torch.polar(torch.ones_like(omega), omega)
            D = pad(D, (0, self.padded - self.n), value=1.0)
            keep, cross = factors[-1]
            factors[-1] = (D * keep, D * cross)
        return factors

    def _at_pairs(
        self, first: Tensor, second: Tensor, layer: RotationLayer, *, rest: float
    ) -> Tensor:
        """A vector with an entry for each coordinate of a padded state.

        In each pair of the layer, the first coordinate gets an entry of `first`, and
        the second an entry of `second`. Coordinates without a partner get `rest`.
        """
        rows = (-1, layer.distance)
        both = torch.stack((first.reshape(rows), second.reshape(rows)), 1).flatten()
        after = self.padded - self.n + layer.skip
        return pad(both, (layer.skip, after), value=rest)

    def _blocks(
        self, rotation: BlockRotation, factors: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """The blocks of a rotation; their rows are the images of the unit vectors."""
        outer, size, inner = rotation.shape
        like = factors[0][0]
        eye = torch.eye(size, dtype=like.dtype, device=like.device)
        h = rotation.scatter(eye.expand(outer * inner, size, size))[..., 0]
        for depth, number in enumerate(rotation.layers):
            mask = rotation.acts_on(depth).to(like.device)
            keep, cross = factors[number]
            partner = h[:, self.layers[number].partners(self.padded).to(like.device)]
            keep, cross = torch.where(mask, keep, 1), torch.where(mask, cross, 0)
            h = h * keep + partner * cross
        return rotation.gather(h[..., None])


def _groups(layers: int, most: int) -> list[range]:
    """The indices of all layers, split into ranges of at most `most` layers."""
    return [range(i, min(i + most, layers)) for i in range(0, layers, most)]


def _half_block(n: int, layers: int) -> int:
    """Half a block's size: the least divisor of n / 2 from `layers` to 2 * `layers`.

    If there is no such divisor, the result is `layers`, and states are padded.
    """
    fitting = [k for k in range(layers, 2 * layers + 1) if n % (2 * k) == 0]
    return fitting[0] if fitting else layers


# all angles are initially uniform in (-3.14, 3.14), as in the authors' code
_LARGEST_ANGLE = 3.14
# the authors' modReLU adds this to the modulus
_EPSILON = 0.01


def _modrelu(z: Tensor, b: Tensor) -> Tensor:
    """The authors' modReLU, which adds 0.01 to the modulus."""
    if not z.is_complex():
        return modrelu(z, b + _EPSILON)
    # `z.abs()` would be slower. `tiny` keeps the gradient finite at z = 0, where the
    # gradient of the square root alone is infinite.
    tiny = torch.finfo(z.real.dtype).tiny
    m = (z.real.square() + z.imag.square() + tiny).sqrt() + _EPSILON
    return z * (torch.relu(m + b) / m)


class EURNNCell(AbstractLoopCell):
    """One direction of one layer of `EURNN`."""

    sigma = staticmethod(_modrelu)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n, capacity, style = self.hidden_size, self.options.capacity, self.options.style
        check_flags(unitary=self.options.unitary)
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
        self.planes = Planes(n, capacity, style)
        shape, unitary = self.planes.shape, self.options.unitary
        uniform = draw.complex_uniform if unitary else draw.uniform
        self.weight_ih = uniform(n, self.input_size, bound=0.01)
        self.theta = draw.uniform(*shape, bound=_LARGEST_ANGLE)
        self.phi = draw.uniform(*shape, bound=_LARGEST_ANGLE) if unitary else None
        self.omega = draw.uniform(n, bound=_LARGEST_ANGLE) if unitary else None
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
    cell_class = EURNNCell
