"""The unitary recurrent network of rotations in planes."""

from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from isometry.nn._comparator import AbstractCell, LayerOptions, Map
from isometry.nn._draw import Draw
from isometry.nn._recurrent import AbstractRecurrent
from isometry.nn._sigma import modrelu

Style = Literal["tunable", "fft"]

# of the authors' code, in place of pi
_BOUND = 3.14
# what their modReLU adds to the modulus
_EPSILON = 0.01


class EURNN(AbstractRecurrent):
    r"""Unitary recurrent network whose map is $L$ layers of rotations of pairs.

    $$ h_t = \sigma(W h_{t-1} + T x_t), \qquad
       W = \operatorname{diag}(e^{i\omega})\, F_L \cdots F_2 F_1, $$

    where each $F_l$ turns pairs of coordinates,

    $$ \begin{pmatrix} a \\ b \end{pmatrix} \mapsto
       \begin{pmatrix} \cos\theta & -e^{i\phi} \sin\theta \\
       \sin\theta & e^{i\phi} \cos\theta \end{pmatrix}
       \begin{pmatrix} a \\ b \end{pmatrix}. $$

    "tunable": the pairs are (0, 1), (2, 3), ... in odd layers and (1, 2), (3, 4), ...
    in even ones, so that $L = n$ layers reach all of $U(n)$. "fft": $\log_2 n$ layers,
    of pairs at the distances $n/2, n/4, \dots, 1$. Real networks have neither $\phi$
    nor $\omega$. $O(nL)$ a state and never an $n \times n$ matrix: a loop over time,
    with autograd. Called as `torch.nn.RNN`; a layer has one bias vector, the $b$ of
    modReLU, $\max(m + b, 0)\, z / m$ with $m = |z| + 0.01$ (real: times the sign of
    $z$). The authors' output layer reads the real parts alone.

    Args:
        input_size: features of the input.
        hidden_size: features of the state: even, or for "fft" a power of two.
        num_layers: each reads the outputs of the one before.
        capacity: $L$ of the tunable style, even.
        style: "tunable" or "fft".
        unitary: whether states are complex; else $W$ is orthogonal.
        device: of the parameters.
        dtype: of the parameters, real; complex ones have the complex of it.
        generator: source of their first values.
        **layers: `batch_first`, `dropout`, `bidirectional`, `last_only` and `chunk`, as
            in `ExpRNN`.

    References:
        [JSD17].
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        capacity: int = 2,
        style: Style = "tunable",
        unitary: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        **layers: Unpack[LayerOptions],
    ) -> None:
        planes = Planes(hidden_size, capacity, style)
        draw = Draw(device, dtype, generator)
        super().__init__(
            *(input_size, hidden_size, num_layers),
            lambda size: EURNNCell(size, planes, draw, unitary=unitary),
            **layers,
        )


class Planes:
    """Which coordinates each layer of rotations pairs.

    Attributes:
        shape: of the angles. Of the tunable style a row has those of two layers.
        layers: of each, how far the two of a pair are apart, and how many coordinates
            at either end stay as they are.
    """

    def __init__(self, n: int, capacity: int, style: Style) -> None:
        _check(n, capacity, style)
        self.n = n
        if style == "fft":
            depth = n.bit_length() - 1
            self.shape = (depth, n // 2)
            self.layers = [(n >> (level + 1), 0) for level in range(depth)]
        else:
            self.shape = (capacity // 2, n - 1)
            self.layers = [(1, 0), (1, 1)] * (capacity // 2)

    def split(self, angles: Tensor) -> list[Tensor]:
        """The angles of each layer."""
        sizes = [(self.n - 2 * ends) // 2 for _, ends in self.layers]
        return list(angles.flatten().split(sizes))


class EURNNCell(AbstractCell):
    """One layer and direction of `EURNN`."""

    def __init__(
        self, input_size: int, planes: Planes, draw: Draw, *, unitary: bool
    ) -> None:
        super().__init__(input_size, planes.n)
        n = planes.n
        self.planes = planes
        kernel = draw.complex_uniform if unitary else draw.uniform
        self.weight_ih = kernel(n, input_size, bound=0.01)
        self.theta = draw.uniform(*planes.shape, bound=_BOUND)
        self.phi = draw.uniform(*planes.shape, bound=_BOUND) if unitary else None
        self.omega = draw.uniform(n, bound=_BOUND) if unitary else None
        self.bias = draw.zeros(n)

    def state_map(self) -> Map:
        """The layers, one after the other: h -> keep * h + cross * partner of h."""
        factors = self._factors()

        def advance(h: Tensor) -> Tensor:
            for (distance, ends), keep, cross in factors:
                h = torch.addcmul(h * keep, partner(h, distance, ends), cross)
            return h

        return advance

    def _factors(self) -> list[tuple[tuple[int, int], Tensor, Tensor]]:
        """What each layer multiplies a coordinate and its partner by."""
        cosines = self.planes.split(self.theta.cos())
        sines = self.planes.split(self.theta.sin())
        ones = torch.ones_like(self.theta)
        phase = ones if self.phi is None else torch.polar(ones, self.phi)
        phases = self.planes.split(phase)
        factors = []
        for layer, c, s, e in zip(
            self.planes.layers, cosines, sines, phases, strict=True
        ):
            keep = _interleave(c.to(e.dtype), e * c, layer, at_ends=1.0)
            cross = _interleave(-e * s, s.to(e.dtype), layer, at_ends=0.0)
            factors.append((layer, keep, cross))
        if self.omega is not None:
            # the diagonal is a part of the last layer, and costs nothing
            D = torch.polar(torch.ones_like(self.omega), self.omega)
            layer, keep, cross = factors[-1]
            factors[-1] = (layer, D * keep, D * cross)
        return factors

    def activate(self, z: Tensor) -> Tensor:
        """The authors' modReLU, which at b = 0 is not the identity."""
        if not z.is_complex():
            return modrelu(z, self.bias + _EPSILON)
        m = z.abs() + _EPSILON
        return z * (torch.relu(m + self.bias) / m)


