"""Base classes for the comparators, which are networks of other authors.

We compare `ExpRNN` with them. The class `Draw` creates the parameters of their cells.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isometry._backend import TimeSteps
from isometry._backend.nonlinearities import Sigma
from isometry._orthonormal import identity
from isometry._torch import autocast_off, transforms
from isometry.nn._cell import AbstractCell, State
from isometry.nn._recurrent import AbstractRecurrent, forget_factory_options
from isometry.nn._scan import Weights, input_drive, scan
from isometry.nn._sequence import Pass
from isometry.parametrizations._fold import fold
from isometry.parametrizations._holder import holders_of


@dataclass(frozen=True)
class Draw:
    """Creates the parameters of a cell, one by one.

    All numbers are drawn in double precision on the CPU, so that the same generator
    gives the same network, up to rounding, in every precision and on every device.

    Args:
        device: device of the parameters.
        dtype: dtype of real parameters, and of the real and imaginary parts of complex
            parameters.
        generator: source of the random numbers.
    """

    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    generator: torch.Generator | None = None

    def uniform(self, *shape: int, bound: float) -> nn.Parameter:
        """A parameter drawn uniformly between -`bound` and `bound`."""
        X = torch.empty(shape, dtype=torch.float64, device="cpu")
        return self.parameter(X.uniform_(-bound, bound, generator=self.generator))

    def complex_uniform(self, *shape: int, bound: float) -> nn.Parameter:
        """A complex parameter; both parts are uniform between -`bound` and `bound`."""
        X = torch.empty(*shape, 2, dtype=torch.float64, device="cpu")
        X.uniform_(-bound, bound, generator=self.generator)
        return self.parameter(torch.view_as_complex(X))

    def input_weight(self, n: int, inputs: int) -> nn.Parameter:
        """An input weight (n, inputs), drawn by Glorot's rule."""
        return self.uniform(n, inputs, bound=glorot(inputs, n))

    def complex_input_weight(self, n: int, inputs: int) -> nn.Parameter:
        """A complex input weight, with Glorot's bound for a real weight of 2n rows."""
        return self.complex_uniform(n, inputs, bound=glorot(inputs, 2 * n))

    def normal(self, *shape: int, std: float) -> nn.Parameter:
        """A normally distributed parameter with mean 0 and standard deviation `std`."""
        X = torch.empty(shape, dtype=torch.float64, device="cpu")
        return self.parameter(X.normal_(std=std, generator=self.generator))

    def zeros(self, *shape: int) -> nn.Parameter:
        """A parameter of zeros."""
        return self.parameter(torch.zeros(shape, device="cpu"))

    def parameter(self, X: Tensor) -> nn.Parameter:
        """A parameter with the values of `X`."""
        real = self.dtype or torch.get_default_dtype()
        dtype = real.to_complex() if X.is_complex() else real
        device = self.device or torch.get_default_device()
        return nn.Parameter(X.to(device=device, dtype=dtype, copy=True))


def glorot(fan_in: int, fan_out: int) -> float:
    """The number b such that Glorot's rule draws uniformly between -b and b."""
    return math.sqrt(6 / (fan_in + fan_out))


# a linear function, applied to each row; a row is one state
LinearFunction = Callable[[Tensor], Tensor]
# a nonlinearity, as a function of rows and the bias of the cell
Activation = Callable[[Tensor, Tensor], Tensor]


def check_epsilon(epsilon: float) -> None:
    """Raise unless `epsilon` is 0, or positive, finite and not subnormal in float32."""
    smallest = torch.finfo(torch.float32).tiny
    if epsilon != 0 and not smallest <= epsilon < math.inf:
        raise ValueError(
            f"`epsilon` must be 0, or finite and at least {smallest:.1e}; got "
            f"{epsilon}. The authors use 1e-5; 0 gives the exact modReLU."
        )


def smooth_sigma(epsilon: float) -> Sigma:
    """The smooth modReLU with this epsilon; with 0 it is modReLU itself.

    Raises:
        ValueError: if `epsilon` does not satisfy `check_epsilon`.
    """
    check_epsilon(epsilon)
    return Sigma("smooth_modrelu" if epsilon else "complex_modrelu", epsilon)


