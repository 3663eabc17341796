"""Gated cells whose recurrent maps are orthogonal, each of them.

Gates are stacked: $T$ is (gates * n, inputs) as in torch, and the recurrent maps are
one batch (gates, n, n) of points of $SO(n)$.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isometry._checks import check_flags
from isometry.groups import SO, AbstractRetraction
from isometry.linalg._precision import autocast_off
from isometry.nn._cell import AbstractCell, check_sizes
from isometry.nn._pairs import driven
from isometry.nn._recurrent import AbstractRecurrent
from isometry.nn._scan import needs_plain_operations
from isometry.nn._steps import Steps
from isometry.parametrizations._initial import Init
from isometry.parametrizations._register import constrain

# the output first
State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Gates:
    """What a cell does with its products.

    Attributes:
        number: of gates, the candidate among them.
        states: how many tensors a state is.
        step: of T x + b, of W h and of the state, the next state.
        loop: torch's own loop over time, the one of its module.
    """

    number: int
    states: int
    step: Callable[[Tensor, Tensor, State], State]
    loop: Callable[..., tuple[Tensor, ...]]


class GatedCell(AbstractCell):
    """One layer and direction of `ExpLSTM` or `ExpGRU`.

    Args:
        input_size: features of the input.
        hidden_size: features of a state.
        gates: the kind of cell.
        bias: whether there is a vector of it, one for each gate.
        device: of the parameters.
        dtype: of the parameters.
        orthogonal_map: as in `isometry.orthogonal`.
        init: of the recurrent maps, as there.
        rebase_every: move the base after as many steps.
        rebase_radius: move it when the angles exceed it.
        generator: source of the numbers of `init`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gates: Gates,
        *,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        orthogonal_map: str | AbstractRetraction,
        init: Init,
        rebase_every: int | None,
        rebase_radius: float | None,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        check_sizes(input_size, hidden_size)
        check_flags(bias=bias)
        self.input_size, self.hidden_size, self.gates = input_size, hidden_size, gates
        k, n = gates.number, hidden_size
        where: Any = {"device": device, "dtype": dtype}
        self.weight_ih = nn.Parameter(torch.empty(k * n, input_size, **where))
        self.weight_hh = nn.Parameter(torch.empty(k, n, n, **where))
        self.bias = nn.Parameter(torch.empty(k * n, **where)) if bias else None
        self.reset_parameters()
        # the base is where the maps start: around the identity, random ones have
        # coordinates near the border of exp, and huge ones of Cayley
        constrain(
            *(self, "weight_hh", SO(n), orthogonal_map),
            init=init,
            generator=generator,
            rebase_every=rebase_every,
            rebase_radius=rebase_radius,
        )

    def reset_parameters(self) -> None:
        """Draw all parameters anew: the recurrent maps by `init`, as at the start.

        The numbers come from torch's own generator. Folded maps become the identity.
        """
        # a write is what makes the constraint draw the maps again
        with torch.no_grad():
            W = self.weight_hh
            W.copy_(torch.eye(self.hidden_size, device=W.device))
        size = 1 / math.sqrt(self.hidden_size)
        for parameter in (self.weight_ih, self.bias):
            if parameter is not None:
                nn.init.uniform_(parameter, -size, size)

    def first_state(self, batch: int) -> Any:
        """Zeros."""
        zeros = self.weight_ih.new_zeros(batch, self.hidden_size)
        return zeros if self.gates.states == 1 else (zeros,) * self.gates.states

    def scan(
        self,
        x: Tensor,
        first: Any,
        steps: Steps,
        *,
        last_only: bool = False,
        chunk: int | None = None,  # noqa: ARG002 - torch's loop has no such option
    ) -> tuple[Tensor | None, Any]:
        """Outputs of many steps, as rows; and the last state of each sequence."""
        state = first if isinstance(first, tuple) else (first,)
        with autocast_off(x.device):
            W = self.weight_hh.flatten(0, 1)
            plain = needs_plain_operations(x, self.weight_ih, W, self.bias, *state)
            # class indices select columns of T, which torch's loop does not do
            run = self._unrolled if plain or x.ndim == 1 else self._in_torchs_loop
            H, *last = run(x, W, state, steps)
        return (None if last_only else H), (last[0] if len(last) == 1 else tuple(last))

    def _in_torchs_loop(
        self, x: Tensor, W: Tensor, state: State, steps: Steps
    ) -> tuple[Tensor, ...]:
        weights = [self.weight_ih, W]
        if self.bias is not None:
            # torch has two, which it adds
            weights += [self.bias, torch.zeros_like(self.bias)]
        first = [h[None].contiguous() for h in state]
        hx = first if len(first) > 1 else first[0]
        # one layer, no dropout, and room for a backward pass if there may be one
        options = (self.bias is not None, 1, 0.0, torch.is_grad_enabled(), False)
        if steps.is_equal:
            x = x.unflatten(0, (len(steps.sizes), steps.batch))
            H, *last = self.gates.loop(x, hx, weights, *options, False)
            H = H.flatten(0, 1)
        else:
            sizes = torch.tensor(steps.sizes, device="cpu")
            H, *last = self.gates.loop(x, sizes, hx, weights, *options)
        return H, *(h[0] for h in last)

    def _unrolled(
        self, x: Tensor, W: Tensor, state: State, steps: Steps
    ) -> tuple[Tensor, ...]:
        """What torch's loop does, in ordinary operations."""
        u = driven(x, self.weight_ih, self.bias)
        states: list[State] = []
        for u_t in u.split(steps.sizes):
            state = tuple(h[: u_t.shape[0]] for h in state)
            state = self.gates.step(u_t, state[0] @ W.mT, state)
            states.append(state)
        every = [torch.cat(part) for part in zip(*states, strict=True)]
        return every[0], *(steps.last(part) for part in every)

    def recurrent_matrix(self) -> Tensor:
        """The recurrent map of the first gate."""
        return self.weight_hh[0]

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.input_size}, {self.hidden_size}"


class AbstractGated(AbstractRecurrent):
    """Layers of gated cells, called as the module of torch that has these gates.

    Args:
        gates: the kind of cell.
        input_size: features of the input.
        hidden_size: features of the state.
        num_layers: each reads the outputs of the one before.
        bias: whether there is one vector of it for each gate.
        batch_first: whether the batch comes before time.
        dropout: probability, between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        **cell: the other options of `GatedCell`.
    """

    def __init__(
        self,
        gates: Gates,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        **cell: Any,
    ) -> None:
        super().__init__(
            *(input_size, hidden_size, num_layers),
            lambda size: GatedCell(size, hidden_size, gates, bias=bias, **cell),
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        # as torch's layers do
        self.bias = bias
