"""What the cells of the paper's comparators share, and how their weights are drawn."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isometry._backend.constants import Sigma
from isometry._torch import autocast_off
from isometry.nn._recurrent import AbstractCell, check_sizes
from isometry.nn._scan import Recurrence, Weights, driven, scan_field
from isometry.nn._sequence import Steps


@dataclass(frozen=True)
class Draw:
    """Makes the parameters of a cell, one after the other.

    All are drawn in double precision on the CPU, so that a generator gives the same
    network in every precision and on every device.

    Args:
        device: of the parameters.
        dtype: of the parameters, real; complex ones have the complex of it.
        generator: source of the numbers.
    """

    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    generator: torch.Generator | None = None

    def uniform(self, *shape: int, bound: float) -> nn.Parameter:
        """Uniform between minus and plus a bound."""
        X = torch.empty(shape, dtype=torch.float64, device="cpu")
        return self.parameter(X.uniform_(-bound, bound, generator=self.generator))

    def complex_uniform(self, *shape: int, bound: float) -> nn.Parameter:
        """Real and imaginary part of each number by themselves."""
        X = torch.empty(*shape, 2, dtype=torch.float64, device="cpu")
        X.uniform_(-bound, bound, generator=self.generator)
        return self.parameter(torch.view_as_complex(X))

    def normal(self, *shape: int, std: float) -> nn.Parameter:
        """Normal, around zero."""
        X = torch.empty(shape, dtype=torch.float64, device="cpu")
        return self.parameter(X.normal_(std=std, generator=self.generator))

    def zeros(self, *shape: int) -> nn.Parameter:
        """Zeros."""
        return self.parameter(torch.zeros(shape, device="cpu"))

    def parameter(self, X: Tensor) -> nn.Parameter:
        """A parameter with these values."""
        real = self.dtype or torch.get_default_dtype()
        dtype = real.to_complex() if X.is_complex() else real
        device = self.device or torch.get_default_device()
        return nn.Parameter(X.to(device=device, dtype=dtype, copy=True))


def glorot(fan_in: int, fan_out: int) -> float:
    """The bound of Glorot's uniform distribution."""
    return math.sqrt(6 / (fan_in + fan_out))


Map = Callable[[Tensor], Tensor]


class LayerOptions(TypedDict, total=False):
    """How cells are stacked, as in `ExpRNN`."""

    batch_first: bool
    dropout: float
    bidirectional: bool
    last_only: bool
    chunk: int | None


class AbstractComparatorCell(AbstractCell):
    """A cell with an input kernel, a recurrent map, one bias and a first state.

    What it inherits is a loop over time, for autograd to go back through.

    Attributes:
        weight_ih: the input kernel, (n, inputs).
        bias: one number a feature.
        h0: the trained first state, if there is one.
    """

    weight_ih: nn.Parameter
    bias: nn.Parameter
    h0: nn.Parameter | None

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        check_sizes(input_size, hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.h0 = None

    @abstractmethod
    def draw_parameters(self, draw: Draw) -> None:
        """Make all parameters, with first values."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew, from torch's own generator."""
        # A copy makes new tensors by the options of this cell. Their values are taken
        # over, so that an optimizer still has the parameters that it moves.
        twin = copy.deepcopy(self)
        twin.draw_parameters(Draw("cpu", torch.float64))
        values = twin.state_dict()
        for name, X in self.state_dict().items():
            X.copy_(values[name])

    @abstractmethod
    def state_map(self) -> Map:
        """What the recurrence does to rows of states, ready for many steps."""

    @abstractmethod
    def activate(self, z: Tensor, b: Tensor) -> Tensor:
        """The nonlinearity of rows, given the bias."""

    def recurrent_matrix(self) -> Tensor:
        """The matrix that `state_map` multiplies with."""
        state = self.first_state(1)
        eye = torch.eye(state.shape[-1], dtype=state.dtype, device=state.device)
        return self.state_map()(eye).mT

    def first_state(self, batch: int) -> Tensor:
        """(batch, n): the trained first state, or zeros."""
        if self.h0 is not None:
            return self.h0.expand(batch, -1)
        return self.weight_ih.new_zeros(batch, self.hidden_size)

    def scan(
        self,
        x: Tensor,
        first: Tensor,
        steps: Steps,
        *,
        last_only: bool = False,
        chunk: int | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """States of many steps, as rows; and the last one of each sequence."""
        with autocast_off(first.device):
            # All parameters are read here, once: a chunk is computed again in the
            # backward pass, when `functional_call` has put the old ones back.
            kernel, b, state_map = self.weight_ih, self.bias, self.state_map()

            def run(x: Tensor, h: Tensor, steps: Steps) -> Tensor:
                u, states = driven(x, kernel), []
                for u_t in u.split(steps.sizes):
                    h = self.activate(state_map(h[: u_t.shape[0]]) + u_t, b)
                    states.append(h)
                return torch.cat(states)

            if last_only and chunk is not None:
                return None, _chunked(run, x, first, steps, chunk)
            H = run(x, first, steps)
            return (None if last_only else H), steps.last(H)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.input_size}, {self.hidden_size}"


class AbstractDenseCell(AbstractComparatorCell):
    """A cell whose recurrent map is a matrix, made once for all steps.

    Attributes:
        sigma: the nonlinearity of the fast scan; or None for that of `activate`, whose
            derivative cannot be read from its value, and the loop.
    """

    sigma: Sigma | None

    @abstractmethod
    def recurrent_weight(self) -> Tensor:
        """The matrix W, (n, n)."""

    def state_map(self) -> Map:
        """The product with W."""
        W = self.recurrent_weight()
        return lambda h: h @ W.mT

    def activate(self, z: Tensor, b: Tensor) -> Tensor:
        """Only cells with another nonlinearity than those of the scan have one here."""
        raise NotImplementedError

    def scan(
        self,
        x: Tensor,
        first: Tensor,
        steps: Steps,
        *,
        last_only: bool = False,
        chunk: int | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """States of many steps, as rows; and the last one of each sequence."""
        if self.sigma is None:
            return super().scan(x, first, steps, last_only=last_only, chunk=chunk)
        with autocast_off(first.device):
            weights = Weights(self.weight_ih, self.recurrent_weight(), self.bias)
        recurrence = Recurrence(steps, self.sigma, last_only, chunk)
        return scan_field(x, weights, first, recurrence)


def _chunked(
    run: Callable[[Tensor, Tensor, Steps], Tensor],
    x: Tensor,
    h: Tensor,
    steps: Steps,
    chunk: int,
) -> Tensor:
    """The last states; each chunk is computed once more in the backward pass."""

    def last_of(x: Tensor, h: Tensor, part: Steps) -> Tensor:
        return part.last(run(x, h, part))

    ends = []
    for begin, end in steps.cut(chunk):
        rows = slice(steps.starts[begin], steps.starts[end])
        part = steps.part(begin, end)
        last = checkpoint(last_of, x[rows], h, part, use_reentrant=False)
        assert isinstance(last, Tensor)
        going_on = steps.sizes[end] if end < len(steps.sizes) else 0
        ends.append(last[going_on:])
        h = last[:going_on]
    # the longest sequences come first
    return torch.cat(ends[::-1])
