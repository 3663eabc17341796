"""The base class for networks that stack cells in layers."""

import inspect
import warnings
from abc import ABC, abstractmethod
from dataclasses import MISSING, Field, fields
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isometry._checks import check_flags
from isometry.nn._cell import (
    AbstractCell,
    FactoryOptions,
    State,
    check_sizes,
    is_positive,
)
from isometry.nn._sequence import Pass, Rows, cast_input, cast_state, check_rows, read


class AbstractRecurrent(nn.Module, ABC):
    """A network made of layers of cells, in one or two directions.

    It is called like `torch.nn.RNN`. Each network is a dataclass, whose fields are the
    arguments of its constructor. This class only declares the attributes that all
    networks have. It is not a dataclass itself, because the constructors of the
    networks, like torch's, take these arguments in different orders. The dataclasses
    have no `__eq__` and no `__repr__`: torch compares modules by identity, and prints
    them with `extra_repr`.

    Attributes:
        input_size: number of features of the input.
        hidden_size: number of features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        batch_first: whether the batch comes before time.
        dropout: probability of dropout between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        last_only: whether to return only the last output, on a time axis of length 1.
            With two directions, it contains the final state of each direction.
        chunk: with `last_only`, the last layer stores only every `chunk`-th state for
            the backward pass, which recomputes the others. For a sequence of `T` time
            steps, this layer then needs memory for `T / chunk + chunk` states, not `T`.
            `ExpLSTM` and `ExpGRU` do not have this option.
    """

    # tells the type checker that every network is a dataclass and has `fields`
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    input_size: int
    hidden_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    bidirectional: bool
    last_only: bool
    chunk: int | None = None

    def __post_init__(
        self,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self._check_options()
        factory = FactoryOptions(device=device, dtype=dtype, generator=generator)
        directions = 2 if self.bidirectional else 1
        self.cells = nn.ModuleList()
        for layer in range(self.num_layers):
            inputs = directions * self.hidden_size if layer else self.input_size
            for _ in range(directions):
                self.cells.append(self._make_cell(inputs, factory))

    @abstractmethod
    def _make_cell(self, inputs: int, factory: FactoryOptions) -> AbstractCell:
        """The cell for one direction of one layer, with `inputs` input features."""

    def forward(
        self,
        input: Tensor | PackedSequence,  # noqa: A002 - named as in torch
        hx: Any = None,
    ) -> tuple[Any, Any]:
        """Return the outputs of the last layer, and the last states of all layers.

        Args:
            input: a `PackedSequence`, or a tensor (time, batch, input_size). With
                `batch_first`, the tensor is (batch, time, input_size). A single
                sequence may have no batch axis. A tensor of integers has no axis
                of features: each integer is a class index, which stands for a one-hot
                vector of `input_size` numbers.
            hx: the initial states, (layers * directions, batch, hidden_size), or a pair
                of such tensors for `ExpLSTM`. They have no batch axis if the input has
                none. If `hx` is left out, the cells start at zero, or at their learned
                initial states.

        Returns:
            A pair. The first part holds the outputs of the last layer, in the same form
            as the input. With `last_only`, it is a tensor that holds only the last
            output. The second part holds the last states of all layers, in the same
            form as `hx`.
        """
        rows = read(input, batch_first=self.batch_first)
        check_rows(rows, self.input_size)
        cells = self.typed_cells()
        firsts = self._first_states(cells, hx, rows)
        directions = 2 if self.bidirectional else 1
        time_steps = rows.time_steps
        x = cast_input(firsts[0][0], rows.x)
        lasts = []
        for layer in range(self.num_layers):
            top = layer + 1 == self.num_layers
            run = Pass(time_steps, top and self.last_only, self.chunk)
            outputs = []
            for direction in range(directions):
                i = directions * layer + direction
                # the second direction runs backwards
                inputs = time_steps.reversed(x) if direction else x
                H, last = cells[i].scan(inputs, firsts[i], run)
                if H is None:
                    H = last[0]
                elif direction:
                    H = time_steps.reversed(H)
                outputs.append(H)
                lasts.append(last)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
            if self.dropout and not top:
                x = nn.functional.dropout(x, self.dropout, self.training)
        last = [rows.unsorted(torch.stack(h)) for h in zip(*lasts, strict=True)]
        H = rows.restored(x, last_only=self.last_only)
        return H, last[0] if len(last) == 1 else tuple(last)

    def reset_parameters(self) -> None:
        """Draw new values for all parameters, in the same way as the constructor.

        The numbers come from torch's default generator. If `isometry.fold` has removed
        the constraints of an `ExpRNN`, `ExpLSTM` or `ExpGRU`, the recurrent weights
        become the identity instead.
        """
        for cell in self.typed_cells():
            cell.reset_parameters()

    def typed_cells(self) -> list[AbstractCell]:
        """The cells of all layers and directions, as a list with a precise type."""
        # Read `_modules` directly. `self.cells` would go through `__getattr__`, which
        # some subclasses override to look up torch's names.
        cells = cast("nn.ModuleList", self._modules["cells"])
        return [cast("AbstractCell", cell) for cell in cells]

    def flatten_parameters(self) -> None:
        """Do nothing; in torch's layers, this method prepares the weights for cuDNN."""

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        # Raise here if this is the state of a torch layer, before any tensor of this
        # layer is loaded, and before a constraint reports that its keys are missing.
        if f"{prefix}weight_hh_l0" in state_dict:
            raise ValueError(
                f"`state_dict` must be the state of another {type(self).__name__}; got "
                f"'{prefix}weight_hh_l0', a key of a torch recurrent layer, whose "
                f"recurrent weights are not orthogonal. `isometry.load_foreign(model, "
                f"state_dict)` loads it into an ExpRNN, ExpLSTM or ExpGRU, with the "
                f"nearest rotations."
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _first_states(
        self, cells: list[AbstractCell], hx: Any, rows: Rows
    ) -> list[State]:
        """The initial state of each cell, taken from `hx` or from the cell itself."""
        usual = [cell.first_state(rows.time_steps.batch) for cell in cells]
        if hx is None:
            return usual
        like = usual[0][0]
        shape = (len(cells), self.hidden_size)
        if rows.batched:
            shape = (len(cells), rows.time_steps.batch, self.hidden_size)
        tensors = _tensors(hx, number=len(usual[0]))
        states = [rows.sorted(cast_state(like, h, shape)) for h in tensors]
        # the first axis of each tensor runs over the cells
        return list(zip(*(h.unbind(0) for h in states), strict=True))

    def extra_repr(self) -> str:
        """The sizes, and the options that differ from their defaults."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        for option in fields(self):
            value = getattr(self, option.name)
            if option.default not in (MISSING, value):
                parts.append(f"{option.name}={value!r}")
        return ", ".join(parts)

    def _check_options(self) -> None:
        """Raise if an option is invalid; each cell checks the options that it takes."""
        check_flags(
            batch_first=self.batch_first,
            bidirectional=self.bidirectional,
            last_only=self.last_only,
        )
        check_sizes(
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
        )
        dropout, chunk = self.dropout, self.chunk
        number = isinstance(dropout, int | float) and not isinstance(dropout, bool)
        if not (number and 0 <= dropout <= 1):
            raise ValueError(f"`dropout` must be between 0 and 1; got {dropout!r}.")
        if dropout and self.num_layers == 1:
            warnings.warn(
                f"`dropout` must be 0 with one layer, because it acts between layers; "
                f"got {dropout} with `num_layers=1`. It has no effect.",
                stacklevel=_level_of_user(),
            )
        if chunk is not None and not (is_positive(chunk) and self.last_only):
            raise ValueError(
                f"`chunk` must be positive, and needs `last_only=True`; got {chunk!r} "
                f"with `last_only={self.last_only}`. A layer that returns all outputs "
                f"stores all states anyway."
            )


Recurrent = TypeVar("Recurrent", bound=AbstractRecurrent)


def forget_factory_options(network: type[Recurrent]) -> type[Recurrent]:
    """Remove the class attributes `device`, `dtype` and `generator` of a dataclass.

    A dataclass makes the default of each `InitVar` an attribute of the class. Without
    this decorator, the `device` of every layer would be None.
    """
    for option in FactoryOptions.__annotations__:
        delattr(network, option)
    return network


def _level_of_user() -> int:
    """The `stacklevel` with which the caller's warning shows the user's line of code.

    It is not a constant, because the constructors of different layers call each other
    to different depths.
    """
    level = 0
    frame = inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").startswith("isometry."):
        level += 1
        frame = frame.f_back
    return level


def _tensors(hx: Any, number: int) -> State:
    """The tensors in `hx`: one tensor, or a tuple or list of `number` tensors."""
    sequence = isinstance(hx, tuple | list)
    if number == 1 and not sequence:
        return (hx,)
    if number > 1 and sequence and len(hx) == number:
        return tuple(hx)
    expected = "a tensor" if number == 1 else f"a tuple of {number} tensors"
    length = f" of {len(hx)}" if sequence else ""
    raise TypeError(
        f"`hx` must be {expected}; got {type(hx).__name__}{length}. Pass the state "
        f"that the layer returned."
    )
