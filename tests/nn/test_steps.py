"""Rows of sequences, one time step after the other, as torch packs them."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from isometry._backend import TimeSteps

LENGTHS = [[3, 3], [5, 3, 3, 1], [4], [1, 1, 1], [6, 1]]


def packed(lengths: list[int]) -> tuple[torch.Tensor, TimeSteps]:
    """A packed tensor whose row (i, t) holds sequence i at time step t."""
    sequences = [
        torch.tensor([[i, t] for t in range(T)]) for i, T in enumerate(lengths)
    ]
    whole = pack_sequence(sequences)
    return whole.data, TimeSteps(tuple(whole.batch_sizes.tolist()))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_last_is_the_last_step_of_each_sequence(lengths):
    rows, steps = packed(lengths)
    assert steps.last(rows).tolist() == [[i, T - 1] for i, T in enumerate(lengths)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_reversed_turns_each_sequence_in_its_own_place(lengths):
    """Time step t of sequence i becomes its step T_i - 1 - t; twice is the identity."""
    rows, steps = packed(lengths)
    turned = [[i, lengths[i] - 1 - t] for i, t in rows.tolist()]
    assert steps.reversed(rows).tolist() == turned
    assert torch.equal(steps.reversed(steps.reversed(rows)), rows)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("chunk", [None, 1, 2, 4, 100])
def test_parts_are_all_of_it(lengths, chunk):
    """Parts of at most `chunk` time steps contain every row once, in order."""
    rows, steps = packed(lengths)
    parts, slices = zip(*steps.cut(chunk), strict=True)
    assert sum((part.sizes for part in parts), ()) == steps.sizes
    assert torch.equal(torch.cat([rows[s] for s in slices]), rows)
    assert [len(rows[s]) for s in slices] == [part.rows for part in parts]
    assert max(len(part.sizes) for part in parts) <= (chunk or len(steps.sizes))


def test_equal_steps_are_remembered():
    """Equal sizes share one object, since training asks for them again and again."""
    assert TimeSteps.equal(7, 3) is TimeSteps.equal(7, 3)
    assert TimeSteps.equal(7, 3) == TimeSteps((3,) * 7)


def test_the_arrays_for_c_count_rows():
    steps = TimeSteps((4, 4, 1))
    starts, sizes, length = steps.arguments
    assert list(starts) == [0, 4, 8, 9]
    assert list(sizes) == [4, 4, 1]
    assert (steps.batch, steps.rows, length) == (4, 9, 3)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 2, 1)], ids=["equal", "varied"])
def test_no_mode_is_remembered(sizes):
    """Nothing made in one mode or on one device is reused in another.

    Indices used to be cached as tensors, for all equal sizes in the process: after one
    call in inference mode, training raised "Inference tensors cannot be saved".
    """
    steps = TimeSteps.equal(3, 2) if sizes == (2, 2, 2) else TimeSteps(sizes)
    x = torch.ones(steps.rows, 1, requires_grad=True)
    for mode in (torch.inference_mode(), torch.device("meta")):
        with mode:
            steps.last(x)
            steps.reversed(x)
    (steps.last(x).sum() + steps.reversed(x).sum()).backward()
    assert x.grad is not None
    assert x.grad.sum() == 2 + steps.rows
