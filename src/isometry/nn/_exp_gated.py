"""LSTM and GRU with orthogonal recurrent maps."""

import torch
from torch import Tensor

from isometry.groups import AbstractRetraction
from isometry.nn._gated import AbstractGated, Gates, State
from isometry.parametrizations._initial import Init


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
        orthogonal_map: "exp", "cayley" or "pade-m", or a map, as in
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
        orthogonal_map: str | AbstractRetraction = "exp",
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
            orthogonal_map=orthogonal_map,
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
        orthogonal_map: "exp", "cayley" or "pade-m", or a map, as in
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
        orthogonal_map: str | AbstractRetraction = "exp",
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
            orthogonal_map=orthogonal_map,
            init=init,
            rebase_every=rebase_every,
            rebase_radius=rebase_radius,
            generator=generator,
        )
