"""The base class for cells of recurrent networks, and checks of their arguments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from isometry._declare import declared_parameters, points
from isometry._dtypes import HALF, PRECISIONS
from isometry._torch import is_fake, is_wrapper
from isometry.groups import AbstractManifold
from isometry.nn._sequence import Pass
from isometry.parametrizations._constraint import rounding_bound

# the tensors (batch, n) that make up a state; the first one is the output
State = tuple[Tensor, ...]

# the nonlinearities that a user can choose
Nonlinearity = Literal["modrelu", "tanh", "relu", "identity"]


class AbstractCell(nn.Module, ABC):
    """One direction of one layer of an `AbstractRecurrent` network.

    Attributes:
        input_size: number of features of an input.
        hidden_size: number of features of a state.
        weight_ih: the input weight.
        h0: the learned initial state, or None.
        states: how many tensors make up a state.
        redundant: maps the name of a parameter to how many of its real numbers have no
            effect. `count_parameters` leaves these numbers out.
    """

    input_size: int
    hidden_size: int
    weight_ih: nn.Parameter
    h0: nn.Parameter | None
    states: int = 1
    redundant: Mapping[str, int] = MappingProxyType({})

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        check_sizes(input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.h0 = None

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draw new values for all parameters, from torch's default generator."""

    def first_state(self, batch: int) -> State:
        """The state before the first time step: zeros, or the parameter `h0`."""
        if self.h0 is not None:
            return (self.h0.expand(batch, -1),)
        return (self.weight_ih.new_zeros(batch, self.hidden_size),) * self.states

    @abstractmethod
    def scan(self, x: Tensor, first: State, run: Pass) -> tuple[Tensor | None, State]:
        """Run the cell over all time steps.

        Args:
            x: inputs of all time steps, as rows.
            first: the initial state.
            run: the time steps, what to return, and what to save for the backward pass.

        Returns:
            The outputs of all time steps as rows, or None with `last_only`; and the
            last state of each sequence.
        """

    @abstractmethod
    def recurrent_matrix(self) -> Tensor:
        """The matrix (n, n) that multiplies the state.

        A gated cell has several such matrices, and returns the first. Gradients flow
        through the result to the parameters of the cell.
        """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        before = {key: p.dtype for key, p, _ in declared_parameters(self)}
        super()._apply(partial(_in_same_field, fn), recurse)
        for key, p, manifold in declared_parameters(self):
            _polish(points(p.detach(), manifold), manifold, before[key])
        return self

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.input_size}, {self.hidden_size}"


def _in_same_field(fn: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """Convert `X` by `fn`, for example to double; a complex `X` stays complex.

    A real `X` stays real. Torch's `Module.double` leaves complex tensors alone, and
    `Module.to` with a dtype makes all tensors real, or all complex. Neither method fits
    a cell, which may have real and complex tensors of the same precision.

    Raises:
        TypeError: if `X` is complex, and `fn` converts to half precision.
    """
    if not (X.is_floating_point() or X.is_complex()):
        return fn(X)

    def converted(dtype: torch.dtype) -> torch.dtype:
        return fn(torch.empty(0, dtype=dtype, device=X.device)).dtype

    precision = converted(X.dtype.to_real()).to_real()
    if X.is_complex() and precision not in PRECISIONS:
        raise TypeError(
            f"`dtype` must be torch.float32 or torch.float64 for a layer with complex "
            f"parameters; got {precision}. Leave this layer as it is, and call it "
            f"inside `torch.autocast`, which converts its input."
        )
    # convert `X` itself if possible: `fn` may work in place, as `share_memory_` does
    if converted(X.dtype) == (precision.to_complex() if X.is_complex() else precision):
        return fn(X)
    if X.is_complex():
        return torch.complex(fn(X.real).real, fn(X.imag).real)
    return fn(X).real.clone()


def _polish(Q: Tensor, manifold: AbstractManifold, before: torch.dtype) -> None:
    """Remove the rounding errors of a point that was cast from `before` to its dtype.

    `Q` does not change if its dtype is not wider than `before`, if it is a fake tensor
    or a wrapper, or if its defect is too large for a point rounded to `before`.
    """
    wider = torch.finfo(Q.dtype).eps < torch.finfo(before).eps
    if not wider or is_fake(Q) or is_wrapper(Q):
        return
    if manifold.worst_defect(Q) <= rounding_bound(manifold, before):
        # A defect of half precision is too large for `polish`. Each call of `polish`
        # squares the defect, so single to double precision takes two calls.
        P = manifold.nearest(Q) if before in HALF else Q
        Q.copy_(manifold.polish(manifold.polish(P)))


def is_positive(size: Any) -> bool:
    """Whether `size` is a positive integer; a bool does not count as one."""
    return isinstance(size, int) and not isinstance(size, bool) and size > 0


def check_sizes(**sizes: int) -> None:
    """Raise unless all sizes are positive integers; keywords are the argument names."""
    for name, size in sizes.items():
        if not is_positive(size):
            raise ValueError(f"`{name}` must be a positive integer; got {size!r}.")


def check_choice(name: str, value: Any, known: Collection[str], remedy: str) -> None:
    """Raise unless `value` is one of the names in `known`."""
    if value not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(f"`{name}` must be one of {names}; got {value!r}. {remedy}")


class FactoryOptions(TypedDict):
    """The options with which the parameters of a cell are created.

    `generator` is the source of the random numbers for their initial values.
    """

    device: torch.device | str | None
    dtype: torch.dtype | None
    generator: torch.Generator | None
