"""A recurrent network with an output layer: what a task trains."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import PackedSequence

from isometry.nn._draw import Draw
from isometry.nn._recurrent import AbstractRecurrent

# what an output layer reads of a complex state
Parts = Literal["both", "real"]


@dataclass(frozen=True)
class Output:
    """The first values of an output layer.

    Attributes:
        bound: of uniform weights.
        std: of normal weights, instead.
        bias_bound: of uniform biases.
        bias: what is added to them.
    """

    bound: float = 0.0
    std: float | None = None
    bias_bound: float = 0.0
    bias: float = 0.0

    def layer(self, features: int, outputs: int, draw: Draw) -> nn.Linear:
        """A layer that starts with them."""
        made = nn.Linear(features, outputs, device="meta")
        if self.std is None:
            made.weight = draw.uniform(outputs, features, bound=self.bound)
        else:
            made.weight = draw.normal(outputs, features, std=self.std)
        bias = draw.uniform(outputs, bound=self.bias_bound)
        made.bias = nn.Parameter(bias.detach() + self.bias)
        return made


class SequenceModel(nn.Module):
    r"""A recurrent network and a linear output layer, $y_t = V h_t + c$.

    Of complex states the layer reads the real and then the imaginary parts, or the real
    ones alone.

    Args:
        network: `ExpRNN`, a comparator, or an `LSTM`, `GRU` or `RNN` of torch.
        output: the layer.
        parts: what it reads of complex states.
        last_only: whether outputs are wanted at the last step alone.
    """

    def __init__(
        self,
        network: nn.Module,
        output: nn.Linear,
        *,
        parts: Parts = "both",
        last_only: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.output = network, output
        self.parts: Parts = parts
        self.last_only = last_only

    def forward(self, x: Any) -> Any:
        """Outputs of a sequence.

        Args:
            x: as the network takes it; class indices for those of torch too.

        Returns:
            (time, batch, outputs), with a time of one if only the last is wanted.
        """
        H, _ = self.network(self._read(x))
        if isinstance(H, PackedSequence):
            return PackedSequence(self._outputs(H.data), *H[1:])
        return self._outputs(H[-1:] if self.last_only else H)

    def _read(self, x: Any) -> Any:
        """Class indices as the unit vectors that torch's networks want."""
        ours = isinstance(self.network, AbstractRecurrent)
        if ours or not isinstance(x, Tensor) or x.is_floating_point():
            return x
        size: Any = self.network.input_size
        return one_hot(x.long(), size).to(self.output.weight.dtype)

    def _outputs(self, H: Tensor) -> Tensor:
        if H.is_complex():
            both = self.parts == "both"
            H = torch.cat((H.real, H.imag), -1) if both else H.real
        return self.output(H)
