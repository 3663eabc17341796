"""The boundary to C: a wrong call raises, and never reads or writes other memory."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from isometry._backend import (
    Backend,
    Polynomial,
    Recurrence,
    TimeSteps,
    backend_for,
)
from isometry._backend.constants import HALVED_FROM
from isometry._backend.native import polynomial_table
from isometry._backend.nonlinearities import Sigma
from isometry.linalg._expm.schemes import SCHEMES
from isometry.linalg._expm.schemes import polynomial as polynomial_of
from tests.backend.test_kernels import built

N = 6


def matrices(count: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(count, N, N, dtype=dtype)


def polynomial(
    powers: int = 3, stages: int = 2, *, missing: int = 0, square: bool = False
) -> Polynomial:
    """A scheme with A, A^2 and A^4 and two more products; most coefficients are zero.

    The factor R of stage s lacks its last `missing * s` coefficients. With `square`,
    the last stage is a square.
    """
    rows = []
    for s in range(stages):
        L, R = [0.0] * (1 + powers + s), [0.0] * (1 + powers + s)
        R[-1] = 0.0 if square and s == stages - 1 else 1.0
        rows += [tuple(L), tuple(R)[: len(R) - missing * s]]
    return Polynomial((*rows, (1.0, *[0.0] * (powers + stages - 1))))


def freed() -> Tensor:
    """A tensor as FSDP leaves it: it has a shape, but its storage has no memory."""
    X = matrices()
    X.untyped_storage().resize_(0)
    return X


# torch's own names for the flags of its lazy operations
lazy: Any = torch

WRONG_TENSORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no tensor": (lambda: [0.0] * 36, TypeError, "plain torch.Tensor; got list"),
    "subclass": (lambda: TwoTensor(matrices(), matrices()), TypeError, "got TwoTensor"),
    "dtype": (lambda: matrices(dtype=torch.float64), TypeError, "be of torch.float32"),
    "small": (lambda: matrices()[:, :5], ValueError, "have 36 numbers; got 30"),
    "large": (lambda: matrices(2), ValueError, "have 36 numbers; got 72"),
    "strides": (lambda: matrices().mT, ValueError, "contiguous memory"),
    "device": (lambda: matrices().to("meta"), ValueError, "on the CPU"),
    "negative": (lambda: lazy._neg_view(matrices()), ValueError, "is_neg=True"),
    "freed": (freed, ValueError, "contiguous memory"),
    "zeros": (lambda: lazy._efficientzerotensor((1, N, N)), ValueError, "contiguous"),
}


@pytest.mark.errors
@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_a_wrong_tensor_is_refused(case):
    """A tensor that C cannot read is refused.

    C used to read each of these tensors as if it could, and most crashed.
    """
    make, error, message = WRONG_TENSORS[case]
    native = built(torch.float32)
    wrong, right = make(), matrices()
    if isinstance(wrong, Tensor) and case not in ("small", "large"):
        assert type(backend_for(right, wrong)) is Backend
    with pytest.raises(error, match=message):
        native.multiply(right, wrong)
    if case in ("small", "large") or not isinstance(wrong, Tensor):
        return
    calls = (
        native.skew_adjoint,
        lambda X: native.skew(X, right),
        lambda X: native.skew(right, X),
    )
    for call in calls:
        with pytest.raises(error, match=message):
            call(wrong)


@pytest.mark.errors
def test_the_memory_for_results_is_checked():
    """`skew` and `square` refuse an `out` of the wrong size, which a caller passes in.

    C squares from n = 96 on, so the matrices have that size.
    """
    A = torch.zeros(1, HALVED_FROM, HALVED_FROM)
    with pytest.raises(ValueError, match="`out` must have 9216 numbers; got 9120"):
        built(torch.float32).skew(A, A[:, 1:])
    with pytest.raises(ValueError, match="`out` must have 9216 numbers; got 9120"):
        built(torch.float32).square(A, A[:, 1:])
    with pytest.raises(ValueError, match="`A` must be contiguous"):
        built(torch.float32).square(A.mT, A)


@pytest.mark.errors
@pytest.mark.parametrize("backend", ["C", "torch"])
def test_a_scheme_is_not_a_polynomial(backend):
    """A backend refuses a scheme, whose rows are in the variable A / theta.

    Both backends used to accept it, and computed exp(theta A). A type checker now sees
    the mistake: the comment below would be an error if there were nothing to ignore.
    """
    scheme = SCHEMES[torch.float32][0]
    W = matrices(4)[:, None]
    chosen = built(torch.float32) if backend == "C" else Backend()
    with pytest.raises(AttributeError, match="'Scheme' object has no attribute"):
        chosen.evaluate(W, scheme)  # pyright: ignore[reportArgumentType]
    assert torch.equal(chosen.evaluate(W, polynomial_of(scheme, 0))[0], torch.eye(N))


STEPS = TimeSteps((4, 2, 1))


def recurrence(X: Callable[..., Tensor]) -> Recurrence:
    return Recurrence(X(1)[0], Sigma("modrelu"), X((N,)), X((4, N)), STEPS)


# one valid call of each kernel; the test makes one argument at a time too small
CALLS = {
    "powers": lambda k, X: k.powers(X(5)[:, None], skip_up_to=0.0),
    "evaluate": lambda k, X: k.evaluate(X(5)[:, None], polynomial()),
    "pull_back": lambda k, X: k.pull_back(X(5)[:, None], polynomial(), X(1)),
    "scan": lambda k, X: k.scan(X((7, N)), recurrence(X)),
    "scan_adjoint": lambda k, X: k.scan_adjoint(
        X((7, N)), X((7, N)), recurrence(X), dH=X((7, N)), dh_last=X((4, N))
    ),
}


@pytest.mark.errors
@pytest.mark.parametrize("kernel", CALLS)
def test_each_argument_is_checked(kernel):
    """A kernel refuses a call in which any one argument has too few numbers."""
    call, native = CALLS[kernel], built(torch.float32)
    arguments = []

    def right(size: int | tuple[int, ...]) -> Tensor:
        arguments.append(size)
        return matrices(size) if isinstance(size, int) else torch.zeros(size)

    call(native, right)
    for wrong in range(len(arguments)):
        count = iter(range(len(arguments)))

        def one_less(
            size: int | tuple[int, ...], wrong: int = wrong, count=count
        ) -> Tensor:
            X = matrices(size) if isinstance(size, int) else torch.zeros(size)
            return X[..., :-1].contiguous() if next(count) == wrong else X

        with pytest.raises(ValueError, match="must have"):
            call(native, one_less)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"powers": 1}, "`powers` must be 2 or 3; got 1"),
        ({"stages": 0}, "`stages` must be from 1 to 7; got 0"),
        ({"stages": 7}, "`stages` must be from 1 to 6; got 7"),
        ({"square": True}, "`stages` must end with a stage that is not a square; got"),
        ({"missing": 1}, "`stages` must hold 21 numbers; got 20"),
    ],
    ids=str,
)
def test_a_scheme_that_c_cannot_hold(changes, message):
    with pytest.raises(ValueError, match=message):
        polynomial_table(polynomial(**changes), torch.float32)


@pytest.mark.errors
def test_too_few_slots():
    native = built(torch.float32)
    with pytest.raises(ValueError, match="`W` must have 4 slots or more; got 3"):
        native.evaluate(matrices(3)[:, None], polynomial())
    with pytest.raises(ValueError, match="`W` must have 3 slots or more; got 2"):
        native.powers(matrices(2)[:, None], skip_up_to=0.0)


@pytest.mark.errors
@pytest.mark.parametrize("sizes", [(2, 3, 1), (1, -1)], ids=str)
def test_steps_that_grow_or_are_negative(sizes):
    rows, W, h0 = torch.zeros(sum(sizes), N), matrices()[0], torch.zeros(sizes[0], N)
    with pytest.raises(ValueError, match="`sizes` must neither grow nor be negative"):
        built(torch.float32).scan(
            rows, Recurrence(W, Sigma("tanh"), None, h0, TimeSteps(sizes))
        )


@pytest.mark.errors
def test_the_threshold_of_a_scan():
    """The threshold `b` has a number for each entry or each complex pair of a state."""
    native, W = built(torch.float32), matrices()[0]

    def run(sigma: Sigma, b: Tensor | None) -> None:
        h0 = torch.zeros(4, N)
        native.scan(torch.zeros(7, N), Recurrence(W, sigma, b, h0, STEPS))

    run(Sigma("complex_modrelu"), torch.zeros(3))
    with pytest.raises(TypeError, match=r"`b` must be a plain torch.Tensor; got None"):
        run(Sigma("modrelu"), None)
    with pytest.raises(ValueError, match="`b` must have 3 numbers; got 6"):
        run(Sigma("complex_modrelu"), torch.zeros(N))


@pytest.mark.errors
def test_the_moduli_of_a_scan():
    """Smooth modReLU writes a modulus for each pair of numbers in a state."""
    native, W = built(torch.float32), matrices()[0]

    def run(m: Tensor | None) -> None:
        sigma, b, h0 = Sigma("smooth_modrelu", 1e-5), torch.zeros(3), torch.zeros(4, N)
        native.scan(torch.zeros(7, N), Recurrence(W, sigma, b, h0, STEPS, m))

    run(torch.zeros(7, 3))
    with pytest.raises(TypeError, match=r"`m` must be a plain torch.Tensor; got None"):
        run(None)
    with pytest.raises(ValueError, match="`m` must have 21 numbers; got 42"):
        run(torch.zeros(7, N))


def test_empty_batches_are_right():
    """Batches without numbers have no memory.

    Their address is zero, which C accepts.
    """
    native = built(torch.float32)
    for shape in ((0, N, N), (2, 0, 0), (0, HALVED_FROM, HALVED_FROM)):
        out = torch.full(shape, math.nan)
        native.skew(torch.zeros(shape), out)
        assert native.skew_adjoint(torch.zeros(shape)).shape == shape
        native.square(torch.zeros(shape), out)


@pytest.mark.parametrize("sizes", [(), (0, 0)], ids=str)
def test_a_scan_without_rows(sizes):
    """Without time steps or without sequences, all gradients of a scan are zero.

    The torch backend used to raise IndexError if there were no time steps.
    """
    H, h0 = torch.zeros(0, N), torch.zeros(0, N)
    W = matrices()[0] + 1
    for backend in (Backend(), built(torch.float32)):
        r = Recurrence(W, Sigma("modrelu"), torch.ones(N), h0, TimeSteps(sizes))
        backend.scan(H, r)
        gradients = backend.scan_adjoint(torch.zeros_like(H), H, r, H, h0)
        assert torch.equal(gradients.W, torch.zeros(N, N))
        assert gradients.b is not None
        assert torch.equal(gradients.b, torch.zeros(N))
        assert gradients.h0.shape == h0.shape
