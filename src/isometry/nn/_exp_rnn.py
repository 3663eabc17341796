"""The paper's recurrent network."""

from typing import Any

import torch

from isometry.nn._cell import ExpRNNCell
from isometry.nn._recurrent import AbstractRecurrent
from isometry.parametrizations._initial import Init


class ExpRNN(AbstractRecurrent):
    r"""A recurrent network with an orthogonal (or unitary) recurrent weight.

    $$ h_{t+1} = \sigma(\exp(A)\, h_t + T x_{t+1}), \qquad A^H = -A. $$

    Called as `torch.nn.RNN`, with the same arguments and shapes, but not the same
    network: a layer has one bias vector, its parameters are in `cells` under other
    names, and the default nonlinearity is modReLU. Unlike tanh it has no bound, so
    states grow with the number of inputs that they have seen, and losses start larger;
    `nonlinearity="tanh"` is what `nn.RNN` has.

    The weight itself neither shrinks nor enlarges gradients through time, and any
    optimizer of torch keeps it orthogonal: give its coordinates a smaller rate by
    `isometry.param_groups`.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        num_layers: each reads the outputs of the one before.
        nonlinearity: "modrelu", "tanh", "relu" or "identity".
        bias: whether there is one vector of it a layer; for modReLU it is $b$.
        batch_first: whether the batch comes before time.
        dropout: probability, between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        device: of the parameters.
        dtype: of the parameters, real; with `unitary` they are the complex of it.
        unitary: whether the weight is unitary, and the states complex.
        orthogonal_map: "exp", "cayley" or "pade-m", as in `isometry.orthogonal`.
        init: of the recurrent weight: "henaff" (the paper's copying task and TIMIT),
            "cayley" (its MNIST), or as in `isometry.orthogonal`.
        rebase_every: move the base of the trivialization after as many steps.
        rebase_radius: move it when the angles of $A$ exceed it. With neither, the base
            is the identity, as in the paper.
        train_h0: whether the first state is a parameter, which starts at zero.
        last_only: give the last output alone, on a time axis of length 1; of two
            directions, the states that have seen all.
        chunk: with `last_only`, keep one state in so many for the backward pass, and
            compute the others again: for long sequences.
        generator: source of the numbers of `init`.

    References:
        [LM19]; [Lez19] for a moving base.
    """

    def __init__(  # noqa: PLR0917 - the order is torch's
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "modrelu",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        unitary: bool = False,
        orthogonal_map: str = "exp",
        init: Init = "henaff",
        rebase_every: int | None = None,
        rebase_radius: float | None = None,
        train_h0: bool = False,
        last_only: bool = False,
        chunk: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "bias": bias,
            "nonlinearity": nonlinearity,
            "device": device,
            "dtype": dtype,
            "unitary": unitary,
            "orthogonal_map": orthogonal_map,
            "init": init,
            "rebase_every": rebase_every,
            "rebase_radius": rebase_radius,
            "train_h0": train_h0,
            "generator": generator,
        }
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            lambda size: ExpRNNCell(size, hidden_size, **options),
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            last_only=last_only,
            chunk=chunk,
        )
        # as torch's layers do
        self.bias, self.nonlinearity = bias, nonlinearity
