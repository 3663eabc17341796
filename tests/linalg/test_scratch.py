"""Memory that is kept between calls is never seen outside of a call."""

import threading

import pytest
import torch
from torch.testing import assert_close

from isometry.linalg import _scratch, expm_skew
from tests.helpers import random_skew

# 2^19 bytes and more are kept: 4 + 4 slots of this size are 2 MB
N = 256


@pytest.fixture(autouse=True)
def fresh():
    _scratch.release()
    yield
    _scratch.release()


def kept() -> torch.Tensor | None:
    return getattr(_scratch._local, "room", None)


def test_results_do_not_share_the_kept_memory(rng):
    """Value and gradient of one call survive the next calls, to the last bit."""
    A = random_skew(N, norm=3.0, dtype=torch.float32, rng=rng).requires_grad_()
    G = torch.randn(N, N, generator=rng)
    Q = expm_skew(A)
    (g,) = torch.autograd.grad(Q, A, G, retain_graph=True)
    value, gradient = Q.detach().clone(), g.clone()
    room = kept()
    assert room is not None
    room.fill_(255)
    B = random_skew(N, norm=1.0, dtype=torch.float32, rng=rng).requires_grad_()
    torch.autograd.grad(expm_skew(B), B, G)
    assert torch.equal(Q.detach(), value)
    assert torch.equal(g, gradient)
    # and what the graph keeps is not there either
    assert torch.equal(torch.autograd.grad(Q, A, G)[0], gradient)


def test_inference_mode_does_not_spoil_it(rng):
    """A tensor made in inference mode could not be written to afterwards."""
    A = random_skew(N, norm=3.0, dtype=torch.float32, rng=rng)
    with torch.inference_mode():
        inside = expm_skew(A)
    assert_close(expm_skew(A), inside.clone(), rtol=0, atol=0)


def test_threads_have_their_own(rng):
    """Two threads at once give what one after the other gives, to the last bit."""
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


@pytest.mark.parametrize(("n", "is_kept"), [(8, False), (N, True), (1800, False)])
def test_only_sizes_that_gain_are_kept(n, is_kept):
    """Less than 512 kB comes from malloc; more than 64 MB is not held on to."""
    room = _scratch.scratch(torch.empty(1, n, n), 8)
    assert room.shape == (8, 1, n, n)
    assert (kept() is not None) == is_kept


def test_grows_and_is_reused():
    small = _scratch.scratch(torch.empty(1, N, N), 4)
    large = _scratch.scratch(torch.empty(1, N, N, dtype=torch.complex128), 8)
    again = _scratch.scratch(torch.empty(1, N, N), 4)
    assert small.dtype == again.dtype == torch.float32
    assert large.dtype == torch.complex128
    assert large.data_ptr() == again.data_ptr()


def test_recycled_memory_is_what_nobody_holds():
    """A view, a graph or an array that refers to a piece keeps it from being given."""
    _scratch.release()
    like = torch.zeros(())
    shape = (300, 1000)
    first = _scratch.recycled(shape, like)
    address = first.data_ptr()
    row = first[3]
    del first
    assert _scratch.recycled(shape, like).data_ptr() != address
    graph = torch.ones(1000, requires_grad=True) * row
    del row
    assert _scratch.recycled(shape, like).data_ptr() != address
    del graph
    again = _scratch.recycled(shape, like)
    assert again.data_ptr() == address
    array = again.numpy()
    del again
    assert _scratch.recycled(shape, like).data_ptr() != address
    del array
    assert _scratch.recycled(shape, like).data_ptr() == address
    _scratch.release()


def test_recycled_memory_is_as_new():
    """No version, no history, no mode of the tensor that had it before."""
    _scratch.release()
    like = torch.zeros(())
    with torch.inference_mode():
        _scratch.recycled((300, 1000), like)
    again = _scratch.recycled((300, 1000), like)
    assert not again.is_inference()
    again.requires_grad_()
    (again * 2).sum().backward()
    # another size, and another dtype of the same size
    assert _scratch.recycled((10, 10), like).shape == (10, 10)
    del again
    wide = _scratch.recycled((300, 500), like.double())
    assert wide.dtype == torch.float64
    wide.fill_(1.0)
    _scratch.release()
