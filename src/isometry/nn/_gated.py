"""Cells of LSTM and GRU in which each gate has its own orthogonal recurrent map.

Each gate computes $T x + b$ from the input $x$, and $W h$ from the state $h$. The gates
are in torch's order. The matrices $T$ of all gates are stacked into one matrix
(gates * n, inputs), as in torch. The recurrent maps $W$ form one batch (gates, n, n) of
points of $SO(n)$.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isometry._backend import TimeSteps
from isometry._checks import check_flags
from isometry._torch import autocast_off, needs_plain_operations
from isometry.groups import SO, MapLike
from isometry.nn._as_torch import AbstractNamedCell
from isometry.nn._cell import State
from isometry.nn._scan import input_drive
from isometry.nn._sequence import Pass
from isometry.parametrizations._initial import Init
from isometry.parametrizations._register import constrain


@dataclass(frozen=True)
class Gates:
    """A kind of gated cell: everything in which an LSTM and a GRU differ.

    Attributes:
        number: how many gates there are. The candidate counts as a gate: it is `g` in
            an LSTM and `n` in a GRU.
        states: how many tensors make up a state.
        next_state: computes the next state from T x + b, W h (plus its own bias, if
            there is one) and the state.
        resets: whether a gate multiplies the candidate's W h. If so, adding a bias to
            this W h differs from adding it to T x.
        loop: torch's function that loops over time.
        layer: torch's class, `nn.LSTM` or `nn.GRU`.
    """

    number: int
    states: int
    next_state: Callable[[Tensor, Tensor, State], State]
    resets: bool
    loop: Callable[..., tuple[Tensor, ...]]
    layer: type[nn.RNNBase]


def _next_lstm_state(u: Tensor, v: Tensor, state: State) -> State:
    i, f, g, o = (u + v).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _next_gru_state(u: Tensor, v: Tensor, state: State) -> State:
    u_r, u_z, u_n = u.chunk(3, -1)
    v_r, v_z, v_n = v.chunk(3, -1)
    z = torch.sigmoid(u_z + v_z)
    n = torch.tanh(u_n + torch.sigmoid(u_r + v_r) * v_n)
    return ((1 - z) * n + z * state[0],)


class GatedCell(AbstractNamedCell):
    """One direction of one layer of `ExpLSTM` or `ExpGRU`.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of a state.
        gates: the kind of cell, an LSTM or a GRU.
        bias: whether there is a bias, with one number for each gate and feature.
        candidate_bias: whether a GRU adds a second bias to $W_n h$; needs `bias`.
        retraction: the map that computes the recurrent weights, such as "exp". This and
            the next three options are those of `isometry.constrain`.
        init: how the recurrent weights are initialized.
        rebase_every: move the base after this many optimizer steps.
        rebase_radius: move the base when an estimate of the largest angle exceeds this
            radius.
        device: device of the parameters.
        dtype: dtype of the parameters.
        generator: source of the random numbers for `init`.

    Raises:
        TypeError: if a flag is not True or False.
        ValueError: if another option has an invalid value.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        gates: Gates,
        bias: bool,
        candidate_bias: bool,
        retraction: MapLike,
        init: Init,
        rebase_every: int | None,
        rebase_radius: float | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_flags(bias=bias, candidate_bias=candidate_bias)
        if candidate_bias and not bias:
            raise ValueError(
                "`candidate_bias` must be False without `bias`; got True. Pass "
                "`bias=True`, or leave `candidate_bias` out."
            )
        self.gates = gates
        self.states = gates.states
        k, n = gates.number, hidden_size

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.weight_ih = empty(k * n, input_size)
        self.weight_hh = empty(k, n, n)
        self.bias = empty(k * n) if bias else None
        self.bias_hn = empty(n) if candidate_bias else None
        self.reset_parameters()
        # Each matrix starts at its base. If the base were the identity instead, random
        # matrices would have angles near pi. Beyond pi, exp is no longer one-to-one.
        # Near pi, the coordinates of the Cayley map are huge.
        constrain(
            self,
            "weight_hh",
            SO(n),
            retraction,
            init=init,
            generator=generator,
            rebase_every=rebase_every,
            rebase_radius=rebase_radius,
        )

    def reset_parameters(self) -> None:
        """Draw new values for all parameters, in the same way as the constructor.

        The numbers come from torch's default generator. If `isometry.fold` has
        removed the constraint, the matrices in `weight_hh` become the identity.
        """
        # The constraint, if there is one, notices this write. At the end of this method
        # it replaces the identity with the matrices that `init` asks for.
        with torch.no_grad():
            W = self.weight_hh
            W.copy_(torch.eye(self.hidden_size, device=W.device))
        size = 1 / math.sqrt(self.hidden_size)
        for parameter in (self.weight_ih, self.bias, self.bias_hn):
            if parameter is not None:
                nn.init.uniform_(parameter, -size, size)

    def scan(self, x: Tensor, first: State, run: Pass) -> tuple[Tensor | None, State]:
        """All outputs as rows (None with `last_only`), and the last states."""
        with autocast_off(x.device):
            weights = list(self.torch_weights().values())
            plain = needs_plain_operations(x, *weights, *first)
            # torch's loop does not accept class indices
            loop = self._unrolled if plain or x.ndim == 1 else self._in_torchs_loop
            H, *last = loop(x, weights, first, run.time_steps)
        return (None if run.last_only else H), tuple(last)

    def _in_torchs_loop(
        self, x: Tensor, weights: list[Tensor], state: State, time_steps: TimeSteps
    ) -> tuple[Tensor, ...]:
        first = [h[None].contiguous() for h in state]
        hx = first if len(first) > 1 else first[0]
        # These are torch's arguments has_biases, num_layers, dropout, train and
        # bidirectional. `train` must be True if a backward pass may follow.
        options = (self.bias is not None, 1, 0.0, torch.is_grad_enabled(), False)
        if time_steps.is_equal:
            x = x.unflatten(0, (len(time_steps.sizes), time_steps.batch))
            H, *last = self.gates.loop(x, hx, weights, *options, False)
            H = H.flatten(0, 1)
        else:
            sizes = torch.tensor(time_steps.sizes, device="cpu")
            H, *last = self.gates.loop(x, sizes, hx, weights, *options)
        return H, *(h[0] for h in last)

    def _unrolled(
        self, x: Tensor, weights: list[Tensor], state: State, time_steps: TimeSteps
    ) -> tuple[Tensor, ...]:
        """Compute what torch's loop computes, with ordinary operations."""
        T, W, *biases = weights
        # without `bias_hn`, the second of the `biases` is zero, so do not add it
        second = None if self.bias_hn is None else biases[1]
        u = input_drive(x, T, self.bias)
        states: list[State] = []
        for u_t in u.split(time_steps.sizes):
            state = tuple(h[: u_t.shape[0]] for h in state)
            v = state[0] @ W.mT
            v = v if second is None else v + second
            state = self.gates.next_state(u_t, v, state)
            states.append(state)
        # the outputs of all time steps and, in an LSTM, all cell states c
        parts = [torch.cat(part) for part in zip(*states, strict=True)]
        return parts[0], *(time_steps.last(part) for part in parts)

    def recurrent_matrix(self) -> Tensor:
        """The recurrent map of the first gate; the other gates have their own."""
        return self.weight_hh[0]

    def torch_biases(self, bias: Tensor) -> dict[str, Tensor]:
        """Torch's two biases; the second is zero, except for `bias_hn` in a GRU."""
        second = torch.zeros_like(bias)
        if self.bias_hn is not None:
            second = torch.cat((second[: -self.hidden_size], self.bias_hn))
        return {"bias_ih": bias, "bias_hh": second}

    def plain_state(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert a torch layer's weights to a `state_dict` of this cell.

        The bias is the sum of torch's two biases. But the two biases of a GRU's
        candidate stay apart: the second becomes `bias_hn`.

        Raises:
            ValueError: if torch's second bias for the candidate is not zero, and this
                cell has no `bias_hn`.
        """
        n = self.hidden_size
        state = super().plain_state(weights)
        state["weight_hh"] = state["weight_hh"].unflatten(0, (self.gates.number, n))
        if self.bias is None or not self.gates.resets:
            return state
        # the reset gate multiplies the candidate's second bias, so this bias cannot be
        # added to the first one
        state["bias"][-n:] = weights["bias_ih"][-n:]
        candidate = weights["bias_hh"][-n:]
        if self.bias_hn is not None:
            state["bias_hn"] = candidate
        elif candidate.any():
            raise ValueError(
                f"`candidate_bias` must be True to load a torch GRU whose candidate "
                f"has a bias inside the reset gate; got False, with a bias of up to "
                f"{float(candidate.abs().max()):.2g}. Build "
                f"`ExpGRU(..., candidate_bias=True)`."
            )
        return state


LSTM = Gates(
    number=4,
    states=2,
    next_state=_next_lstm_state,
    resets=False,
    loop=torch.lstm,
    layer=nn.LSTM,
)
GRU = Gates(
    number=3,
    states=1,
    next_state=_next_gru_state,
    resets=True,
    loop=torch.gru,
    layer=nn.GRU,
)
