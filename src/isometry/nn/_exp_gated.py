"""`ExpLSTM` and `ExpGRU`, gated networks with orthogonal recurrent maps."""

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import ClassVar

import torch
from torch import nn

from isometry.groups import MapLike
from isometry.nn._as_torch import AbstractNamedRecurrent
from isometry.nn._cell import FactoryOptions
from isometry.nn._gated import GRU, LSTM, GatedCell, Gates
from isometry.nn._recurrent import forget_factory_options
from isometry.parametrizations._initial import Init


class AbstractGated(AbstractNamedRecurrent):
    """Base class of `ExpLSTM` and `ExpGRU`, which document the options.

    Attributes:
        gates: the kind of cell, an LSTM or a GRU.
        candidate_bias: whether the candidate of a GRU has a second bias; always False
            in an LSTM.
        retraction: the map that computes the recurrent weights, such as "exp".
        init: how the recurrent weights are initialized.
        rebase_every: after how many optimizer steps the base moves.
        rebase_radius: the largest angle, as estimated, beyond which the base moves.
    """

    gates: ClassVar[Gates]
    candidate_bias: bool = False
    retraction: MapLike
    init: Init
    rebase_every: int | None
    rebase_radius: float | None

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> GatedCell:
        return GatedCell(
            inputs,
            self.hidden_size,
            gates=self.gates,
            bias=self.bias,
            candidate_bias=self.candidate_bias,
            retraction=self.retraction,
            init=self.init,
            rebase_every=self.rebase_every,
            rebase_radius=self.rebase_radius,
            **factory,
        )

    def torch_class(self) -> Callable[..., nn.RNNBase]:
        """`nn.LSTM` or `nn.GRU`."""
        return self.gates.layer


@forget_factory_options
@dataclass(eq=False, repr=False)
class ExpLSTM(AbstractGated):
    r"""A long short-term memory whose four recurrent maps are orthogonal.

    $$ \begin{aligned}
       i, f, o &= \operatorname{sigmoid}(W_\bullet h + T_\bullet x + b_\bullet), \qquad
       g = \tanh(W_g h + T_g x + b_g), \\
       c' &= f c + i g, \qquad h' = o \tanh c', \qquad
       W_i, W_f, W_g, W_o \in SO(n).
    \end{aligned} $$

    It is called like `torch.nn.LSTM`, with the same shapes, gate order and weight names
    (`weight_hh_l0` and so on, read-only). A cell has one bias vector: torch has two,
    but only their sum matters. `isometry.load_foreign` loads checkpoints from
    `nn.LSTM`, and replaces each gate's recurrent map with the nearest rotation.
    `to_torch` returns an `nn.LSTM`.

    Each of the four maps is an orthogonal matrix. In one time step, every path of a
    gradient from $h'$ to $h$ goes through exactly one of them, so for any values of the
    parameters,

    $$ \lVert \partial h' / \partial h \rVert
       \le \tfrac{3}{2} + \tfrac{1}{4} \max_j |c_j|. $$

    A gate with an unconstrained map has no such bound, and gradients can explode
    through it. The path from $c'$ to $c$ goes through no matrix. [LM19] only
    conjectures that gated cells benefit from orthogonal maps.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        bias: whether a cell has a bias, with one number for each gate and feature.
        batch_first: whether the batch comes before time.
        dropout: probability of dropout between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        proj_size: must be 0. A recurrent map from a projected output would not be
            square.
        device: device of the parameters.
        dtype: dtype of the parameters.
        retraction: "exp", "cayley", "pade-m" with a degree m, or a map object, as in
            `isometry.orthogonal`.
        init: how the recurrent maps are initialized, as in `isometry.orthogonal`.
            "haar" is usual for gated cells.
        rebase_every: move the base to the weight after this many optimizer steps.
        rebase_radius: move the base when an estimate of the largest angle of the
            coordinates exceeds this radius. If both `rebase_every` and `rebase_radius`
            are None, the base stays at the initial maps.
        last_only: whether to return only the last output, on a time axis of length 1.
            With two directions, it contains the final state of each direction.
        generator: source of the random numbers for `init`.

    Raises:
        TypeError: if a flag is not True or False.
        ValueError: if another option has an invalid value.

    References:
        [LM19] section 5.2, which leaves this network for future research.
    """

    gates = LSTM
    mode = "LSTM"
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    proj_size: int = 0
    device: InitVar[torch.device | str | None] = None
    dtype: InitVar[torch.dtype | None] = None
    _: KW_ONLY
    last_only: bool = False
    retraction: MapLike = "exp"
    init: Init = "haar"
    rebase_every: int | None = None
    rebase_radius: float | None = None
    generator: InitVar[torch.Generator | None] = None

    def _check_options(self) -> None:
        super()._check_options()
        if self.proj_size != 0:
            raise ValueError(
                f"`proj_size` must be 0; got {self.proj_size}. A recurrent map from a "
                f"projected output is not square; project the outputs of the layer."
            )


