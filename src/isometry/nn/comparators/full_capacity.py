"""The recurrent network with any unitary weight, by descent on the group."""

import math
from typing import Unpack

import torch
from torch import Tensor

from isometry.groups import U
from isometry.groups._declare import record
from isometry.nn._draw import Draw, glorot
from isometry.nn._recurrent import AbstractRecurrent
from isometry.nn.comparators.cell import AbstractDenseCell, LayerOptions
from isometry.nn.comparators.urnn import check_epsilon, smooth_modrelu, structured


class FullCapacityURNN(AbstractRecurrent):
    r"""Unitary recurrent network whose weight is itself the parameter.

    $$ h_t = \sigma(W h_{t-1} + T x_t), \qquad W \in U(n), $$

    on complex states. `weight_hh` is declared to live on $U(n)$: give it to an
    optimizer of `isometry.optim`, with any retraction, in the groups that
    `isometry.param_groups` makes; any other optimizer leaves the group. It starts at a
    random product of the `URNN` kind. Called as `torch.nn.RNN`; a layer has one bias
    vector, the $b$ of modReLU, and a trained first state. An output layer reads the
    real and the imaginary parts.

    The paper calls it RGD. The authors' step reads half of the gradient: of the real
    $2n \times 2n$ matrix that holds $W$ twice, only the upper blocks. Autograd gives
    the whole, so learning rates do not carry over one to one.

    Args:
        input_size: features of the input.
        hidden_size: complex features of the state.
        num_layers: each reads the outputs of the one before.
        epsilon: of the modReLU, as in `URNN`: the authors' needs a loop over time, with
            autograd; 0 is the exact modReLU, and the fast scan.
        bias_bound: $b$ starts uniform between minus and plus this.
        device: of the parameters.
        dtype: of the parameters, real; complex ones have the complex of it.
        generator: source of their first values.
        **layers: `batch_first`, `dropout`, `bidirectional`, `last_only` and `chunk`, as
            in `ExpRNN`.

    References:
        [WPH16].
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        epsilon: float = 1e-5,
        bias_bound: float = 0.01,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        **layers: Unpack[LayerOptions],
    ) -> None:
        check_epsilon(epsilon)
        draw = Draw(device, dtype, generator)
        super().__init__(
            *(input_size, hidden_size, num_layers),
            lambda size: FullCapacityCell(size, hidden_size, epsilon, bias_bound, draw),
            **layers,
        )


class FullCapacityCell(AbstractDenseCell):
    """One layer and direction of `FullCapacityURNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        epsilon: float,
        bias_bound: float,
        draw: Draw,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.epsilon, self.bias_bound = epsilon, bias_bound
        self.sigma = None if epsilon else "complex_modrelu"
        self.draw_parameters(draw)
        # a point by construction, in every precision and without values too
        record(self, "weight_hh", U(hidden_size))

    def draw_parameters(self, draw: Draw) -> None:
        """Make all parameters, with first values."""
        n, inputs = self.hidden_size, self.input_size
        bound = glorot(inputs, 2 * n)
        self.weight_ih = draw.complex_uniform(n, inputs, bound=bound)
        self.weight_hh = draw.parameter(_structured_unitary(n, draw.generator))
        self.bias = draw.uniform(n, bound=self.bias_bound)
        self.h0 = draw.complex_uniform(n, bound=math.sqrt(3 / (2 * n)))

    def recurrent_weight(self) -> Tensor:
        """The unitary matrix."""
        return self.weight_hh

    def activate(self, z: Tensor, b: Tensor) -> Tensor:
        """modReLU."""
        return smooth_modrelu(z, b, self.epsilon)


def _structured_unitary(n: int, generator: torch.Generator | None) -> Tensor:
    """The matrix of a random `URNN`, in double precision."""
    draw = Draw("cpu", torch.float64, generator)
    theta = draw.uniform(3, n, bound=math.pi).detach()
    v = draw.complex_uniform(2, n, bound=glorot(2, 2 * n)).detach()
    order = torch.randperm(n, generator=generator, device="cpu")
    rows = structured(torch.polar(torch.ones_like(theta), theta), v, order)
    return rows(torch.eye(n, dtype=v.dtype, device="cpu")).mT
