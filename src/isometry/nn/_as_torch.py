"""Conversion of recurrent layers from and to torch, and access by torch's names."""

import re
from abc import abstractmethod
from collections.abc import Callable
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from isometry.nn._cell import AbstractCell
from isometry.nn._recurrent import AbstractRecurrent
from isometry.parametrizations._foreign import AbstractAdopter
from isometry.parametrizations._initial import Init

# names of the tensors in a torch layer; `weight_hr` exists only with a `proj_size`
_NAME = re.compile(r"((?:weight|bias)_(?:ih|hh|hr))(_l\d+(?:_reverse)?)")


class AbstractNamedCell(AbstractCell):
    """A cell whose tensors have counterparts in a torch layer.

    Attributes:
        weight_hh: the recurrent weight; in a gated cell, a batch of all gates' weights.
        bias: the bias, or None.
    """

    weight_hh: nn.Parameter
    bias: nn.Parameter | None

    def torch_weights(self) -> dict[str, Tensor]:
        """The tensors in torch's layout and order, named without suffixes like `_l0`.

        A cell with a bias has the entries "bias_ih" and "bias_hh", as in torch. But if
        its bias is the threshold of modReLU, which torch does not have, there is only
        the entry "bias".
        """
        # torch stacks the matrices of all gates into one
        W = self.weight_hh.flatten(0, -2)
        biases = {} if self.bias is None else self.torch_biases(self.bias)
        # not `{...} | biases`, which Dynamo in torch 2.7 cannot trace
        return {"weight_ih": self.weight_ih, "weight_hh": W, **biases}

    @abstractmethod
    def torch_biases(self, bias: Tensor) -> dict[str, Tensor]:
        """The entries of `torch_weights` for `bias`, which is the bias of this cell."""

    def plain_state(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert a torch layer's weights to a `state_dict` of this cell.

        The keys are the names that this cell's parameters had before `constrain`.
        The bias is the sum of torch's two biases. A learned initial state becomes zero,
        because torch's layers start at zero.

        Args:
            weights: tensors of a torch layer, named as in `torch_weights`.

        Raises:
            ValueError: if this cell has no counterpart for one of the tensors.
        """
        state = {name: weights[name] for name in ("weight_ih", "weight_hh")}
        if self.bias is not None:
            state["bias"] = weights["bias_ih"] + weights["bias_hh"]
        if self.h0 is not None:
            state["h0"] = torch.zeros_like(self.h0)
        return state


class AbstractNamedRecurrent(AbstractRecurrent, AbstractAdopter):
    """A recurrent network whose weights can be read under torch's names.

    The names in layer 0 are `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0` and
    `bias_hh_l0`; names of the second direction end with `_reverse`. `weight_hh_l0` is
    the orthogonal weight itself; in gated cells it holds the weights of all gates,
    stacked. `bias_ih_l0` is the bias of the cell, and `bias_hh_l0` is a new tensor of
    zeros at each access (with `ExpGRU(candidate_bias=True)`, it contains the second
    bias). Neither name exists if the cell has no bias, or if its bias is the threshold
    of modReLU. The parameters themselves are in `cells`.

    Attributes:
        bias: whether cells have a bias.
        init: how the recurrent weights were initialized. In place of a user's function,
            it is the name of the function.
        mode: the kind of cell, named in torch's manner, such as "LSTM" or "RNN_TANH".
        proj_size: always 0.
    """

    bias: bool
    init: Init
    proj_size: int = 0

    def __post_init__(self, *factory: Any) -> None:
        super().__post_init__(*factory)
        # Once the cells exist, `init` is only printed, so keep only the name of a
        # function. The function itself would keep alive what it refers to, and a local
        # function would prevent `torch.save` of a folded network.
        if callable(self.init):
            self.init = getattr(self.init, "__name__", type(self.init).__name__)

    @abstractmethod
    def torch_class(self) -> Callable[..., nn.RNNBase]:
        """The torch class with the same kind of cell, or a function that makes a layer.

        Raises:
            ValueError: if torch has no such cell.
        """

    def to_torch(self) -> nn.RNNBase:
        """Return a new `nn.RNN`, `nn.LSTM` or `nn.GRU` that computes the same function.

        The new layer works wherever torch's layers do: TorchScript, quantization, other
        libraries. Its parameters are copies, and nothing keeps them orthogonal during
        training. It needs one-hot vectors where this layer accepts class indices.

        Returns:
            The torch layer, on the device and in the dtype of this layer.

        Raises:
            ValueError: if torch has no such layer: the nonlinearity is neither tanh nor
                ReLU, the states are complex, the initial state is learned, or only
                the last output is returned.
        """
        twin = self._twin()
        if self.last_only:
            raise ValueError(
                "`last_only` must be False, because torch's layers return all outputs; "
                "got True. Set `layer.last_only = False` first."
            )
        if any(cell.h0 is not None for cell in self.typed_cells()):
            raise ValueError(
                "`train_h0` must be False, because torch's layers start at zero; got "
                "True. Copy `h0` of each cell, set it to None, and pass the copies as "
                "`hx`."
            )
        with torch.enable_grad():
            weights = list(chain.from_iterable(self.all_weights))
        for name, W in zip(list(twin.state_dict()), weights, strict=True):
            p = nn.Parameter(W.detach().clone(), requires_grad=W.requires_grad)
            setattr(twin, name, p)
        # copy the weights to one block of memory now, otherwise cuDNN would do so at
        # every call
        twin.flatten_parameters()
        return twin.train(self.training)

    def adopt(self, state: dict[str, Tensor], prefix: str) -> None:
        """Convert a torch layer's entries in a checkpoint to entries of this layer.

        The recurrent weights get the keys that they had before `constrain`. Then
        `isometry.load_foreign`, which calls this method, makes them orthogonal.

        Args:
            state: the checkpoint, which is changed in place.
            prefix: the prefix of all keys of this layer.

        Raises:
            ValueError: if the torch layer in the checkpoint does not fit this layer.
        """
        names = [key[len(prefix) :] for key in state if key.startswith(prefix)]
        names = [name for name in names if _NAME.fullmatch(name)]
        if not names:
            return
        twin = self._twin()
        shapes = {name: tuple(p.shape) for name, p in twin.named_parameters()}
        saved = {name: tuple(state[prefix + name].shape) for name in names}
        if saved != shapes:
            problems = [
                f"{prefix}{name} {shape}"
                for name, shape in saved.items()
                if shapes.get(name) != shape
            ]
            problems += [f"no {prefix}{name}" for name in shapes if name not in saved]
            raise ValueError(
                f"`state_dict` must have the tensors of torch's {twin} for this "
                f"{type(self).__name__}; got {', '.join(problems)}. Build this layer "
                f"with the sizes and options of the saved layer."
            )
        for i, (suffix, cell) in enumerate(self._cells_by_suffix().items()):
            weights = {
                name.removesuffix(suffix): state.pop(prefix + name)
                for name in names
                if name.endswith(suffix)
            }
            plain = cell.plain_state(weights)
            state.update((f"{prefix}cells.{i}.{key}", X) for key, X in plain.items())

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The tensors of each cell, in torch's order."""
        cells = self._cells_by_suffix().values()
        return [list(cell.torch_weights().values()) for cell in cells]

    def _twin(self) -> nn.RNNBase:
        """A torch layer with this layer's sizes and options, on the meta device."""
        # dropout has no effect in a single layer, and torch would warn about it
        dropout = self.dropout if self.num_layers > 1 else 0.0
        return self.torch_class()(
            self.input_size,
            self.hidden_size,
            self.num_layers,
            bias=self.bias,
            batch_first=self.batch_first,
            dropout=dropout,
            bidirectional=self.bidirectional,
            # no values are drawn on this device, so torch's generator does not advance
            device="meta",
        )

    def _cells_by_suffix(self) -> dict[str, AbstractNamedCell]:
        """Maps the suffix of a cell's names, such as `_l0_reverse`, to the cell."""
        ends = ("", "_reverse") if self.bidirectional else ("",)
        layers = range(self.num_layers)
        suffixes = [f"_l{layer}{end}" for layer in layers for end in ends]
        cells = cast("list[AbstractNamedCell]", self.typed_cells())
        return dict(zip(suffixes, cells, strict=True))

    def __getattr__(self, name: str) -> Any:
        match = _NAME.fullmatch(name) if name.startswith(("weight_", "bias_")) else None
        if match is not None:
            stem, suffix = match[1], match[2]
            cell = self._cells_by_suffix().get(suffix)
            if cell is not None and stem in (weights := cell.torch_weights()):
                return weights[stem]
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if _NAME.fullmatch(name):
            raise AttributeError(
                f"`{name}` of {type(self).__name__} is read-only. Assign to the "
                f"`weight_ih`, `weight_hh` or `bias` of one of its `cells`."
            )
        super().__setattr__(name, value)
