"""Conversion between a user's sequences and rows sorted by time."""

import reprlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from isometry._backend import TimeSteps
from isometry._checks import check_is_tensor
from isometry._torch import is_fake, transforms

# ends the messages about packed sequences whose tensors do not fit each other
_PACK = "Pack sequences with `torch.nn.utils.rnn.pack_sequence`."


class Pass(NamedTuple):
    """One pass over sequences: their time steps, what to return and what to save.

    With `last_only`, only the last states are returned, and only every `chunk`-th state
    is saved for the backward pass, unless `chunk` is None.
    """

    time_steps: TimeSteps
    last_only: bool = False
    chunk: int | None = None


@dataclass(frozen=True)
class Rows:
    """The input of a layer as rows: (rows, features), or (rows,) of class indices.

    Attributes:
        x: the rows, sorted by time, with the longest sequences first.
        time_steps: which rows belong to which time step.
        packed: the packed sequence from which the rows come, if any.
        batch_first: whether the batch axis comes first in the user's tensors.
        batched: whether the input had a batch axis.
    """

    x: Tensor
    time_steps: TimeSteps
    packed: PackedSequence | None
    batch_first: bool
    batched: bool

    def restored(self, H: Tensor, *, last_only: bool) -> Any:
        """Convert rows of states back to the form of the user's input.

        `H` holds the states of all time steps or, with `last_only`, the last states.
        With `last_only`, the result is a tensor even if the input was packed.
        """
        if self.packed is not None and not last_only:
            return PackedSequence(H, *self.packed[1:])
        time = 1 if last_only else len(self.time_steps.sizes)
        H = self.unsorted(H.view(time, self.time_steps.batch, H.shape[-1]))
        return H.transpose(0, 1) if self.batch_first and self.batched else H

    def unsorted(self, states: Tensor) -> Tensor:
        """States, with the batch on axis 1, in the order of the user's sequences."""
        order = None if self.packed is None else self.packed.unsorted_indices
        states = states if order is None else states.index_select(1, order)
        return states if self.batched else states[:, 0]

    def sorted(self, states: Tensor) -> Tensor:
        """A user's states in the order of the rows, with the longest sequence first."""
        states = states if self.batched else states[:, None]
        order = None if self.packed is None else self.packed.sorted_indices
        return states if order is None else states.index_select(1, order)


def read(input: Tensor | PackedSequence, *, batch_first: bool) -> Rows:  # noqa: A002 - named as in torch
    """The rows of a user's input, whose type and shape are checked first."""
    if isinstance(input, PackedSequence):
        return _read_packed(input, batch_first=batch_first)
    if not isinstance(input, Tensor):
        raise TypeError(
            f"`input` must be a torch.Tensor or a PackedSequence; got "
            f"{type(input).__name__}. Convert it with `torch.as_tensor`."
        )
    features = 0 if _is_index(input) else 1
    axes = input.ndim - features
    if axes not in (1, 2):
        shape = "(time, batch, features)" if features else "(time, batch) of indices"
        raise ValueError(
            f"`input` must be {shape}, or (batch, time, ...) with `batch_first`, or "
            f"have no batch axis; got shape {tuple(input.shape)}, {input.dtype}."
        )
    batched = axes == 2
    x = input if batched else input.unsqueeze(1)
    x = x.transpose(0, 1) if batched and batch_first else x
    if x.shape[0] == 0:
        raise ValueError(
            f"`input` must have at least one time step; got shape "
            f"{tuple(input.shape)}. Leave empty sequences out."
        )
    time_steps = TimeSteps.equal(x.shape[0], x.shape[1])
    return Rows(x.flatten(0, 1), time_steps, None, batch_first, batched)


def read_step(input: Tensor) -> Rows:  # noqa: A002 - named as in torch
    """The rows of a cell's input, which has no time axis."""
    check_is_tensor(input, name="input")
    features = 0 if _is_index(input) else 1
    if input.ndim - features not in (0, 1):
        shape = "(batch, input_size)" if features else "(batch,) of class indices"
        raise ValueError(
            f"`input` must be {shape}, or have no batch axis; got shape "
            f"{tuple(input.shape)}, {input.dtype}. A cell reads one time step."
        )
    return read(input.unsqueeze(0), batch_first=False)