def partner(h: Tensor, distance: int, ends: int) -> Tensor:
    """The other coordinate of each pair; at the ends, the coordinate itself."""
    inner = h[:, ends : h.shape[1] - ends]
    pairs = inner.unflatten(1, (inner.shape[1] // (2 * distance), 2, distance))
    turned = pairs.flip(2).flatten(1)
    return torch.cat((h[:, :1], turned, h[:, -1:]), 1) if ends else turned


def _interleave(
    first: Tensor, second: Tensor, layer: tuple[int, int], *, at_ends: float
) -> Tensor:
    """Numbers for the first and the second of each pair, where these are."""
    distance, ends = layer
    blocks = (-1, distance)
    both = torch.stack((first.reshape(blocks), second.reshape(blocks)), 1).flatten()
    return pad(both, (ends, ends), value=at_ends)


def _check(n: int, capacity: int, style: Style) -> None:
    if style not in ("tunable", "fft"):
        raise ValueError(
            f"`style` must be 'tunable' or 'fft'; got {style!r}. The paper's is "
            f"'tunable'."
        )
    if style == "fft" and (n < 2 or n & (n - 1)):
        raise ValueError(
            f"`hidden_size` must be a power of two for the style 'fft'; got {n}. Use "
            f"'tunable' for other even sizes."
        )
    if style == "tunable" and (n < 2 or n % 2):
        raise ValueError(
            f"`hidden_size` must be even, as its coordinates turn in pairs; got {n}. "
            f"Use {n + 1}."
        )
    if style == "tunable" and (capacity < 2 or capacity % 2):
        raise ValueError(
            f"`capacity` must be a positive even number, for layers of both kinds; got "
            f"{capacity}. Use {max(2, capacity + 1)}."
        )
