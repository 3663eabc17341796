"""The boundary to C: a wrong call raises, and never reads or writes other memory."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from isometry._backend import TorchBackend, backend_for
from isometry._backend.boundary import Kernels, PolynomialTable, StepTable
from tests.backend.test_kernels import built

N = 6


def matrices(count: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(count, N, N, dtype=dtype)


def table(dtype: torch.dtype = torch.float32, **changes: int) -> PolynomialTable:
    """The numbers of a scheme with A, A^2 and A^4 and two more products."""
    sizes = {"powers": 3, "stages": 2, "squares": 0, **changes}
    return PolynomialTable([0.0] * 21, dtype, **sizes)


def freed() -> Tensor:
    """As FSDP leaves it: a shape, and a storage without memory."""
    X = matrices()
    X.untyped_storage().resize_(0)
    return X


# torch's own names for what its lazy operations make
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
    """Each of these was read as if it were right; most of them crashed."""
    make, error, message = WRONG_TENSORS[case]
    kernels, wrong, right = built(torch.float32), make(), matrices()
    if isinstance(wrong, Tensor) and case not in ("small", "large"):
        assert isinstance(backend_for(right, wrong), TorchBackend)
    for call in (kernels.skew, kernels.skew_adjoint, kernels.square):
        with pytest.raises(error, match=message):
            call(right, wrong)
    with pytest.raises(error, match=message):
        kernels.multiply(right, wrong, right, transposed=False)


# a right call of each kernel with several arguments; each argument is then replaced
CALLS = {
    "powers": lambda k, X: k.powers(X(1), X(5), tiny=0.0, triangle=True),
    "evaluate": lambda k, X: k.evaluate(X(5), X(1), X(2), table()),
    "pull_back": lambda k, X: k.pull_back(
        *(X(5), X(1), X(1), X(7), table()), triangle=False
    ),
    "scan": lambda k, X: k.scan(
        *(X((7, N)), X(1)[0], X((N,)), X((4, N)), StepTable([4, 2, 1])),
        kind=3,
        threads=2,
    ),
    "scan_adjoint": lambda k, X: k.scan_adjoint(
        *(X((7, N)), X((7, N)), X(1)[0], X((N,)), X((4, N))),
        table=StepTable([4, 2, 1]),
        every=X((7, N)),
        last=X((4, N)),
        gradients=(X(2), X((2, N)), X((4, N))),
        room=X((8, N)),
        kind=3,
    ),
}


@pytest.mark.errors
@pytest.mark.parametrize("kernel", CALLS)
def test_each_argument_is_checked(kernel):
    """One argument at a time with too few numbers, all others right."""
    call, kernels = CALLS[kernel], built(torch.float32)
    made = []

    def right(size: int | tuple[int, ...]) -> Tensor:
        made.append(size)
        return matrices(size) if isinstance(size, int) else torch.zeros(size)

    call(kernels, right)
    for wrong in range(len(made)):
        count = iter(range(len(made)))

        def one_less(
            size: int | tuple[int, ...], wrong: int = wrong, count=count
        ) -> Tensor:
            X = matrices(size) if isinstance(size, int) else torch.zeros(size)
            return X[..., :-1].contiguous() if next(count) == wrong else X

        with pytest.raises(ValueError, match="must have"):
            call(kernels, one_less)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"powers": 1}, "`powers` must be 2 or 3; got 1"),
        ({"stages": 0}, "`stages` must be from 1 to 6; got 0"),
        ({"stages": 7}, "`stages` must be from 1 to 6; got 7"),
        ({"squares": 2}, "`squares` must leave out the last stage; got 2"),
        ({"stages": 1}, "`numbers` must be 11 numbers; got 21"),
    ],
    ids=str,
)
def test_a_scheme_that_c_cannot_hold(changes, message):
    with pytest.raises(ValueError, match=message):
        table(**changes)


@pytest.mark.errors
def test_a_table_of_another_dtype():
    """Its numbers would be read at half or twice their size."""
    kernels = built(torch.float32)
    with pytest.raises(ValueError, match=r"be of torch.float64 like `table`"):
        kernels.evaluate(matrices(5), matrices(), matrices(2), table(torch.float64))
    with pytest.raises(ValueError, match="must have 4 slots or more"):
        kernels.evaluate(matrices(3), matrices(), matrices(2), table())


@pytest.mark.errors
@pytest.mark.parametrize("sizes", [[2, 3, 1], [1, -1]], ids=str)
def test_steps_that_grow_or_are_negative(sizes):
    with pytest.raises(ValueError, match="`sizes` must not grow and not be negative"):
        StepTable(sizes)


def run_scan(kernels: Kernels, b: Tensor | None, **options: int) -> None:
    H, W, h0 = torch.zeros(3, N), matrices()[0], torch.zeros(1, N)
    settings = {"kind": 3, "threads": 1, **options}
    kernels.scan(H, W, b, h0, StepTable([1, 1, 1]), **settings)


@pytest.mark.errors
def test_options_of_a_scan():
    """A nonlinearity that C knows, a threshold if it reads one, a thread at least."""
    kernels, b = built(torch.float32), torch.zeros(N)
    for kind in (-1, 6):
        with pytest.raises(ValueError, match="`kind` must be a nonlinearity"):
            run_scan(kernels, b, kind=kind)
    with pytest.raises(TypeError, match="`b` must be a tensor for modReLU; got None"):
        run_scan(kernels, None)
    with pytest.raises(ValueError, match="`b` must have 3 numbers; got 6"):
        run_scan(kernels, b, kind=4)
    with pytest.raises(ValueError, match="`threads` must be 1 or more; got 0"):
        run_scan(kernels, b, threads=0)


def test_empty_batches_are_right():
    """No numbers are no memory: an address of zero is what they have."""
    kernels = built(torch.float32)
    for shape in ((0, N, N), (2, 0, 0)):
        out = torch.full(shape, math.nan)
        kernels.skew(torch.zeros(shape), out)
        kernels.square(torch.zeros(shape), out)
