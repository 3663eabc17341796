"""Memory that is kept between calls is never visible outside of a call."""

import signal
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from isometry import release_memory
from isometry._backend import memory
from isometry._backend.memory import recycled
from isometry._torch import storage_owners
from isometry.groups import SO
from isometry.linalg import expm_skew
from isometry.optim import RiemannianSGD
from tests.helpers import random_skew

# Pieces of 2^19 bytes or more are kept. Eight slots of this size in float32 are 2 MB.
N = 256


@pytest.fixture(autouse=True)
def fresh():
    release_memory()
    yield
    release_memory()


def kept_bytes() -> int:
    return sum(len(piece) for piece in kept_pieces())


def kept_pieces() -> list[Any]:
    return [piece for pieces in memory._pool for piece in pieces]


def test_results_do_not_share_the_kept_memory(rng):
    """Value and gradient of one call survive later calls, to the last bit."""
    A = random_skew(N, norm=3.0, dtype=torch.float32, rng=rng).requires_grad_()
    G = torch.randn(N, N, generator=rng)
    Q = expm_skew(A)
    (g,) = torch.autograd.grad(Q, A, G, retain_graph=True)
    value, gradient = Q.detach().clone(), g.clone()
    free = [piece for piece in kept_pieces() if storage_owners(piece) == 1]
    assert free
    for piece in free:
        torch.empty(0, dtype=torch.uint8).set_(piece).fill_(255)
    B = random_skew(N, norm=1.0, dtype=torch.float32, rng=rng).requires_grad_()
    torch.autograd.grad(expm_skew(B), B, G)
    assert torch.equal(Q.detach(), value)
    assert torch.equal(g, gradient)
    # what the graph saves is not in the kept memory either
    assert torch.equal(torch.autograd.grad(Q, A, G)[0], gradient)


def test_inference_mode_does_not_spoil_it(rng):
    """Memory first used in inference mode serves training later.

    A tensor made in inference mode could not be written to afterwards.
    """
    A = random_skew(N, norm=3.0, dtype=torch.float32, rng=rng)
    with torch.inference_mode():
        inside = expm_skew(A)
    assert_close(expm_skew(A), inside.clone(), rtol=0, atol=0)


