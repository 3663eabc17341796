"""The unitary recurrent network of rotations in planes."""

from typing import Unpack

import torch
from torch import Tensor

from isometry._checks import check_flags
from isometry.nn._cell import check_sizes
from isometry.nn._draw import Draw
from isometry.nn._recurrent import AbstractRecurrent
from isometry.nn._sigma import modrelu
from isometry.nn.comparators.cell import AbstractComparatorCell, LayerOptions, Map
from isometry.nn.comparators.rotations import Planes, Style

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
        check_sizes(input_size, hidden_size)
        check_flags(unitary=unitary)
        _check(hidden_size, capacity, style)
        planes = Planes(hidden_size, capacity, style)
        draw = Draw(device, dtype, generator)
        super().__init__(
            *(input_size, hidden_size, num_layers),
            lambda size: EURNNCell(size, planes, draw, unitary=unitary),
            **layers,
        )


class EURNNCell(AbstractComparatorCell):
    """One layer and direction of `EURNN`."""

    def __init__(
        self, input_size: int, planes: Planes, draw: Draw, *, unitary: bool
    ) -> None:
        super().__init__(input_size, planes.n)
        self.planes, self.unitary = planes, unitary
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Make all parameters, with first values."""
        n, inputs = self.hidden_size, self.input_size
        shape, unitary = self.planes.shape, self.unitary
        kernel = draw.complex_uniform if unitary else draw.uniform
        self.weight_ih = kernel(n, inputs, bound=0.01)
        self.theta = draw.uniform(*shape, bound=_BOUND)
        self.phi = draw.uniform(*shape, bound=_BOUND) if unitary else None
        self.omega = draw.uniform(n, bound=_BOUND) if unitary else None
        self.bias = draw.zeros(n)

    def state_map(self) -> Map:
        """The layers, as products of blocks."""
        return self.planes.product(self.theta, self.phi, self.omega)

    def activate(self, z: Tensor, b: Tensor) -> Tensor:
        """The authors' modReLU, which at b = 0 is not the identity."""
        if not z.is_complex():
            return modrelu(z, b + _EPSILON)
        # `abs` takes three times as long; the root of zero has no gradient
        tiny = torch.finfo(z.real.dtype).tiny
        m = (z.real.square() + z.imag.square() + tiny).sqrt() + _EPSILON
        return z * (torch.relu(m + b) / m)


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
