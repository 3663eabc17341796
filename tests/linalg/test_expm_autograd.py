"""The exponential of skew matrices under torch's transforms, modes and compilers."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.linalg import matrix_exp, matrix_norm
from torch.testing import assert_close

from isometry.linalg._expm import autograd
from isometry.linalg._expm_skew import (
    expm_skew,
    expm_skew_adjoint,
    expm_skew_frechet,
)
from isometry.linalg._skew import skew
from tests.helpers import DTYPES, eps, gradcheck_options, random_skew
from tests.linalg import reference

METHODS = ["products", "eigh", "pade"]
DOUBLE = [torch.float64, torch.complex128]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_is_the_skew_part_of_the_ambient_one(dtype, method, rng):
    """The gradient is (g - g^H) / 2, g by torch.matrix_exp; skew to the last bit."""
    A = random_skew(5, norm=3.0, dtype=dtype, rng=rng, batch=(2,)).requires_grad_()
    G = torch.randn(2, 5, 5, dtype=dtype, generator=rng)
    (ours,) = torch.autograd.grad(expm_skew(A, method=method), A, G)
    (theirs,) = torch.autograd.grad(matrix_exp(A), A, G)
    assert torch.equal(ours, -ours.mH)
    # 7.2: twice the worst over 40 seeds, 3.6 (complex128), torch's share included
    tol = 7.2 * 3 * eps(dtype) * matrix_norm(G).amax()
    assert matrix_norm(ours - (theirs - theirs.mH) / 2).amax() <= tol


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("norm", [0.01, 1.0, 6.0])
def test_gradients_of_any_order(norm, dtype, method, rng):
    """Reverse, forward, batched and second derivatives agree with differences."""
    X = torch.randn(2, 3, 3, dtype=dtype, generator=rng)
    X = (X * norm / matrix_norm(X, 2, keepdim=True)).requires_grad_()

    def f(X: Tensor) -> Tensor:
        return expm_skew(skew(X), method=method)

    how = gradcheck_options(dtype)
    assert gradcheck(f, X, check_forward_ad=True, **how)
    assert gradgradcheck(f, X[0], check_fwd_over_rev=True, **how)


@pytest.mark.parametrize("method", METHODS)
def test_many_cotangents_at_once(method, rng):
    """Gradients of many cotangents at once agree with one gradient for each."""
    A = random_skew(3, norm=9.0, dtype=torch.float64, rng=rng).requires_grad_()
    G = torch.randn(4, 3, 3, dtype=torch.float64, generator=rng)
    Q = expm_skew(A, method=method)
    each = [torch.autograd.grad(Q, A, g, retain_graph=True)[0] for g in G]
    (together,) = torch.autograd.grad(Q, A, G, is_grads_batched=True)
    assert_close(together, torch.stack(each))


# derivatives of first to third order in both modes; the test also maps each by vmap
TRANSFORMS = {
    "grad": grad,
    "jacrev(jacrev)": lambda f: jacrev(jacrev(f)),
    "jacfwd(jacrev)": lambda f: jacfwd(jacrev(f)),
    "jacrev(jacfwd)": lambda f: jacrev(jacfwd(f)),
    "jacfwd(jacfwd)": lambda f: jacfwd(jacfwd(f)),
    "hessian": hessian,
    "jacfwd(hessian)": lambda f: jacfwd(hessian(f)),
    "jacrev(jacrev(jacrev))": lambda f: jacrev(jacrev(jacrev(f))),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_those_of_matrix_exp(transform, method, rng):
    """Every derivative of f(exp(skew X)) agrees with torch's, also inside of vmap.

    torch 2.13 drops the outer tangent of an autograd function in jvp of jvp: if x^3 is
    written as such a function, its second derivative is 4x instead of 6x. And
    jacrev(jacfwd) of torch.linalg.solve, which `pade` used to call, was off by up to
    5e4 on 3 x 3 matrices.
    """
    f, expected = (
        lambda X, exp=exp: (exp(skew(X)) * C).cos().sum()
        for exp in (partial(expm_skew, method=method), matrix_exp)
    )
    C = torch.randn(3, 3, dtype=torch.float64, generator=rng)
    X = torch.randn(2, 3, 3, dtype=torch.float64, generator=rng)
    apply = TRANSFORMS[transform]
    assert_close(apply(f)(X[0]), apply(expected)(X[0]), rtol=1e-10, atol=1e-10)
    result = vmap(apply(f))(X)
    assert_close(result, vmap(apply(expected))(X), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_vmap_over_any_axis(dtype, method, rng):
    """vmap(exp) is exp of the batch, along axes 0, 1 and -1, nested, and inside jvp."""
    f = partial(expm_skew, method=method)
    A = random_skew(4, norm=9.0, dtype=dtype, rng=rng, batch=(2, 3))
    E = random_skew(4, norm=1.0, dtype=dtype, rng=rng, batch=(2, 3))
    # rounding differs with the layout
    close = partial(assert_close, rtol=0, atol=300 * eps(dtype))
    Q = f(A)
    close(vmap(f)(A), Q)
    close(vmap(f, in_dims=1)(A), Q.transpose(0, 1))
    close(vmap(f, in_dims=-1, out_dims=-1)(A.movedim(0, -1)), Q.movedim(0, -1))
    close(vmap(vmap(f))(A), Q)
    close(vmap(vmap(f, in_dims=1), in_dims=1)(A[None]), Q[None].movedim((2, 1), (1, 0)))

    def push(A: Tensor, E: Tensor) -> Tensor:
        return jvp(f, (A,), (E,))[1]

    L = expm_skew_frechet(A, E)[1]
    close(push(A, E), L)
    close(vmap(push)(A, E), L)
    close(vmap(push, in_dims=(1, 1), out_dims=1)(A, E), L)
    close(vmap(push, in_dims=(None, 0))(A[0], E), expm_skew_frechet(A[[0, 0]], E)[1])

    def pull(A: Tensor, G: Tensor) -> Tensor:
        return vjp(f, A)[1](G)[0]

    g = expm_skew_adjoint(A, E)[1]
    close(vmap(pull)(A, E), g)
    close(vmap(pull, in_dims=(1, -1), out_dims=1)(A, E.movedim(1, -1)), g)
    close(vmap(pull, in_dims=(None, 0))(A[0], E), expm_skew_adjoint(A[[0, 0]], E)[1])
    close(vmap(pull, in_dims=(0, None))(A, E[0]), expm_skew_adjoint(A, E[[0, 0]])[1])


@pytest.mark.parametrize("method", METHODS)
def test_double_backward(method, rng):
    """With create_graph the gradient has a graph, and is the same up to rounding."""
    A = random_skew(4, norm=3.0, dtype=torch.float64, rng=rng).requires_grad_()
    G = torch.randn(4, 4, dtype=torch.float64, generator=rng, requires_grad=True)
    H = random_skew(4, norm=1.0, dtype=torch.float64, rng=rng)
    seconds = []
    for f in (partial(expm_skew, method=method), matrix_exp):
        (g,) = torch.autograd.grad(f(A), A, G, create_graph=True)
        seconds.append(torch.autograd.grad((g * H).sum(), (A, G)))
    (a, c), (a_torch, c_torch) = seconds
    assert_close(a, (a_torch - a_torch.mT) / 2)
    assert_close(c, c_torch)
    # g is linear in G, so the gradient of <g, H> for G is the derivative of exp along H
    assert_close(c, expm_skew_frechet(A, H)[1])


@pytest.mark.parametrize("method", METHODS)
def test_backward_twice(method, rng):
    """A graph serves any number of backward passes, with the same result."""
    A = random_skew(4, norm=9.0, dtype=torch.float32, rng=rng).requires_grad_()
    G = torch.randn(4, 4, generator=rng)
    Q = expm_skew(A, method=method)
    first, second = (torch.autograd.grad(Q, A, G, retain_graph=True)[0] for _ in "12")
    assert torch.equal(first, second)
    (recorded,) = torch.autograd.grad(Q, A, G, create_graph=True)
    # the same number, computed by differentiable operations
    assert_close(recorded, first, rtol=0, atol=200 * eps(A.dtype))


def test_unused_and_frozen_inputs(rng):
    """Without a gradient to compute there is no graph, in any of the modes."""
    A = random_skew(3, norm=1.0, dtype=torch.float32, rng=rng)
    assert not expm_skew(A).requires_grad
    B = A.clone().requires_grad_()
    with torch.no_grad():
        assert not expm_skew(B).requires_grad
    with torch.inference_mode():
        Q = expm_skew(B)
        assert Q.is_inference()
    assert torch.equal(Q, expm_skew(A))
    assert torch.equal(expm_skew(B).detach(), expm_skew(A))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout(dtype, method, rng):
    """Inputs and cotangents of any memory layout give the results of plain ones."""
    A = random_skew(4, norm=2.0, dtype=dtype, rng=rng, batch=(3,))
    G = torch.randn(3, 4, 4, dtype=dtype, generator=rng)
    wider = torch.zeros(3, 8, 8, dtype=dtype)
    wider[:, ::2, ::2] = A
    # transposed, conjugated, strided, expanded; the loop compares each with its clone
    layouts = [A.mT, A.mH, A.conj(), A.movedim(0, -1).contiguous().movedim(-1, 0)]
    layouts += [wider[:, ::2, ::2], A[0].expand(3, 4, 4), -A.conj(), A[:, None][:, 0]]
    for B in layouts:
        for C in (G.mT, G[0].expand(3, 4, 4), G.sum().expand(3, 4, 4), G.conj()):
            leaf, plain = (X.detach().requires_grad_() for X in (B, B.clone()))
            Q, expected = (expm_skew(X, method=method) for X in (leaf, plain))
            assert_close(Q, expected)
            (g,) = torch.autograd.grad(Q, leaf, C)
            assert_close(g, torch.autograd.grad(expected, plain, C.clone())[0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_from_float32(dtype, method, rng):
    """exp(A) and its gradient are those in float32, cast back."""
    A = random_skew(6, norm=1.0, dtype=torch.float32, rng=rng).to(dtype)
    G = torch.randn(6, 6, generator=rng).to(dtype)
    half, full = (X.clone().requires_grad_() for X in (A, A.float()))
    Q, expected = (expm_skew(X, method=method) for X in (half, full))
    assert torch.equal(Q, expected.to(dtype))
    (g,) = torch.autograd.grad(Q, half, G)
    assert torch.equal(g, torch.autograd.grad(expected, full, G.float())[0].to(dtype))
    for f in (expm_skew_frechet, expm_skew_adjoint):
        for result, single in zip(f(A, G), f(A.float(), G.float()), strict=True):
            assert torch.equal(result, single.to(dtype))


@pytest.mark.parametrize("method", METHODS)
def test_autocast_does_not_touch_it(method, rng):
    """Inside torch.autocast the results have the same bits as outside.

    At norm 9, above the first squaring, the value used to be off by 3e-3.
    """
    A = random_skew(5, norm=9.0, dtype=torch.float32, rng=rng).requires_grad_()
    E = random_skew(5, norm=1.0, dtype=torch.float32, rng=rng)

    def everything() -> list[Tensor]:
        Q = expm_skew(A, method=method)
        L = jvp(partial(expm_skew, method=method), (A.detach(),), (E,))[1]
        results = [Q, L, *expm_skew_frechet(A, E), *expm_skew_adjoint(A, E)]
        # the backward pass of pade consists of torch's operations, which autocast
        # changes
        if method != "pade":
            results += torch.autograd.grad(Q, A, E)
        return results

    # plans are the same too: these norms are close to where plans change
    near = random_skew(32, norm=3.3, dtype=torch.float32, rng=rng, batch=(40,))
    near = near * torch.linspace(0.9, 1.1, 40)[:, None, None]
    expected = expm_skew(near, method=method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(expm_skew(near, method=method), expected)
        inside = everything()
    assert all(torch.equal(x, y) for x, y in zip(inside, everything(), strict=True))


# torch 2.7 warns about complex numbers
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code gen")
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_serves_every_norm(no_shape_hook, backend, dtype, rng):
    """One compiled graph serves norms with different plans, forward and backward.

    NaN stays NaN.
    """
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(expm_skew, fullgraph=True, backend=counter)
    for norm in (0.01, 1.0, 10.0, 100.0, math.nan):
        A = random_skew(4, norm=norm, dtype=dtype, rng=rng, batch=(2,))
        G = torch.randn(2, 4, 4, dtype=dtype, generator=rng)
        A.requires_grad_()
        Q, expected = compiled(A), expm_skew(A)
        assert_close(Q, expected, equal_nan=True)
        (g,) = torch.autograd.grad(Q, A, G)
        assert_close(g, torch.autograd.grad(expected, A, G)[0], equal_nan=True)
    assert counter.frame_count == 1


@pytest.mark.parametrize("method", METHODS)
def test_other_doors_compile(no_shape_hook, method, rng):
    """`norm_bound` and the other methods compile to one graph with its gradient."""

    def f(X: Tensor) -> Tensor:
        bound = 50.0 if method == "products" else None
        return expm_skew(skew(X), method=method, norm_bound=bound).cos()

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    X = torch.randn(2, 4, 4, generator=rng, requires_grad=True)
    assert_close(compiled(X), f(X))
    (g,) = torch.autograd.grad(compiled(X).sum(), X)
    assert_close(g, torch.autograd.grad(f(X).sum(), X)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bound", [None, 5.0])
# torch 2.15 reads `.grad` of its own intermediate results
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_custom_ops_keep_the_rules_of_torch(dtype, bound, no_shape_hook, rng):
    """The operators pass opcheck: schema, fake kernels, autograd registration, AOT.

    In the first call of a graph torch 2.13 ignores lazy conjugation of sums: there the
    complex adjoint was off by 0.07.
    """
    A = random_skew(3, norm=4.0, dtype=dtype, rng=rng, batch=(2,)).requires_grad_()
    torch.library.opcheck(torch.ops.isometry.expm_skew, (A, bound))
    Q, W, plan = autograd._expm_op(A.detach(), bound)
    torch.library.opcheck(torch.ops.isometry.expm_skew_adjoint, (W, plan, Q))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [0.0, 0.1, 3.0, 30.0])
def test_frechet_is_the_corner_of_the_doubled_exponential(norm, dtype, rng):
    """exp [[A, E], [0, A]] = [[exp A, L], [0, exp A]], whether E is skew or not."""
    A = random_skew(6, norm=norm, dtype=dtype, rng=rng)
    X = torch.randn(6, 6, dtype=dtype, generator=rng)
    for E in (X, X - X.mH):
        Q, L = expm_skew_frechet(A, E)
        Q_ref, L_ref = reference.frechet(A, E)
        # 4.9: twice the worst over 40 seeds, 2.4 (complex128, norm 0.1)
        tol = 4.9 * eps(dtype) * max(1.0, norm)
        assert matrix_norm(Q - Q_ref) <= tol * 6**0.5
        assert matrix_norm(L - L_ref) <= tol * matrix_norm(E)
        # SciPy's own error is 8 eps norm at norm 3, and more above
        if norm <= 3:
            Q_ref, L_ref = reference.frechet_scipy(A, E)
            assert matrix_norm(Q - Q_ref) <= 4 * tol * 6**0.5
            assert matrix_norm(L - L_ref) <= 4 * tol * matrix_norm(E)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [0.1, 3.0, 30.0])
def test_adjoint_is_the_adjoint(norm, dtype, rng):
    """<G, L(A, E)> = <adjoint(A, G), E> for skew E, real part if complex."""
    A, E = random_skew(6, norm=norm, dtype=dtype, rng=rng, batch=(2,)).unbind()
    G = torch.randn(6, 6, dtype=dtype, generator=rng)
    Q, g = expm_skew_adjoint(A, G)
    Q_frechet, L = expm_skew_frechet(A, E)
    # twice the worst over 40 seeds: 0.9 and 1.2
    unit = eps(dtype) * max(1.0, norm)
    left, right = (G.conj() * L).sum().real, (g.conj() * E).sum().real
    assert abs(left - right) <= 1.8 * unit * matrix_norm(G) * matrix_norm(E)
    assert matrix_norm(Q - Q_frechet) <= 2.4 * unit * 6**0.5
    assert_close(Q, expm_skew(A), rtol=0, atol=0)
    assert torch.equal(g, -g.mH)


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
def test_gradient_of_the_paper_with_its_sign_corrected(dtype, rng):
    """grad = Q dexp_{-A}((Q^H G - G^H Q) / 2).

    With the sign printed in the paper it would be off by 20 at n = 5.
    """
    A = random_skew(5, norm=3.0, dtype=dtype, rng=rng)
    G = torch.randn(5, 5, dtype=dtype, generator=rng)
    Q, g = expm_skew_adjoint(A, G)
    expected = Q @ expm_skew_frechet(-A, (Q.mH @ G - G.mH @ Q) / 2)[1]
    # 4.5: twice the worst over 40 seeds, 2.2 (complex128)
    assert matrix_norm(g - expected) <= 4.5 * eps(dtype) * matrix_norm(G)
    assert matrix_norm(g + expected) > matrix_norm(g)


@pytest.mark.parametrize("f", [expm_skew_frechet, expm_skew_adjoint])
def test_value_and_derivative_are_differentiable(f, rng):
    """gradcheck of (A, E) -> (Q, L) and of (A, G) -> (Q, gradient)."""
    X = torch.randn(2, 3, 3, dtype=torch.float64, generator=rng, requires_grad=True)
    Y = torch.randn(2, 3, 3, dtype=torch.float64, generator=rng, requires_grad=True)
    assert gradcheck(lambda X, Y: f(skew(X), Y), (X, Y))
