"""The unitary recurrent network that trains coefficients in a basis of u(n)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isometry._backend.nonlinearities import Sigma
from isometry.linalg import expm_skew, skew
from isometry.nn._recurrent import check_choice
from isometry.nn.comparators.cell import AbstractComparator, AbstractDenseCell, Draw

# for each nonlinearity, the factor by which the authors multiply the unitary matrix
_GAIN = {"tanh": 1.05, "relu": 1.40}


class LieCell(AbstractDenseCell):
    """One direction of one layer of `LieRNN`."""

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        name, n, inputs = self.options.nonlinearity, self.hidden_size, self.input_size
        remedy = "For modReLU use `ExpRNN(unitary=True)`."
        check_choice("nonlinearity", name, _GAIN, remedy)
        self.sigma = Sigma(name)
        self.beta = _GAIN[name] if self.options.gain is None else self.options.gain
        self.weight_ih = draw.complex_input_weight(n, inputs)
        parts = draw.normal(n, n, 2, std=1.0).detach()
        self.X = draw.parameter(torch.view_as_complex(parts))
        self.redundant = {"X": n * n}
        self.bias = draw.parameter(torch.zeros(n, dtype=torch.complex64, device="cpu"))

    def recurrent_matrix(self) -> Tensor:
        """The unitary matrix W times the gain."""
        return self.beta * expm_skew(skew(self.X))


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
    B_j$, so this matrix is filled without a sum over the basis. With the exponential of
    this library, the network costs as much as `ExpRNN(unitary=True)`.

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
    cell_class = LieCell
