"""Packed sequences that are not consistent are refused before C reads them."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence

from isometry.nn import URNN, ExpGRU, ExpLSTM, ExpRNN, ScoRNN

pytestmark = pytest.mark.errors

ROWS = torch.zeros(6, 3)


@pytest.mark.parametrize("layer", [ExpRNN, ExpLSTM, ExpGRU, ScoRNN, URNN])
@pytest.mark.parametrize(
    "sizes",
    [[4, 4, 4], [2, 2, 1], [2, 3, 1], [3, 3, 0], [4, 3, -1], [0], []],
    ids=str,
)
def test_packed_sequences_whose_sizes_do_not_add_up(layer, sizes):
    """Packed sequences whose sizes do not add up, or grow, are refused.

    C used to write beyond its buffer (`free(): invalid size`), and sizes that grow were
    accepted.
    """
    packed = PackedSequence(ROWS, torch.tensor(sizes, dtype=torch.int64))
    message = r"`input.batch_sizes` must be positive, .* the 6 rows .* got \["
    with pytest.raises(ValueError, match=message):
        layer(3, 6)(packed)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (torch.tensor([3, 3], dtype=torch.int32), r"got shape \(2,\), torch.int32"),
        (torch.tensor([3.0, 3.0]), r"got shape \(2,\), torch.float32"),
        (torch.tensor([[3, 3]]), r"got shape \(1, 2\), torch.int64"),
    ],
)
def test_packed_sequences_with_sizes_of_another_kind(sizes, message):
    with pytest.raises(TypeError, match=message):
        ExpRNN(3, 5)(PackedSequence(ROWS, sizes))


@pytest.mark.parametrize("number", [2, 4])
def test_packed_sequences_with_an_order_of_another_length(number):
    """An order of another length is refused.

    States used to be mixed up, or an internal error was raised.
    """
    order = torch.arange(number)
    packed = PackedSequence(ROWS, torch.tensor([3, 3]), order, order)
    message = rf"`input.sorted_indices` .* the 3 sequences; got shape \({number},\)"
    with pytest.raises(ValueError, match=message):
        ExpRNN(3, 5)(packed)
    packed = PackedSequence(ROWS, torch.tensor([3, 3]), torch.arange(3), order)
    with pytest.raises(ValueError, match=r"`input.unsorted_indices` must"):
        ExpRNN(3, 5)(packed)


@pytest.mark.parametrize("index", [-1, 3])
def test_packed_sequences_with_an_order_out_of_range(index):
    """An order out of range raises torch's error, as in its layers.

    -1 used to be taken for the last sequence.
    """
    order = torch.tensor([0, 1, index])
    packed = PackedSequence(ROWS, torch.tensor([3, 3]), torch.arange(3), order)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        ExpRNN(3, 5)(packed)