def _read_packed(packed: PackedSequence, *, batch_first: bool) -> Rows:
    x = packed.data
    if x.ndim != (1 if _is_index(x) else 2):
        raise ValueError(
            f"`input` must pack sequences (time, features), or (time,) of indices; got "
            f"data of shape {tuple(x.shape)}, {x.dtype}."
        )
    sizes = _checked_sizes(packed.batch_sizes, len(x))
    for name in ("sorted_indices", "unsorted_indices"):
        order = getattr(packed, name)
        # Check only the shape: to check the values here, the host would have to wait
        # for the device. Torch's indexing checks them later.
        if order is not None and tuple(order.shape) != sizes[:1]:
            raise ValueError(
                f"`input.{name}` must have one index for each of the {sizes[0]} "
                f"sequences; got shape {tuple(order.shape)}. {_PACK}"
            )
    return Rows(x, TimeSteps(sizes), packed, batch_first, batched=True)


def _checked_sizes(batch_sizes: Tensor, rows: int) -> tuple[int, ...]:
    """The batch sizes of a packed sequence, checked because C kernels rely on them."""
    if batch_sizes.dtype != torch.int64 or batch_sizes.ndim != 1:
        raise TypeError(
            f"`input.batch_sizes` must be a 1-D tensor of torch.int64; got shape "
            f"{tuple(batch_sizes.shape)}, {batch_sizes.dtype}. {_PACK}"
        )
    sizes = tuple(batch_sizes.tolist())
    shrinking = all(a >= b for a, b in pairwise(sizes))
    if not sizes or sizes[-1] < 1 or not shrinking or sum(sizes) != rows:
        raise ValueError(
            f"`input.batch_sizes` must be positive, never increase, and add up to "
            f"the {rows} rows of `input.data`; got {reprlib.repr([*sizes])}, with "
            f"sum {sum(sizes)}. {_PACK}"
        )
    return sizes


def _is_index(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def check_rows(rows: Rows, inputs: int) -> None:
    """Raise unless the rows fit a layer with `inputs` input features.

    Class indices that cannot be read yet, for example in a graph, are not checked.
    """
    x = rows.x
    if not _is_index(x):
        if x.shape[-1] != inputs:
            raise ValueError(
                f"`input` must have {inputs} features on its last axis; got "
                f"{x.shape[-1]}. Make a layer with `input_size={x.shape[-1]}`, or, if "
                f"these are class indices, convert them with `.long()`."
            )
        return
    if x.dtype == torch.bool:
        raise TypeError(
            "`input` must be numbers or class indices; got torch.bool. Convert it: "
            "`.float()` for numbers, `.long()` for indices."
        )
    # The indices in a graph, a transform or a fake tensor cannot be read now. If one of
    # them is out of range, the indexing in `input_drive` fails later. An empty tensor
    # has no indices to check.
    if torch.compiler.is_compiling() or transforms() or is_fake(x) or not x.numel():
        return
    low, high = (int(v) for v in torch.aminmax(x))
    if low < 0 or high >= inputs:
        raise ValueError(
            f"`input` must have class indices from 0 to {inputs - 1}; got "
            f"{low if low < 0 else high}. Make a layer with a larger `input_size`, or "
            f"correct the indices."
        )


def cast_input(state: Tensor, x: Tensor) -> Tensor:
    """Return inputs `x` in a dtype that a cell accepts, or raise.

    `state` is a state of the cell. Class indices become int64. All other numbers must
    already have the dtype of `state`, but a complex cell also accepts real inputs of
    the same precision. Under autocast, real numbers are cast.
    """
    _check_device(x, state, "input")
    if _is_index(x):
        return x.long()
    dtype = state.dtype if x.is_complex() else state.real.dtype
    return _cast(x, dtype, "input")


def cast_state(state: Tensor, hx: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a user's state in the dtype of `state`, or raise.

    `hx` must have the shape `shape`. The dtypes must agree, except that real numbers
    are cast under autocast.
    """
    check_is_tensor(hx, name="hx")
    if tuple(hx.shape) != shape:
        raise ValueError(
            f"`hx` must have shape {shape}; got {tuple(hx.shape)}. Leave it out to "
            f"start at the default state."
        )
    _check_device(hx, state, "hx")
    return _cast(hx, state.dtype, "hx")


def _check_device(x: Tensor, state: Tensor, name: str) -> None:
    if x.device != state.device:
        raise ValueError(
            f"`{name}` must be on the device of the layer, {state.device}; got "
            f"{x.device}. Move it, or the layer, with `.to`."
        )


def _cast(x: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Return `x` in this dtype. Raise if that needs a cast, except under autocast.

    Complex numbers are not cast even under autocast.
    """
    if x.dtype == dtype:
        return x
    if torch.is_autocast_enabled(x.device.type) and not x.is_complex():
        return x.to(dtype)
    raise TypeError(
        f"`{name}` must have the dtype of the layer, {dtype}; got {x.dtype}. Convert "
        f"it, or the layer, with `.to`."
    )
