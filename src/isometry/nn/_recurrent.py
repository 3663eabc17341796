"""Base classes for cells, and for networks that stack cells in layers."""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, MISSING, InitVar, dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isometry._checks import check_flags
from isometry._declare import declared_parameters, points
from isometry._dtypes import HALF, PRECISIONS
from isometry._torch import is_fake, is_wrapper
from isometry.groups import AbstractManifold
from isometry.nn._sequence import Pass, Rows, cast_input, cast_state, check_rows, read
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
        self.input_size, self.hidden_size = input_size, hidden_size
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
    """Apply a conversion such as `t.double()` to `X`, which stays real or complex.

    torch's `Module.double` leaves complex tensors alone, and `Module.to` with a dtype
    makes all tensors real, or all complex. Neither method fits a cell, which may have
    real and complex tensors of the same precision.

    Raises:
        TypeError: if `X` is complex, and the conversion is one to half precision.
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
    """Remove the rounding errors of a point that was cast to a wider dtype.

    `Q` does not change if its dtype is not wider than `before`, if it is a fake tensor
    or a wrapper, or if its defect is larger than rounding to `before` explains.
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


@dataclass(eq=False, repr=False)
class AbstractRecurrent(nn.Module, ABC):
    """A network made of layers of cells, in one or two directions.

    It is called like `torch.nn.RNN`. Subclasses are dataclasses too. Their fields are
    the options of the network: the ones below, their own, and the `InitVar`s `device`
    and `dtype`, in this order. They have no `__eq__` and no `__repr__`: torch compares
    modules by identity, and prints them with `extra_repr`.

    Args:
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
        generator: source of the random numbers for the initial values.

    Attributes:
        cell_class: makes a cell from the network, whose options it takes, and from the
            arguments of `_make_cell`.
    """

    cell_class: ClassVar[Callable[..., AbstractCell]]
    input_size: int
    hidden_size: int
    num_layers: int = 1
    _: KW_ONLY
    last_only: bool = False
    generator: InitVar[torch.Generator | None] = None
    # Subclasses make these options fields, because the constructors of torch's layers
    # have them at different positions; `ExpLSTM` and `ExpGRU` have no `chunk`. Here
    # they have no annotations, so the dataclass ignores them.
    batch_first = bidirectional = False
    dropout = 0.0
    chunk = cast("int | None", None)

    def __post_init__(self, generator: Any, *place: Any) -> None:
        super().__init__()
        # an option is a flag if its default is one
        flags = [flag.name for flag in fields(self) if isinstance(flag.default, bool)]
        check_flags(**{name: getattr(self, name) for name in flags})
        check_sizes(num_layers=self.num_layers)
        self._check_options()
        directions = 2 if self.bidirectional else 1
        inputs = [self.input_size, *[directions * self.hidden_size] * self.num_layers]
        device, dtype = place
        options = {"device": device, "dtype": dtype, "generator": generator}
        self.cells = nn.ModuleList(
            self._make_cell(inputs[layer], **options)
            for layer in range(self.num_layers)
            for _ in range(directions)
        )

    def _make_cell(self, inputs: int, **place: Any) -> AbstractCell:
        """The cell for one direction of one layer, with `inputs` input features.

        `place` has the options `device`, `dtype` and `generator`.
        """
        return self.cell_class(self, inputs, **place)

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
            A pair. The first part holds the states of the last layer, in the same form
            as the input. With `last_only`, it is a tensor that holds only the last
            state. The second part holds the last states of all layers, in the same form
            as `hx`.
        """
        rows = read(input, batch_first=self.batch_first)
        check_rows(rows, self.input_size)
        cells = self.typed_cells()
        firsts = self._first_states(cells, hx, rows)
        directions, time_steps = 2 if self.bidirectional else 1, rows.time_steps
        x, lasts = cast_input(firsts[0][0], rows.x), []
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
        # raise here, before any tensor of this layer is loaded, and before a constraint
        # reports that its own keys are missing
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
        like, batch = usual[0][0], (rows.time_steps.batch,) if rows.batched else ()
        shape = (len(cells), *batch, self.hidden_size)
        parts = [
            rows.sorted(cast_state(like, h, shape)) for h in _tensors(hx, len(usual[0]))
        ]
        return list(zip(*(part.unbind(0) for part in parts), strict=True))

    def extra_repr(self) -> str:
        """The sizes, and the options that differ from their defaults."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        # keyword-only options come last, as in the constructor
        for option in sorted(fields(self), key=lambda option: option.kw_only is True):
            value = getattr(self, option.name)
            if option.default not in (MISSING, value):
                parts.append(f"{option.name}={value!r}")
        return ", ".join(parts)

    def _check_options(self) -> None:
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


def forget_place(kind: type[AbstractRecurrent]) -> None:
    """Remove the attributes `device`, `dtype` and `generator` of a class of networks.

    A dataclass makes the default of each `InitVar` that it declares an attribute of the
    class. Without this function, the `device` of every layer would be None.
    """
    for option in {"device", "dtype", "generator"} & vars(kind).keys():
        delattr(kind, option)


forget_place(AbstractRecurrent)


def _level_of_user() -> int:
    """The `stacklevel` with which the caller's warning shows the user's line of code.

    It is not a constant, because the constructors of different layers call each other
    to different depths.
    """
    level, frame = 0, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").startswith("isometry."):
        level, frame = level + 1, frame.f_back
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
