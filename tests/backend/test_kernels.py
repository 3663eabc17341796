"""The C kernels against torch's operations.

`make test` runs tests/linalg twice, with these kernels and without.
"""

import ctypes
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from isometry._backend import Backend, NativeBackend, backend_for, power_sums
from isometry._backend.constants import HALVED_FROM, SIGMAS
from isometry._backend.library import c_library, raw
from isometry._backend.native import CRecurrence, native_backend
from isometry._backend.recurrence import TimeSteps
from isometry.groups import Exp
from isometry.linalg._expm.schemes import SCHEMES, polynomial
from isometry.linalg._skew import skew
from tests.helpers import random_skew

rotation = Exp().around

REAL = [torch.float32, torch.float64]

# Sizes around the blocks of a transpose (16), the first panels (96) and thick panels
# (512), and one that is large enough for threads (256).
SIZES = [1, 2, 15, 16, 17, 95, 96, 97, 257, 520]


def built(dtype: torch.dtype) -> NativeBackend:
    """The backend in C; a machine that runs this suite has a compiler."""
    native = native_backend(dtype)
    assert native is not None, "`cc` must be installed; the log says more"
    return native


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("sign", [-1, 1], ids=["skew", "symmetric"])
def test_square(sign, n, batch, dtype, rng):
    X = torch.randn(batch, n, n, dtype=dtype, generator=rng)
    A = (X + sign * X.mT) / n**0.5
    out = torch.full_like(A, math.nan)
    built(dtype).square(A, out)
    # these are the same sums in another order
    assert_close(out, A @ A)
    if n >= HALVED_FROM:
        assert torch.equal(out, out.mT)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", SIZES)
def test_skew_and_its_adjoint(n, batch, dtype, rng):
    """`skew` and its adjoint agree with torch to the last bit, and write every entry.

    Fresh memory holds NaN in the tests.
    """
    X = torch.randn(batch, n, n, dtype=dtype, generator=rng)
    for backend in (built(dtype), Backend()):
        L, A = X.tril(-1), torch.empty_like(X)
        backend.skew(X, A)
        assert torch.equal(A, L - L.mT)
        assert torch.equal(backend.skew_adjoint(X), (X - X.mT).tril(-1))


SCHEME_CASES = [(dtype, scheme) for dtype in REAL for scheme in SCHEMES[dtype]]


@pytest.mark.parametrize(
    ("dtype", "scheme"), SCHEME_CASES, ids=lambda x: str(getattr(x, "theta", x))
)
@pytest.mark.parametrize("n", SIZES[1:])
def test_a_polynomial_in_one_call(n, dtype, scheme, rng):
    """Value, slots and gradient of a polynomial are those of torch's operations."""
    A = random_skew(n, norm=scheme.theta, dtype=dtype, rng=rng)[None]
    G = torch.randn(A.shape, dtype=dtype, generator=rng) / n
    results = []
    for backend in (built(dtype), Backend()):
        W = torch.full((5, *A.shape), math.nan, dtype=dtype)
        W[0], W[1], W[2] = A, A @ A, A @ A @ A @ A
        Q = backend.evaluate(W, polynomial(scheme, 1))
        g = backend.pull_back(W, polynomial(scheme, 1), G)
        results.append((Q, g, W[: scheme.products].nan_to_num()))
    (Q, g, W), (Q2, g2, W2) = results
    # twice the worst over 20 seeds (2 seeds at n = 520), for MKL's code paths and the
    # scrambled BLAS: 1.75 for the value and 2.3 for the gradient, both at n = 520
    unit = torch.finfo(dtype).eps
    assert (Q - Q2).norm() <= 3.5 * n**0.5 * unit
    assert (g - g2).norm() <= 5 * unit * G.norm()
    assert_close(W, W2)
    assert torch.equal(g, -g.mT)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_powers_in_one_call(n, dtype, rng):
    """The kernel computes A^2 and A^4 with their inner products.

    It leaves out A^4 if all angles are tiny.
    """
    A = random_skew(n, norm=2.0, dtype=dtype, rng=rng)[None]
    native = built(dtype)
    W = A.new_empty((5, *A.shape))
    W[0] = A
    sums = native.powers(W, skip_up_to=1e-12)
    if n == 1:
        assert sums is None
        return
    assert torch.equal(W[0], A)
    assert_close(W[1], A @ A)
    assert_close(W[2], A @ A @ A @ A)
    pair = torch.stack([A @ A, A @ A @ A @ A])
    assert sums == pytest.approx(power_sums(pair), rel=1e-5)
    W[1] = math.nan
    assert native.powers(W, skip_up_to=16.0 * n) is None
    assert_close(W[1], A @ A)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_so(value):
    """NaN in one matrix of a batch stays in that matrix."""
    A = torch.zeros(2, 128, 128)
    A[0, 100, 3], A[0, 3, 100] = value, -value
    out = torch.empty_like(A)
    backend_for(A, out).square(A, out)
    assert not out[0, 100].isfinite().all()
    assert torch.equal(out[1], A[1])
    assert torch.equal(skew(A)[0, 100, 3].isfinite(), torch.tensor(data=False))