def test_threads_have_their_own(rng):
    """Two threads at once compute the same bits as one thread after the other."""
    matrices = [random_skew(N, norm=3.0, dtype=torch.float32, rng=rng) for _ in "ab"]
    alone = [expm_skew(A) for A in matrices]
    results: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def work(i: int) -> None:
        results[i] = [expm_skew(matrices[i]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in (0, 1):
        assert len(results[i]) == 20
        assert all(torch.equal(Q, alone[i]) for Q in results[i])


@pytest.mark.parametrize(("n", "is_kept"), [(8, False), (N, True), (3000, False)])
def test_only_sizes_that_gain_are_kept(n, is_kept):
    """Pieces below 512 kB or above 256 MB are not kept."""
    assert recycled((8, n, n), torch.zeros(())).shape == (8, n, n)
    assert bool(kept_pieces()) == is_kept


def test_what_is_in_use_is_not_given_again():
    """Two pieces in use at once are different.

    A finalizer that runs inside of a call needs a second piece.
    """
    first, second = (recycled((4, N, N), torch.zeros(())) for _ in "ab")
    assert first.data_ptr() != second.data_ptr()


class Nested(TorchFunctionMode):
    """Computes an exponential of its own inside of every operation of torch."""

    def __init__(self, A: Tensor) -> None:
        self.A = A
        self.busy = False

    def __torch_function__(self, func: Any, _types: Any, args=(), kwargs=None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.busy:
            self.busy = True
            expm_skew(self.A)
            self.busy = False
        return out


class NestedDispatch(TorchDispatchMode):
    def __init__(self, A: Tensor) -> None:
        super().__init__()
        self.A = A

    def __torch_dispatch__(self, func: Any, _types: Any, args=(), kwargs=None) -> Any:
        # the mode itself is off in here
        out = func(*args, **(kwargs or {}))
        expm_skew(self.A)
        return out


@pytest.mark.parametrize("mode", [Nested, NestedDispatch])
def test_a_call_inside_a_call(mode, rng):
    """An exponential inside of another one changes neither.

    Results used to be off by 0.67.
    """
    A, B = random_skew(64, norm=3.0, dtype=torch.float64, rng=rng, batch=(2, 20))
    G = torch.randn(A.shape, dtype=torch.float64, generator=rng)
    X = A.clone().requires_grad_()
    expected = expm_skew(X)
    (gradient,) = torch.autograd.grad(expected, X, G)
    with mode(B):
        Q = expm_skew(X)
        (g,) = torch.autograd.grad(Q, X, G)
    # inside of a dispatch mode torch computes instead of C, so bits may differ
    assert_close(Q, expected, rtol=0, atol=1e-13)
    assert_close(g, gradient, rtol=0, atol=1e-12)


@pytest.mark.once
def test_a_signal_handler(rng):
    """A signal handler may compute an exponential.

    It used to make 316 of 404 results of the interrupted code wrong.
    """
    A, B = random_skew(100, norm=3.0, dtype=torch.float32, rng=rng, batch=(2, 10))
    expected = expm_skew(A)
    calls = 0

    def handler(*_: object) -> None:
        nonlocal calls
        calls += 1
        expm_skew(B)
        # Set the timer again only now, instead of once for all calls. On a busy machine
        # the handler takes longer than the interval, and would be called inside itself
        # until Python's stack ends.
        signal.setitimer(signal.ITIMER_REAL, 0.02)

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        while calls < 10:
            assert torch.equal(expm_skew(A), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_fake_tensors_leave_nothing_behind(rng):
    """Fake tensors leave nothing in the kept memory.

    Every later call of that size used to raise, since the kept storage was on the meta
    device.
    """
    A = random_skew(N, norm=3.0, dtype=torch.float32, rng=rng)
    expected = expm_skew(A)
    release_memory()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(A)
        assert expm_skew(fake).shape == A.shape
        assert recycled((N, N, 4), fake).shape == (N, N, 4)
        assert recycled((N, N, 4), A).shape == (N, N, 4)
    assert kept_bytes() == 0
    assert torch.equal(expm_skew(A), expected)


def test_at_most_256_megabytes_are_kept():
    """At most 256 MB are kept; a larger piece is not, and does not drive others out."""
    like = torch.zeros(())
    for megabytes in (1, 60, 100, 20, 50, 300, 30):
        recycled((megabytes, 2**18), like)
    assert [len(piece) >> 20 for piece in kept_pieces()] == [100, 20, 50, 30]
    release_memory()
    assert kept_bytes() == 0


def test_recycled_memory_is_what_nobody_holds():
    """A piece is recycled only when no view, graph or array refers to it."""
    like = torch.zeros(())
    shape = (300, 1000)
    first = recycled(shape, like)
    address = first.data_ptr()
    row = first[3]
    del first
    assert recycled(shape, like).data_ptr() != address
    graph = torch.ones(1000, requires_grad=True) * row
    del row
    assert recycled(shape, like).data_ptr() != address
    del graph
    again = recycled(shape, like)
    assert again.data_ptr() == address
    array = again.numpy()
    del again
    assert recycled(shape, like).data_ptr() != address
    del array
    assert recycled(shape, like).data_ptr() == address


def test_temporary_tensors_share_the_largest_memory():
    """A temporary tensor takes a larger free piece, or replaces the smaller ones."""
    like = torch.zeros(())
    lasting = recycled((2, 2**18), like)
    recycled((3, 2**18), like)
    recycled((4, 2**18), like, temporary=True)
    # the memory in use stays, the free one goes
    assert [len(piece) >> 20 for piece in kept_pieces()] == [2, 4]
    address = recycled((3, 2**18), like, temporary=True).data_ptr()
    assert [len(piece) >> 20 for piece in kept_pieces()] == [2, 4]
    assert address != lasting.data_ptr()
    # a tensor that may live long never blocks more memory than it needs
    recycled((3, 2**18), like)
    assert [len(piece) >> 20 for piece in kept_pieces()] == [2, 4, 3]


@pytest.mark.parametrize("batch", [1, 64])
def test_an_evaluation_and_its_gradient_share_their_memory(batch: int, rng):
    """The factors of the evaluation lie in the memory of the larger gradients."""
    n = 384 if batch == 1 else 96
    A = random_skew(n, norm=1.0, dtype=torch.float32, rng=rng, batch=(batch,))
    A.requires_grad_()
    for _ in range(2):
        torch.autograd.grad(expm_skew(A), A, torch.ones_like(A))
    # the slots, and one block for everything that only a call needs
    assert len(kept_pieces()) == 2


def test_recycled_memory_is_as_new():
    """Recycled memory has no version, history or mode of its last tensor."""
    like = torch.zeros(())
    with torch.inference_mode():
        recycled((300, 1000), like)
    again = recycled((300, 1000), like)
    assert not again.is_inference()
    again.requires_grad_()
    (again * 2).sum().backward()
    # another size, and another dtype with the same number of bytes
    assert recycled((10, 10), like).shape == (10, 10)
    del again
    wide = recycled((300, 500), like.double())
    assert wide.dtype == torch.float64
    wide.fill_(1.0)


def test_the_memory_of_the_optimizers_is_given_back():
    """`release_memory` also frees what the optimizers keep.

    Each thread used to keep memory that `release_memory` did not know of.
    """
    p = nn.Parameter(torch.eye(512))
    p.grad = torch.ones(512, 512).tril()
    RiemannianSGD([p], lr=1e-5, manifold=SO(512)).step()
    assert kept_bytes() > 0
    release_memory()
    assert kept_bytes() == 0
