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
from isometry._torch import autocast_off
from isometry.groups import SO, AbstractRetraction
from isometry.nn._recurrent import AbstractCell, AbstractRecurrent, check_sizes
from isometry.nn._scan import driven, needs_plain_operations
from isometry.nn._sequence import Steps
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
        retraction: like `orthogonal_map` in `isometry.orthogonal`.
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
        retraction: str | AbstractRetraction,
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
            *(self, "weight_hh", SO(n), retraction),
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


def _lstm_step(u: Tensor, v: Tensor, state: State) -> State:
    i, f, g, o = (u + v).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


LSTM = Gates(4, 2, _lstm_step, torch.lstm)


class ExpLSTM(AbstractGated):
    r"""A long short-term memory whose four recurrent maps are orthogonal.

    $$ \begin{aligned}
       i, f, o &= \operatorname{sigmoid}(W_\bullet h + T_\bullet x + b_\bullet), \qquad
       g = \tanh(W_g h + T_g x + b_g), \\
       c' &= f c + i g, \qquad h' = o \tanh c', \qquad
       W_i, W_f, W_g, W_o \in SO(n).
    \end{aligned} $$

    Called as `torch.nn.LSTM`, with the same shapes, and one bias vector a layer instead
    of two. All four maps are orthogonal, each by itself: in one step a gradient goes
    from $h'$ to $h$ through one of them, so that whatever is learnt

    $$ \lVert \partial h' / \partial h \rVert
       \le \tfrac{3}{2} + \tfrac{1}{4} \max_j |c_j|. $$

    A gate with a free map has no such bound, and lets gradients explode through it. The
    way along $c$ has no matrix. That gated cells gain by this is a conjecture of
    [LM19], not a result.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        num_layers: each reads the outputs of the one before.
        bias: whether there is one vector of it for each gate.
        batch_first: whether the batch comes before time.
        dropout: probability, between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        proj_size: only 0: a projected output is not what orthogonal maps return.
        device: of the parameters.
        dtype: of the parameters.
        retraction: "exp", "cayley" or "pade-m", or a map, like `orthogonal_map` in
            `isometry.orthogonal`.
        init: of the recurrent maps, as there; Haar, as is usual for gated cells.
        rebase_every: move the base of the trivializations after as many steps.
        rebase_radius: move it when the angles exceed it. With neither, the base stays
            where the maps start.
        generator: source of the numbers of `init`.

    Raises:
        ValueError: if an option does not fit.

    References:
        [LM19] section 5.2, where it is left for future research.
    """

    def __init__(  # noqa: PLR0917 - the order is torch's
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        retraction: str | AbstractRetraction = "exp",
        init: Init = "haar",
        rebase_every: int | None = None,
        rebase_radius: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if proj_size != 0:
            raise ValueError(
                f"`proj_size` must be 0; got {proj_size}. A recurrent map from a "
                f"projected output is not square; project the outputs of the layer."
            )
        super().__init__(
            *(LSTM, input_size, hidden_size, num_layers),
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
            dtype=dtype,
            retraction=retraction,
            init=init,
            rebase_every=rebase_every,
            rebase_radius=rebase_radius,
            generator=generator,
        )


def _gru_step(u: Tensor, v: Tensor, state: State) -> State:
    (u_r, u_z, u_n), (v_r, v_z, v_n) = u.chunk(3, -1), v.chunk(3, -1)
    z = torch.sigmoid(u_z + v_z)
    n = torch.tanh(u_n + torch.sigmoid(u_r + v_r) * v_n)
    return ((1 - z) * n + z * state[0],)


GRU = Gates(3, 1, _gru_step, torch.gru)


class ExpGRU(AbstractGated):
    r"""A gated recurrent unit whose three recurrent maps are orthogonal.

    $$ \begin{aligned}
       r, z &= \operatorname{sigmoid}(W_\bullet h + T_\bullet x + b_\bullet), \qquad
       n = \tanh(T_n x + b_n + r\, W_n h), \\
       h' &= (1 - z)\, n + z h, \qquad W_r, W_z, W_n \in SO(n).
    \end{aligned} $$

    Called as `torch.nn.GRU`, with the same shapes, and one bias vector a layer instead
    of two. All three maps are orthogonal, each by itself, as in `ExpLSTM`: whatever is
    learnt, and as long as $|h_j| \le 1$, as it is from zero on,

    $$ \lVert \partial h' / \partial h \rVert
       \le 2 + \tfrac{1}{4} \max_j |(W_n h)_j|. $$

    That gated cells gain by this is a conjecture of [LM19], not a result.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        num_layers: each reads the outputs of the one before.
        bias: whether there is one vector of it for each gate.
        batch_first: whether the batch comes before time.
        dropout: probability, between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        device: of the parameters.
        dtype: of the parameters.
        retraction: "exp", "cayley" or "pade-m", or a map, like `orthogonal_map` in
            `isometry.orthogonal`.
        init: of the recurrent maps, as there; Haar, as is usual for gated cells.
        rebase_every: move the base of the trivializations after as many steps.
        rebase_radius: move it when the angles exceed it. With neither, the base stays
            where the maps start.
        generator: source of the numbers of `init`.

    Raises:
        ValueError: if an option does not fit.

    References:
        [LM19] section 5.2, where it is left for future research.
    """

    def __init__(  # noqa: PLR0917 - the order is torch's
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        retraction: str | AbstractRetraction = "exp",
        init: Init = "haar",
        rebase_every: int | None = None,
        rebase_radius: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            *(GRU, input_size, hidden_size, num_layers),
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
            dtype=dtype,
            retraction=retraction,
            init=init,
            rebase_every=rebase_every,
            rebase_radius=rebase_radius,
            generator=generator,
        )
