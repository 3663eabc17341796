"""Recurrent networks whose weight is computed from a skew matrix.

`ScoRNN` and `ScuRNN` use the Cayley transform, and `LieRNN` uses the exponential.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isometry._backend.nonlinearities import Sigma
from isometry.linalg import cayley, expm_skew, skew
from isometry.nn._cell import FactoryOptions, check_choice
from isometry.nn.comparators.cell import (
    AbstractComparator,
    AbstractDenseCell,
    Draw,
    smooth_sigma,
)


class ScoRNNCell(AbstractDenseCell):
    """One direction of one layer of `ScoRNN`."""

    sigma = Sigma("modrelu")
    D: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        *,
        negatives: int | None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        n = hidden_size
        self.negatives = n // 2 if negatives is None else negatives
        if not isinstance(self.negatives, int) or not 0 <= self.negatives <= n:
            raise ValueError(
                f"`negatives` must be an integer between 0 and hidden_size = {n}; got "
                f"{negatives!r}. The default is half of `hidden_size`."
            )
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n = self.hidden_size
        self.weight_ih = draw.uniform(n, self.input_size, bound=0.01)
        self.X = draw.parameter(cayley_blocks(n, draw))
        self.redundant = {"X": n * n - n * (n - 1) // 2}
        self.bias = draw.zeros(n)
        signs = torch.ones(n, device="cpu")
        signs[n - self.negatives :] = -1
        self.register_buffer("D", signs.to(self.X))

    def recurrent_matrix(self) -> Tensor:
        """The orthogonal matrix W."""
        return scaled_cayley(self.X, self.D)


@dataclass(eq=False, repr=False, kw_only=True)
class ScoRNN(AbstractComparator):
    r"""An orthogonal recurrent network whose weight is a scaled Cayley transform.

    $$ h_t = \sigma(W h_{t-1} + T x_t), \qquad W = (I + A)^{-1} (I - A)\, D, \quad
       A = -A^T, \quad D = \operatorname{diag}(1, \dots, 1, -1, \dots, -1), $$

    where $\sigma$ is modReLU. The Cayley transform alone never has the eigenvalue $-1$;
    its product with the fixed $D$ can have it. The network is called like
    `torch.nn.RNN`; a cell has one bias vector, the $b$ of modReLU, which starts at
    zero. The coordinates of $A$ are the strictly lower triangle of the parameter `X`,
    which the authors train at a tenth of the learning rate of the other parameters.

    Options that are not listed here have the same meaning as in `ExpRNN`, except that
    `generator` is the source of all random initial values.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        negatives: how many entries at the end of $D$ are $-1$. None means half of all
            entries, as in the authors' copying task; for MNIST they use a tenth.

    References:
        [HWY18].
    """

    negatives: int | None = None

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> ScoRNNCell:
        return ScoRNNCell(
            inputs, self.hidden_size, Draw(**factory), negatives=self.negatives
        )


def scaled_cayley(X: Tensor, D: Tensor) -> Tensor:
    r"""$(I + A)^{-1} (I - A) \operatorname{diag}(D)$ with $A$ = skew(X)."""
    # our `cayley(A)` is (I + A / 2) (I - A / 2)^{-1}, so the argument here is -2 A
    return cayley(-2 * skew(X)) * D


def cayley_blocks(n: int, draw: Draw) -> Tensor:
    r"""Coordinates of a skew $A$ made of 2 x 2 blocks with entries $\mp\tan(u / 2)$.

    The transform $(I + A)^{-1} (I - A)$ rotates the plane of each block by $-u$, where
    $u$ is uniform in $(0, \pi / 2)$. If $n$ is odd, the last row of $A$ is zero.
    """
    u = (math.pi / 2) * torch.rand(
        n // 2, dtype=torch.float64, device="cpu", generator=draw.generator
    )
    X = u.new_zeros(n, n)
    even = 2 * torch.arange(n // 2, device="cpu")
    # [HWY18] sets -tan(u / 2) above the diagonal. Our coordinates are below the
    # diagonal, so they are positive.
    X[even + 1, even] = torch.tan(u / 2)
    return X


class ScuRNNCell(AbstractDenseCell):
    """One direction of one layer of `ScuRNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        *,
        epsilon: float,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.sigma = smooth_sigma(epsilon)
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n, inputs = self.hidden_size, self.input_size
        self.weight_ih = draw.complex_input_weight(n, inputs)
        blocks = cayley_blocks(n, draw)
        self.X = draw.parameter(blocks.to(torch.complex128))
        self.redundant = {"X": n * n}
        # the authors draw theta from (0, 2 pi), which gives the phases exp(i theta) the
        # same distribution
        self.theta = draw.uniform(n, bound=math.pi)
        self.bias = draw.uniform(n, bound=0.01)
        self.h0 = draw.complex_uniform(n, bound=0.01)

    def recurrent_matrix(self) -> Tensor:
        """The unitary matrix W."""
        D = torch.polar(torch.ones_like(self.theta), self.theta)
        return scaled_cayley(self.X, D)


@dataclass(eq=False, repr=False, kw_only=True)
class ScuRNN(AbstractComparator):
    r"""A unitary recurrent network whose weight is a scaled Cayley transform.

    $$ h_t = \sigma(W h_{t-1} + T x_t), \qquad W = (I + A)^{-1} (I - A)\, D, \quad
       A = -A^H, \quad D = \operatorname{diag}(e^{i\theta}), $$

    on complex states, where $\sigma$ is modReLU. Unlike in `ScoRNN`, $D$ is learned, so
    every unitary $W$ can be reached. The $n$ angles make the parametrization redundant:
    it has $n^2 + n$ numbers for a group of dimension $n^2$. The network is called like
    `torch.nn.RNN`; a cell has one bias vector, the $b$ of modReLU, and a learned
    initial state. An output layer should read both the real and the imaginary parts of
    the states. The coordinates of $A$ are the numbers below the diagonal of the
    parameter `X`, and the real parts on the diagonal.

    Options that are not listed here have the same meaning as in `ExpRNN`, except that
    `generator` is the source of all random initial values.

    Args:
        input_size: number of features of the input.
        hidden_size: number of complex features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        epsilon: $\epsilon$ of the modReLU, as in `URNN`.

    References:
        [MHY19].
    """

    epsilon: float = 1e-5

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> ScuRNNCell:
        return ScuRNNCell(
            inputs, self.hidden_size, Draw(**factory), epsilon=self.epsilon
        )


# for each nonlinearity, the factor by which the authors multiply the unitary matrix
_GAIN = {"tanh": 1.05, "relu": 1.40}


class LieCell(AbstractDenseCell):
    """One direction of one layer of `LieRNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        *,
        nonlinearity: Literal["tanh", "relu"],
        gain: float | None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        remedy = "For modReLU use `ExpRNN(unitary=True)`."
        check_choice("nonlinearity", nonlinearity, _GAIN, remedy)
        self.sigma = Sigma(nonlinearity)
        self.gain = _GAIN[nonlinearity] if gain is None else gain
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n, inputs = self.hidden_size, self.input_size
        self.weight_ih = draw.complex_input_weight(n, inputs)
        parts = draw.normal(n, n, 2, std=1.0).detach()
        self.X = draw.parameter(torch.view_as_complex(parts))
        self.redundant = {"X": n * n}
        self.bias = draw.parameter(torch.zeros(n, dtype=torch.complex64, device="cpu"))

    def recurrent_matrix(self) -> Tensor:
        """The unitary matrix W times the gain."""
        return self.gain * expm_skew(skew(self.X))


