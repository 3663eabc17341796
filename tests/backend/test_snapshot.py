"""Every changed byte is seen, in C and without it."""

import pytest
import torch

from isometry._backend.library import same_bytes
from isometry._native._snapshot import Copy, Snapshot, copyable

COMPARISONS = {"C": same_bytes, "Python": lambda: None}
# bytes on both sides of the size from which threads share the work
SIZES = [1, 7, 64, 65535, 65536, 100003]


@pytest.fixture(params=COMPARISONS)
def compare(request):
    return COMPARISONS[request.param]()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_one_bit_of_any_entry_is_seen(size, threads, compare):
    """And the old bit back again is no change."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        X = torch.zeros(size, dtype=torch.int32)
        snapshot = Snapshot([Copy(torch.zeros(3)), Copy(X)], compare)
        for entry in {0, size // 3, size // 2, size - 1}:
            assert snapshot.unchanged()
            X[entry] = 1
            assert not snapshot.unchanged()
            X[entry] = 0
        assert snapshot.unchanged()
    finally:
        torch.set_num_threads(before)


def test_every_swap_of_two_is_seen(compare, rng):
    X = torch.randperm(9, generator=rng).view(3, 3).double()
    snapshot = Snapshot([Copy(X)], compare)
    flat = X.view(-1)
    for i in range(9):
        for j in range(i):
            flat[[i, j]] = flat[[j, i]]
            assert not snapshot.unchanged()
            flat[[i, j]] = flat[[j, i]]
    assert snapshot.unchanged()


def test_bytes_are_compared_not_values(compare):
    X = torch.tensor([0.0, torch.nan])
    snapshot = Snapshot([Copy(X)], compare)
    assert snapshot.unchanged()
    X.neg_()
    assert not snapshot.unchanged()


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()], ids=str)
def test_nothing_and_single_numbers(shape, compare):
    assert Snapshot([Copy(torch.ones(shape))], compare).unchanged()


def test_other_memory_shape_or_order_is_a_change(compare):
    """An assignment to `.data` may leave every byte where it is."""
    for new in (lambda X: X.clone(), lambda X: X.view(2, 8), lambda X: X.t()):
        X = torch.nn.Parameter(torch.ones(4, 4))
        snapshot = Snapshot([Copy(X)], compare)
        X.data = new(X.data)
        assert not snapshot.unchanged()


def test_what_is_one_block_of_memory():
    X = torch.ones(4, 6)
    assert all(map(copyable, (X, X.t(), X[1:3], X.view(2, 2, 6).permute(1, 2, 0))))
    assert not any(map(copyable, (X[:, :3], X[::2], X[:1].expand(4, 6), X.to("meta"))))
    Z = torch.ones(3, dtype=torch.complex64)
    assert copyable(Z)
    assert not any(map(copyable, (Z.conj(), Z.conj().imag)))
    index = torch.zeros(2, 1, dtype=torch.int64)
    sparse = torch.sparse_coo_tensor(index, Z[:1], (3, 3), check_invariants=True)
    assert not copyable(sparse)
