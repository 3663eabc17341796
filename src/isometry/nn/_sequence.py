"""Sequences as users have them, and as rows one step after the other."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from isometry.nn._steps import Steps


@dataclass(frozen=True)
class Rows:
    """What a layer gets, as rows: (rows, features), or (rows,) class indices.

    Attributes:
        x: the rows, sorted by time, and the longest sequences first.
        steps: which of them belong to which time.
        packed: the packed sequence that they were, if they were.
        batch_first: whether the first axis was that of the batch.
        batched: whether there was such an axis.
    """

    x: Tensor
    steps: Steps
    packed: PackedSequence | None
    batch_first: bool
    batched: bool

    def restored(self, H: Tensor, *, last_only: bool) -> Any:
        """States (or the last ones alone) in the form of what came in."""
        if self.packed is not None and not last_only:
            return PackedSequence(H, *self.packed[1:])
        if self.packed is not None:
            return self.unsorted(H[None])[0].unsqueeze(0 if not self.batch_first else 1)
        H = H.view(-1, self.steps.batch, H.shape[-1])
        if not self.batched:
            return H[:, 0]
        return H.transpose(0, 1) if self.batch_first else H

    def unsorted(self, states: Tensor) -> Tensor:
        """(layers, batch, n) in the order of the user's sequences."""
        order = None if self.packed is None else self.packed.unsorted_indices
        states = states if order is None else states[:, order]
        return states if self.batched else states[:, 0]

    def sorted(self, states: Tensor) -> Tensor:
        """The same the other way."""
        states = states if self.batched else states[:, None]
        order = None if self.packed is None else self.packed.sorted_indices
        return states if order is None else states[:, order]


def read(input: Tensor | PackedSequence, *, batch_first: bool) -> Rows:  # noqa: A002
    """The rows of what a user hands to a recurrent layer."""
    if isinstance(input, PackedSequence):
        steps = Steps(tuple(input.batch_sizes.tolist()))
        return Rows(input.data, steps, input, batch_first, batched=True)
    features = 0 if _is_index(input) else 1
    axes = input.ndim - features
    if axes not in (1, 2):
        shape = "(time, batch, features)" if features else "(time, batch) of indices"
        raise ValueError(
            f"`input` must be {shape}, its axes swapped by `batch_first`, or without "
            f"the batch; got shape {tuple(input.shape)}, {input.dtype}. Reshape it."
        )
    batched = axes == 2
    x = input if batched else input.unsqueeze(1)
    x = x.transpose(0, 1) if batched and batch_first else x
    if 0 in x.shape[:2]:
        raise ValueError(
            f"`input` must have at least one step and one sequence; got shape "
            f"{tuple(input.shape)}. Leave empty batches out."
        )
    steps = Steps.equal(x.shape[0], x.shape[1])
    return Rows(x.flatten(0, 1), steps, None, batch_first, batched)


def _is_index(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def check_rows(rows: Rows, inputs: int) -> None:
    """Features or class indices that fit a layer of so many inputs."""
    x = rows.x
    if not _is_index(x):
        if x.shape[-1] != inputs:
            raise ValueError(
                f"`input` must have {inputs} features on its last axis; got "
                f"{x.shape[-1]}. Make a layer with `input_size={x.shape[-1]}`."
            )
        return
    if x.dtype == torch.bool:
        raise TypeError(
            "`input` must be numbers or class indices; got torch.bool. Convert it: "
            "`.float()` for numbers, `.long()` for indices."
        )
    low, high = (int(v) for v in torch.aminmax(x))
    if low < 0 or high >= inputs:
        raise ValueError(
            f"`input` must have class indices from 0 to {inputs - 1}; got "
            f"{low if low < 0 else high}. Make a layer with more inputs, or mend them."
        )
