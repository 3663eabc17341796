"""Tensors of subclasses, with memory of their own or, like DTensor, without."""

from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

from isometry.groups import Exp
from isometry.linalg import expm_skew, expm_skew_frechet, skew
from tests.helpers import PlainSubclass, random_skew

rotation = Exp().around


class Wrapped(Tensor):
    """A subclass without memory: each operation is done on the tensor inside."""

    inner: Tensor

    def __new__(cls, inner: Tensor) -> Self:
        wrapper: Any = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype
        )
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(X: Any) -> Any:
            return X.inner if isinstance(X, cls) else X

        def wrap(X: Any) -> Any:
            return cls(X) if isinstance(X, Tensor) else X

        args, kwargs = tree_map(unwrap, (args, kwargs or {}))
        return tree_map(wrap, func(*args, **kwargs))


MAKE = {
    "named": lambda A: A.as_subclass(PlainSubclass),
    "wrapped": Wrapped,
    "two": lambda A: TwoTensor(A, A.clone()),
}


def plain(X: Tensor) -> Tensor:
    """The plain tensor behind a subclass."""
    if isinstance(X, TwoTensor):
        assert torch.equal(X.a, X.b)
        return X.a
    return X.inner if isinstance(X, Wrapped) else X.as_subclass(Tensor)


@pytest.mark.parametrize("n", [6, 64, 128])
@pytest.mark.parametrize("kind", MAKE)
def test_the_exponential_of_a_subclass(kind, n, rng):
    """Value and gradient of a subclass agree with the plain matrix.

    It used to crash (SIGSEGV).
    """
    A = random_skew(n, norm=2.0, dtype=torch.float32, rng=rng)
    G = torch.randn(n, n, generator=rng)
    B = torch.linalg.qr(torch.randn(n, n, generator=rng)).Q.contiguous()
    for function in (expm_skew, lambda A: expm_skew(A[None])[0], skew):
        X, Y = A.clone().requires_grad_(), MAKE[kind](A.clone()).requires_grad_()
        value, expected = function(Y), function(X)
        assert type(value) is type(Y)
        (g,) = torch.autograd.grad(value, Y, MAKE[kind](G))
        (g_expected,) = torch.autograd.grad(expected, X, G)
        # measured: up to 1e-6 by eigenvectors and 3e-6 by products (n = 128)
        assert_close(plain(value.detach()), expected.detach(), rtol=0, atol=1e-5)
        assert_close(plain(g), g_expected, rtol=1e-5, atol=1e-5)
    Q = rotation(MAKE[kind](A), MAKE[kind](B))
    assert_close(plain(Q), rotation(A, B), rtol=0, atol=1e-5)


@pytest.mark.errors
def test_a_derivative_of_a_wrapper_says_what_to_do(rng):
    A = Wrapped(random_skew(4, norm=1.0, dtype=torch.float32, rng=rng))
    with pytest.raises(TypeError, match=r"`A` must be a plain tensor.*full_tensor"):
        expm_skew_frechet(A, A)


def test_counters_of_flops_see_the_products(rng):
    """A mode that counts torch's operations sees all products; C would hide them."""
    from torch.utils.flop_counter import FlopCounterMode

    n = 64
    A = random_skew(n, norm=1.0, dtype=torch.float32, rng=rng)
    with FlopCounterMode(display=False) as counter:
        expm_skew(A)
    # A^2, A^4 and P_3; torch does not count the last product, which adds in place
    assert counter.get_total_flops() >= 3 * 2 * n**3
