"""The scan and autograd: derivatives of any order, all modes, and little memory."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.testing import assert_close

from isometry._backend import memory
from isometry._backend.constants import SIGMAS
from isometry._backend.nonlinearities import Sigma
from isometry.nn import _scan
from isometry.nn._scan import Weights, scan
from isometry.nn._sequence import Pass
from tests.helpers import eps
from tests.nn.test_scan import EPSILON, Problem, cotangents, problem, twin

SIZES = (3, 3, 2, 1)


def large(rng: torch.Generator) -> Problem:
    """Arguments so large, 2^19 bytes or more, that their storage is remembered."""
    return problem("modrelu", (32,) * 40, n=64, rng=rng)


def function(p: Problem, *, last_only: bool, chunk: int | None) -> Callable:
    """The scan as a function of the arguments that require a gradient."""
    run = Pass(p.steps, last_only, chunk)

    def call(x: Tensor, T: Tensor, W: Tensor, b: Tensor, h0: Tensor) -> tuple:
        outputs = scan(x, Weights(T, W, b, Sigma(p.sigma, EPSILON)), h0, run)
        return tuple(H for H in outputs if H is not None)

    return call


@pytest.mark.parametrize(
    ("last_only", "chunk"), [(False, None), (True, 2)], ids=["all", "chunks"]
)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_derivatives_are_those_of_differences(sigma, last_only, chunk, engine, rng):
    """First and second derivatives of all five inputs agree with differences."""
    p = problem(sigma, SIZES, rng=rng, n=4, inputs=2)
    call = function(p, last_only=last_only, chunk=chunk)
    assert gradcheck(call, p.inputs)
    # one random direction per test; `test_scan` compares all entries
    assert gradgradcheck(call, p.inputs, fast_mode=True)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_forward_mode_is_the_adjoint_of_reverse_mode(sigma, engine, rng):
    """<G, J E> = <J^T G, E>, by dual numbers and by torch.func."""
    p = problem(sigma, SIZES, rng=rng)
    call = function(p, last_only=True, chunk=2)
    (out,) = call(*p.inputs)
    (G,) = cotangents([out], rng)
    E = cotangents(p.inputs, rng)
    gradients = torch.autograd.grad(out, p.inputs, G)
    expected = sum((g * e).sum() for g, e in zip(gradients, E, strict=True))
    primals = tuple(X.detach() for X in p.inputs)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(X, e) for X, e in zip(primals, E, strict=True)]
        tangent = forward_ad.unpack_dual(call(*duals)[0]).tangent
    same = torch.func.jvp(call, primals, tuple(E))[1][0]
    assert tangent is not None
    assert_close((G * tangent).sum(), expected)
    assert_close(same, tangent)


def test_vmap_is_a_loop(rng):
    """vmap over inputs, and over gradients of weights (an ensemble), is a loop."""
    p = problem("modrelu", SIZES, rng=rng)
    x, *rest = (X.detach() for X in p.inputs)
    call = function(p, last_only=False, chunk=None)
    many = torch.randn(5, *x.shape, dtype=x.dtype, generator=rng)
    result = torch.func.vmap(lambda x: call(x, *rest)[0])(many)
    assert_close(result, torch.stack([call(x, *rest)[0] for x in many]))

    def loss(W: Tensor) -> Tensor:
        return call(x, rest[0], W, *rest[2:])[0].square().sum()

    W = torch.randn(5, *rest[1].shape, dtype=x.dtype, generator=rng) / 2
    gradients = torch.func.vmap(torch.func.grad(loss))(W)
    for one, gradient in zip(W.requires_grad_().unbind(), gradients, strict=True):
        assert_close(torch.autograd.grad(loss(one), one)[0], gradient)


def test_jacobian_in_one_call(engine, rng):
    """`is_grads_batched` computes many rows of the Jacobian at once."""
    p = problem("tanh", SIZES, rng=rng)
    last = p.run()[1]
    basis = torch.eye(last.numel(), dtype=last.dtype).view(-1, *last.shape)
    (jacobian,) = torch.autograd.grad(
        last, p.h0, basis, is_grads_batched=True, retain_graph=True
    )
    rows = [torch.autograd.grad(last, p.h0, g, retain_graph=True)[0] for g in basis]
    assert_close(jacobian, torch.stack(rows))


@pytest.mark.parametrize("sizes", [(5,) * 9, (5, 5, 4, 2, 1), (1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_threads_take_their_own_sequences(sigma, sizes, rng):
    """Two threads give the states of one; only sums of gradients have another order."""
    p = problem(sigma, sizes, rng=rng)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outputs = p.run()
            G = [torch.ones_like(H) for H in outputs]
            results.append([*outputs, *torch.autograd.grad(outputs, p.inputs, G)])
    finally:
        torch.set_num_threads(before)
    assert_close(results[1], results[0])
    assert_close(results[2], results[0])


def saved_bytes(run: Callable[[], object]) -> int:
    """Bytes that a graph saves; a tensor that is saved twice counts once."""
    sizes: dict[int, int] = {}

    def pack(X: Tensor) -> Tensor:
        storage = X.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return X

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda X: X):
        alive = run()
    del alive
    return sum(sizes.values())


def test_chunks_keep_one_state_in_so_many(engine, monkeypatch, rng):
    """T / chunk states are saved; the backward pass has room for `chunk` at a time."""
    T, batch, n, chunk = 64, 3, 8, 8
    p = problem("modrelu", (batch,) * T, rng=rng, n=n)
    state = batch * n * 8
    all_of_them = saved_bytes(lambda: p.run(last_only=True))
    some = saved_bytes(lambda: p.run(last_only=True, chunk=chunk))
    # saved are all states and the initial one, or else the state before each chunk
    assert all_of_them - some == (T + 1 - T // chunk) * state
    rows = []

    def spy(shape: tuple[int, int], like: Tensor) -> Tensor:
        rows.append(shape[0])
        return like.new_empty(shape)

    monkeypatch.setattr(_scan, "recycled", spy)
    p.run(last_only=True, chunk=chunk)[0].sum().backward()
    assert max(rows) == chunk * batch
    # once forward, and twice backward: the states again, and their gradients
    assert len(rows) == 3 * T // chunk


def test_memory_is_not_taken_from_who_holds_it(engine, rng):
    """Outputs and graphs of twelve calls keep their values.

    Memory that they hold is not given to a later call.
    """
    memory.release_memory()
    p = large(rng)
    held, copies, gradients = [], [], []
    for _ in range(12):
        q = large(rng)
        H, last = q.run()
        G = torch.ones_like(H)
        copies.append([H.detach().clone(), last.detach().clone()])
        gradients.append(torch.autograd.grad(H, q.inputs, G, retain_graph=True))
        held.append((q, H, last))
        # a training step in between, whose memory is recycled at once
        p.run()[0].sum().backward()
    for (q, H, last), copy, gradient in zip(held, copies, gradients, strict=True):
        assert torch.equal(H, copy[0])
        assert torch.equal(last, copy[1])
        again = torch.autograd.grad(H, q.inputs, torch.ones_like(H))
        assert_close(again, gradient, rtol=0, atol=0)
    memory.release_memory()


def test_a_training_step_needs_no_new_memory(engine, rng):
    """States and gradients of a step reuse the memory of the step before."""
    memory.release_memory()
    p = large(rng)
    places = set()
    for _ in range(5):
        H = p.run()[0]
        places.add(H.data_ptr())
        H.sum().backward()
        del H
    assert len(places) <= 2
    memory.release_memory()


def test_a_graph_lasts_as_long_as_torch_says(engine, rng):
    p = problem("tanh", SIZES, rng=rng)
    H, _ = p.run()
    first = torch.autograd.grad(H.sum(), p.inputs, retain_graph=True)
    second = torch.autograd.grad(H.sum(), p.inputs)
    assert_close(first, second, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(H.sum(), p.inputs)


def test_states_that_were_changed_are_no_basis_for_gradients(engine, rng):
    """Changing the states before the backward pass raises torch's own error.

    Otherwise the gradient would belong to other states.
    """
    p = problem("tanh", SIZES, rng=rng)
    H, _ = p.run()
    H.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        H.sum().backward()
    _, last = p.run()
    # the last states are copies, so torch allows changes
    last.mul_(2)
    gradients = torch.autograd.grad(last.sum(), p.inputs)
    expected = torch.autograd.grad(2 * twin(p)[1].sum(), p.inputs)
    assert_close(gradients, expected)


def test_half_precision_is_torchs(rng):
    """bfloat16 is computed by torch's operations, to the accuracy of the dtype."""
    p = problem("modrelu", (4,) * 10, rng=rng, dtype=torch.bfloat16)
    H = p.run()[0]
    wide = {k: getattr(p, k).double() for k in ("x", "T", "W", "b", "h0")}
    exact = twin(replace(p, **wide))[0]
    assert H.dtype == torch.bfloat16
    # 16: twice the worst over 100 seeds, 8.1
    assert torch.dist(H.double(), exact) <= 16 * eps(H.dtype) * exact.norm()
    H.sum().backward()
    assert p.W.grad is not None
    assert p.W.grad.isfinite().all()