class AbstractComparatorCell(AbstractCell):
    """A cell with an input weight, a recurrent map, and one bias vector.

    The constructor of a subclass takes the sizes, a `Draw`, and the options of the
    cell. It checks and stores the options, and calls `draw_parameters` at the end.

    Attributes:
        bias: one number for each feature.
    """

    bias: nn.Parameter

    @abstractmethod
    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters and buffers, with their initial values."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new values for all parameters and buffers, as the constructor does.

        The numbers come from torch's default generator.
        """
        # An optimizer may hold the parameters of this cell, so they must stay the same
        # objects. Draw new parameters in a copy, and copy their values. The copy is
        # folded, because a parameter cannot take the place of a constrained weight.
        twin = fold(copy.deepcopy(self))
        twin.draw_parameters(Draw("cpu", torch.float64))
        values = twin.state_dict()
        for name, X in self.state_dict().items():
            if name in values:
                X.copy_(values[name])
        # In this method, a constrained weight can be written like a plain parameter
        # (see `_reset_parameters` in parametrizations/_owner.py). Afterwards it becomes
        # the nearest point on its manifold, or starts where its `init` says.
        for name in holders_of(self):
            getattr(self, name).copy_(values[name])


class AbstractLoopCell(AbstractComparatorCell):
    """A cell whose `scan` is a loop over time, which autograd differentiates.

    Attributes:
        sigma: the nonlinearity.
    """

    sigma: Activation

    @abstractmethod
    def state_map(self) -> LinearFunction:
        """The recurrent linear map, as a function of rows of states."""

    def recurrent_matrix(self) -> Tensor:
        """The matrix of `state_map`."""
        (state,) = self.first_state(1)
        with autocast_off(state.device):
            return self.state_map()(identity(state)).mT

    def scan(self, x: Tensor, first: State, run: Pass) -> tuple[Tensor | None, State]:
        """All states as rows (None with `last_only`), and the last of each sequence."""
        (h,) = first
        time_steps, last_only, chunk = run
        with autocast_off(h.device):
            # Read all parameters here, not in `states_of`. With a `chunk`, the backward
            # pass calls `states_of` again, and there a read could give other tensors:
            # `functional_call` replaces the parameters only during the forward pass.
            T, b = self.weight_ih, self.bias
            state_map = self.state_map()

            def states_of(x: Tensor, h: Tensor, part: TimeSteps) -> tuple[Tensor, ...]:
                states = []
                for u_t in input_drive(x, T).split(part.sizes):
                    h = self.sigma(state_map(h[: u_t.shape[0]]) + u_t, b)
                    states.append(h)
                H = torch.cat(states)
                return H, part.last(H)

            if not last_only or chunk is None or not _can_recompute():
                H, last = states_of(x, h, time_steps)
                return (None if last_only else H), (last,)
            ends: list[Tensor] = []
            for part, rows in time_steps.cut(chunk):
                # the sequences from index `part.batch` on have ended before this chunk
                ends.append(h[part.batch :])
                args = x[rows], h[: part.batch], part
                # The last states may be a view of all states of the chunk. Keep only a
                # copy, so that the memory of all these states can be freed at once.
                h = checkpoint(states_of, *args, use_reentrant=False)[1].clone()
            # Sequences are sorted by length, the longest first. `ends` begins with the
            # shortest sequences, so its parts follow `h` in reverse order.
            return None, (torch.cat([h, *ends[::-1]]),)


class AbstractDenseCell(AbstractComparatorCell):
    """A cell whose recurrent map is a matrix, computed once for all time steps.

    It runs over time with the function `scan` of `ExpRNN`.

    Attributes:
        sigma: the nonlinearity, in the form that `scan` takes.
    """

    sigma: Sigma

    def scan(self, x: Tensor, first: State, run: Pass) -> tuple[Tensor | None, State]:
        """All states as rows (None with `last_only`), and the last of each sequence."""
        with autocast_off(x.device):
            W = self.recurrent_matrix()
        weights = Weights(self.weight_ih, W, self.bias, self.sigma)
        H, last = scan(x, weights, first[0], run)
        return H, (last,)


@forget_factory_options
@dataclass(eq=False, repr=False)
class AbstractComparator(AbstractRecurrent):
    """A network of other authors, to compare with `ExpRNN`, made of layers of cells.

    Each subclass is a dataclass, and adds the options of its network.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        batch_first: whether the batch comes before time.
        dropout: probability of dropout between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        last_only: whether to return only the last output, as in `ExpRNN`.
        chunk: with `last_only`, the last layer stores only every `chunk`-th state, and
            the backward pass recomputes the others.
        device: device of the parameters.
        dtype: dtype of real parameters, and of the real and imaginary parts of complex
            parameters.
        generator: source of the random numbers for the initial values.
    """

    input_size: int
    hidden_size: int
    num_layers: int = 1
    _: KW_ONLY
    last_only: bool = False
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    chunk: int | None = None
    device: InitVar[torch.device | str | None] = None
    dtype: InitVar[torch.dtype | None] = None
    generator: InitVar[torch.Generator | None] = None


def _can_recompute() -> bool:
    """Whether a backward pass can compute states again instead of reading saved ones.

    It cannot if a transform of torch.func is active: `grad` refuses the hooks on saved
    tensors that `checkpoint` needs, and a backward pass outside of `vmap` cannot repeat
    what happened inside. But while a program is compiled, the answer is always True,
    because a compiler makes `checkpoint` a part of its graph.
    """
    return torch.compiler.is_compiling() or not transforms()