@forget_factory_options
@dataclass(eq=False, repr=False)
class ExpGRU(AbstractGated):
    r"""A gated recurrent unit whose three recurrent maps are orthogonal.

    $$ \begin{aligned}
       r, z &= \operatorname{sigmoid}(W_\bullet h + T_\bullet x + b_\bullet), \qquad
       n = \tanh(T_n x + b_n + r\, (W_n h + b_{hn})), \\
       h' &= (1 - z)\, n + z h, \qquad W_r, W_z, W_n \in SO(d),
    \end{aligned} $$

    where $n$ is the candidate, as in torch's equations, and $d$ is the hidden size.

    It is called like `torch.nn.GRU`, with the same shapes, gate order and weight names
    (`weight_hh_l0` and so on, read-only). A cell has one bias vector, and $b_{hn} = 0$
    without `candidate_bias`. `isometry.load_foreign` loads checkpoints from
    `nn.GRU`, and replaces each gate's recurrent map with the nearest rotation. Such
    checkpoints usually need `candidate_bias`. `to_torch` returns an `nn.GRU`.

    Each of the three maps is an orthogonal matrix, as in `ExpLSTM`. For any values of
    the parameters, as long as all $|h_j| \le 1$ (which holds if the initial state is
    zero),

    $$ \lVert \partial h' / \partial h \rVert
       \le 2 + \tfrac{1}{4} \max_j |(W_n h + b_{hn})_j|. $$

    [LM19] only conjectures that gated cells benefit from orthogonal maps.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        bias: whether a cell has a bias, with one number for each gate and feature.
        batch_first: whether the batch comes before time.
        dropout: probability of dropout between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        device: device of the parameters.
        dtype: dtype of the parameters.
        candidate_bias: whether there is also a bias $b_{hn}$, which the reset gate
            multiplies, as in torch. It needs `bias`.
        retraction: "exp", "cayley", "pade-m" with a degree m, or a map object, as in
            `isometry.orthogonal`.
        init: how the recurrent maps are initialized, as in `isometry.orthogonal`.
            "haar" is usual for gated cells.
        rebase_every: move the base to the weight after this many optimizer steps.
        rebase_radius: move the base when an estimate of the largest angle of the
            coordinates exceeds this radius. If both `rebase_every` and `rebase_radius`
            are None, the base stays at the initial maps.
        last_only: whether to return only the last output, on a time axis of length 1.
            With two directions, it contains the final state of each direction.
        generator: source of the random numbers for `init`.

    Raises:
        TypeError: if a flag is not True or False.
        ValueError: if another option has an invalid value.

    References:
        [LM19] section 5.2, which leaves this network for future research.
    """

    gates = GRU
    mode = "GRU"
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    device: InitVar[torch.device | str | None] = None
    dtype: InitVar[torch.dtype | None] = None
    _: KW_ONLY
    last_only: bool = False
    retraction: MapLike = "exp"
    init: Init = "haar"
    rebase_every: int | None = None
    rebase_radius: float | None = None
    candidate_bias: bool = False
    generator: InitVar[torch.Generator | None] = None