@dataclass(eq=False, repr=False, kw_only=True)
class LieRNN(AbstractComparator):
    r"""A unitary recurrent network that trains coefficients in the Lie algebra.

    $$ h_t = \sigma(\beta W h_{t-1} + T x_t + b), \qquad
       W = \exp\Bigl(\sum_{j=1}^{n^2} \lambda_j B_j\Bigr), $$

    on complex states, where $\sigma$ acts on the real and the imaginary parts
    separately. The $B_j$ are the usual basis of $\mathfrak u(n)$: $e_k e_l^T - e_l
    e_k^T$ and $i(e_k e_l^T + e_l e_k^T)$ for $k > l$, and $i e_k e_k^T$. By default the
    gain $\beta$ is above 1, which makes up for the contraction by $\sigma$. The network
    is called like `torch.nn.RNN`; a cell has one complex bias vector. An output layer
    should read both the real and the imaginary parts of the states.

    The coefficients $\lambda_j$ are $n^2$ of the $2 n^2$ real numbers in the complex
    parameter `X`: the real and imaginary parts below the diagonal, and the real parts
    on the diagonal. The other numbers of `X` are ignored. All numbers of `X` are
    initially drawn from the standard normal distribution. For large $n$, the exponent
    then has angles of up to about $2 \sqrt{2n}$, beyond $\pi$, where the exponential is
    no longer one-to-one.

    Each coefficient is the real or the imaginary part of an entry of $\sum_j \lambda_j
    B_j$, so this matrix is filled without a sum over the basis. Its exponential is
    computed as in `ExpRNN(unitary=True)`.

    Options that are not listed here have the same meaning as in `ExpRNN`, except that
    `generator` is the source of all random initial values.

    Args:
        input_size: number of features of the input.
        hidden_size: number of complex features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        nonlinearity: "tanh" or "relu".
        gain: $\beta$; None means 1.05 for tanh and 1.40 for ReLU.

    References:
        [HR17].
    """

    nonlinearity: Literal["tanh", "relu"] = "tanh"
    gain: float | None = None

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> LieCell:
        return LieCell(
            inputs,
            self.hidden_size,
            Draw(**factory),
            nonlinearity=self.nonlinearity,
            gain=self.gain,
        )