@pytest.mark.parametrize("shape", [(128, 128), (2, 3, 64, 64)], ids=str)
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_skew_is_differentiable(shape, dtype, rng):
    """First and second derivatives of `skew`, for gradients contiguous or not."""
    X = torch.randn(shape, dtype=dtype, generator=rng).requires_grad_()
    G = torch.randn(shape, dtype=dtype, generator=rng)
    expected = (G - G.mT).tril(-1)
    for gradient in (G, G.mT.contiguous().mT):
        (g,) = torch.autograd.grad(skew(X), X, gradient)
        assert torch.equal(g, expected)
    G.requires_grad_()
    (g,) = torch.autograd.grad(skew(X), X, G, create_graph=True)
    (back,) = torch.autograd.grad(g, G, X.detach())
    assert torch.equal(back, skew(X.detach()))


def test_tensors_that_do_not_fit(rng):
    """Torch computes if C cannot read the strides, dtype or device of a tensor."""
    X = torch.randn(256, 256, generator=rng)
    assert isinstance(backend_for(X), NativeBackend)
    for Y in (X.mT, X[::2, ::2], X.to(torch.bfloat16), X + 1j * X, X.to("meta")):
        assert type(backend_for(Y)) is Backend
        assert type(backend_for(X, None, Y)) is Backend
    assert type(backend_for(X, X.double())) is Backend
    assert torch.equal(skew(X.mT), skew(X.mT.contiguous()))
    assert torch.equal(skew(X[::2, ::2]), skew(X[::2, ::2].contiguous()))
    assert skew(X.to("meta")).is_meta


@pytest.mark.parametrize("n", [130, 300, 512])
def test_threads_agree(n, rng):
    """One thread and two threads give the same weight and gradient of a layer."""
    X = random_skew(n, norm=3.0, dtype=torch.float32, rng=rng).requires_grad_()
    B = torch.linalg.qr(torch.randn(n, n, generator=rng)).Q.contiguous()
    G = torch.randn(n, n, generator=rng)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            Q = rotation(X, B)
            results.append((Q, *torch.autograd.grad(Q, X, G)))
    finally:
        torch.set_num_threads(before)
    # the number of threads decides where panels are cut, and so the order of sums
    assert_close(*results)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_tanh(dtype, rng):
    """tanh is right to three units in the last place, odd, and 1 at infinity.

    It is NaN at NaN. With an old glibc it used to be computed number by number.
    """
    size = 10 ** (-9 * torch.rand(30000, dtype=torch.float64, generator=rng))
    x = 20 * torch.randn(30000, dtype=torch.float64, generator=rng) * size
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, 9.5, 20.0, -30.0, 1e-30]
    x = torch.cat([x, torch.linspace(-12, 12, 30000, dtype=x.dtype), x.new(edges)])
    x = x.to(dtype)
    h = x.clone()
    starts, sizes, length = TimeSteps((1,)).arguments
    nothing = ctypes.cast(ctypes.CFUNCTYPE(None)(lambda: None), ctypes.c_void_p)
    library = c_library()
    assert library is not None
    recurrence = CRecurrence(
        starts=ctypes.addressof(starts),
        sizes=ctypes.addressof(sizes),
        length=length,
        n=len(x),
        sigma=SIGMAS["tanh"],
        threads=1,
    )
    raw(library, dtype).scan(nothing, ctypes.byref(recurrence), h.data_ptr())
    exact = np.tanh(x.numpy().astype(np.longdouble))
    assert_close(h, torch.tanh(x), equal_nan=True)
    assert torch.equal(h.signbit()[:-10], x.signbit()[:-10])
    assert h[-10:-5].nan_to_num(7).tolist() == [0, 0, 1, -1, 7]
    units = abs(h.numpy() - exact) / np.spacing(abs(exact).astype(h.numpy().dtype))
    # measured over 3 million numbers: 1.9 in float32, 2.1 in float64
    assert np.nanmax(units) <= 3
