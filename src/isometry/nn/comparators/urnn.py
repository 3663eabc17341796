"""Unitary recurrent networks: one with a structured weight, one with a full weight."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from isometry._backend.nonlinearities import complex_modrelu, smooth_modrelu
from isometry._declare import record
from isometry.groups import U
from isometry.nn._cell import FactoryOptions
from isometry.nn.comparators.cell import (
    AbstractComparator,
    AbstractDenseCell,
    AbstractLoopCell,
    Draw,
    LinearFunction,
    check_epsilon,
    glorot,
    smooth_sigma,
)


class URNNCell(AbstractLoopCell):
    """One direction of one layer of `URNN`."""

    permutation: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        *,
        epsilon: float,
        bias_bound: float,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_epsilon(epsilon)
        smooth = partial(smooth_modrelu, epsilon=epsilon)
        self.sigma = smooth if epsilon else complex_modrelu
        self.bias_bound = bias_bound
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n, inputs = self.hidden_size, self.input_size
        self.weight_ih = draw.complex_input_weight(n, inputs)
        self.theta = draw.uniform(3, n, bound=math.pi)
        self.v = draw.complex_uniform(2, n, bound=glorot(2, 2 * n))
        order = torch.randperm(n, generator=draw.generator, device="cpu")
        self.register_buffer("permutation", order.to(self.theta.device))
        self.bias = draw.uniform(n, bound=self.bias_bound)
        self.h0 = draw.complex_uniform(n, bound=math.sqrt(3 / (2 * n)))

    def state_map(self) -> LinearFunction:
        """A function that applies the eight factors of W one by one."""
        return structured_map(self.theta, self.v, self.permutation)


@dataclass(eq=False, repr=False, kw_only=True)
class URNN(AbstractComparator):
    r"""A unitary recurrent network whose recurrent map costs $O(n \log n)$.

    $$ h_t = \sigma(W h_{t-1} + T x_t), \qquad
       W = D_3 R_2 F^{-1} D_2 \Pi R_1 F D_1, $$

    on complex states, where $\sigma$ is modReLU. Here $D_j =
    \operatorname{diag}(e^{i\theta_j})$, $F$ is the unitary Fourier transform, the $R_j
    = I - 2 \bar v_j v_j^T / \lVert v_j \rVert^2$ are reflections, and $\Pi$ is a fixed
    random permutation. $W$ has $7n$ parameters, too few for all of $U(n)$ if $n > 7$.
    No $n \times n$ matrix is formed: the network runs in a loop over time, with
    autograd. It is called like `torch.nn.RNN`; a cell has one bias vector, the $b$ of
    modReLU, and a learned initial state. An output layer should read both the real and
    the imaginary parts of the states.

    Options that are not listed here have the same meaning as in `ExpRNN`, except that
    `generator` is the source of all random initial values.

    Args:
        input_size: number of features of the input.
        hidden_size: number of complex features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        epsilon: $\epsilon$ of the modReLU $z \max(m + b, 0) / (m + \epsilon)$ with
            $m = \sqrt{|z|^2 + \epsilon}$; 0 gives the exact modReLU.
        bias_bound: the initial $b$ is uniform between minus and plus this bound.

    References:
        [ASB16]; [WPH16] for the epsilon under the root.
    """

    epsilon: float = 1e-5
    bias_bound: float = 0.01

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> URNNCell:
        return URNNCell(
            inputs,
            self.hidden_size,
            Draw(**factory),
            epsilon=self.epsilon,
            bias_bound=self.bias_bound,
        )


def structured_map(theta: Tensor, v: Tensor, permutation: Tensor) -> LinearFunction:
    """The recurrent map of a `URNN`, as a function of rows of states."""
    # divide by the squared lengths here, once for all time steps
    scaled = 2 * v.conj() / torch.linalg.vecdot(v, v).real[:, None]
    D1, D2, D3 = torch.polar(torch.ones_like(theta), theta)

    def reflect(h: Tensor, i: int) -> Tensor:
        return torch.addr(h, h @ v[i], scaled[i], alpha=-1)

    def advance(h: Tensor) -> Tensor:
        h = reflect(_fourier(h * D1, torch.fft.fft), 0)
        # `gather` is faster than `h[:, permutation]`
        h = h.gather(1, permutation.expand_as(h))
        h = _fourier(h * D2, torch.fft.ifft)
        return reflect(h, 1) * D3

    return advance


def _fourier(h: Tensor, fft: Callable[..., Tensor]) -> Tensor:
    # MKL refuses to transform an empty batch
    return fft(h, norm="ortho") if h.shape[0] else h


class FullCapacityCell(AbstractDenseCell):
    """One direction of one layer of `FullCapacityURNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        *,
        epsilon: float,
        bias_bound: float,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.sigma = smooth_sigma(epsilon)
        self.bias_bound = bias_bound
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n, inputs = self.hidden_size, self.input_size
        self.weight_ih = draw.complex_input_weight(n, inputs)
        self.weight_hh = draw.parameter(_structured_unitary(n, draw.generator))
        # Record the manifold without a check: the weight is unitary by construction, in
        # every precision, and on the meta device it has no values to check.
        record(self, "weight_hh", U(n), guarded=True)
        self.bias = draw.uniform(n, bound=self.bias_bound)
        self.h0 = draw.complex_uniform(n, bound=math.sqrt(3 / (2 * n)))

    def recurrent_matrix(self) -> Tensor:
        """The unitary matrix W."""
        return self.weight_hh


@dataclass(eq=False, repr=False, kw_only=True)
class FullCapacityURNN(AbstractComparator):
    r"""A unitary recurrent network whose weight is itself the parameter.

    $$ h_t = \sigma(W h_{t-1} + T x_t), \qquad W \in U(n), $$

    on complex states. `weight_hh` is declared as a point of $U(n)$: give it to an
    optimizer of `isometry.optim`, with any retraction, in the parameter groups that
    `isometry.param_groups` makes. With any other optimizer it would leave $U(n)$, so
    the first step of such an optimizer raises. The weight starts at the matrix of a
    random `URNN`. The network is called like `torch.nn.RNN`; a cell has one bias
    vector, the $b$ of the modReLU $\sigma$, and a learned initial state. An output
    layer should read both the real and the imaginary parts of the states.

    [LM19] calls this network RGD. The authors of [WPH16] store $W$ in a real matrix
    of size $2n \times 2n$, which contains the real and the imaginary part of $W$ twice.
    Their optimizer reads only the upper half of the gradient of this matrix, and so
    only half of the gradient of $W$. Here autograd gives the whole gradient, so the
    authors' learning rates do not carry over unchanged.

    Options that are not listed here have the same meaning as in `ExpRNN`, except that
    `generator` is the source of all random initial values.

    Args:
        input_size: number of features of the input.
        hidden_size: number of complex features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        epsilon: $\epsilon$ of the modReLU, as in `URNN`.
        bias_bound: the initial $b$ is uniform between minus and plus this bound.

    References:
        [WPH16].
    """

    epsilon: float = 1e-5
    bias_bound: float = 0.01

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> FullCapacityCell:
        return FullCapacityCell(
            inputs,
            self.hidden_size,
            Draw(**factory),
            epsilon=self.epsilon,
            bias_bound=self.bias_bound,
        )


def _structured_unitary(n: int, generator: torch.Generator | None) -> Tensor:
    """The unitary matrix of a random `URNN`, in double precision."""
    draw = Draw("cpu", torch.float64, generator)
    theta = draw.uniform(3, n, bound=math.pi).detach()
    v = draw.complex_uniform(2, n, bound=glorot(2, 2 * n)).detach()
    order = torch.randperm(n, generator=generator, device="cpu")
    apply = structured_map(theta, v, order)
    return apply(torch.eye(n, dtype=v.dtype, device="cpu")).mT
