"""Every function of linear algebra keeps the contracts that torch's functions keep.

The rows are in tests/linalg/registry.py, each with its exemptions and their reasons.
The table at the end breaks every contract once.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

import isometry.linalg
from isometry.groups import Pade
from isometry.linalg import (
    check_skew,
    expm_skew,
    expm_skew_adjoint,
    expm_skew_frechet,
    expm_tall,
    householder,
    pade,
    skew,
)
from tests.helpers import DTYPES, gradcheck_options
from tests.linalg.registry import ROWS, Row, itself

DOUBLE = [torch.float64, torch.complex128]
HALF = [torch.float16, torch.bfloat16]

CONTRACTS: list[Callable[..., None]] = []


def every_row(test: Callable[..., None]) -> Callable[..., None]:
    """Run a contract for every row that is not exempt from it."""
    CONTRACTS.append(test)
    name = test.__name__.removeprefix("test_")
    rows = [row for row in ROWS if name not in row.exempt]
    return pytest.mark.parametrize("row", rows, ids=str)(test)


def value_and_gradient(f: Callable[[Tensor], Tensor], X: Tensor, G: Tensor) -> Any:
    X = X.detach().clone().requires_grad_()
    Y = f(X)
    return Y.detach(), torch.autograd.grad(Y, X, G.to(Y.dtype))[0]


def assert_equal(result: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Assert equal bits, shapes and dtypes."""
    for x, y in zip(result, expected, strict=True):
        assert_close(x, y, rtol=0, atol=0)


def cotangent(row: Row, X: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(row.out(X.shape), dtype=X.dtype, generator=rng)


@pytest.mark.errors
@every_row
def test_arguments_are_checked(row, rng):
    """Each error names the argument, the condition and the value that was passed."""
    del rng
    a = f"`{row.argument}` must"
    with pytest.raises(ValueError, match=rf"{a} have shape .* got \(3,\)"):
        row(torch.zeros(3))
    with pytest.raises(TypeError, match=rf"{a} have a floating-point .*int64"):
        row(torch.zeros(row.shape, dtype=torch.int64))
    with pytest.raises(TypeError, match=rf"{a} be a torch.Tensor; got list"):
        row.function(LIST)
    if row.domain is not itself or row.function is skew:
        with pytest.raises(ValueError, match=rf"{a} have shape .* got \(3, 4\)"):
            row(torch.zeros(3, 4))


X = torch.zeros(3, 2)
A = torch.zeros(3, 3)
# values that no annotation allows
WORD: Any = "taylor"
LIST: Any = [[0.0]]
REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    *(
        (partial(expm_skew, A, norm_bound=b), ValueError, "`norm_bound` must be a fin")
        for b in (-1.0, math.nan, math.inf)
    ),
    (partial(expm_skew, A, method=WORD), ValueError, "`method` must be 'products'"),
    *(
        (partial(f, A, second), error, f"`{name}` must have {condition}")
        for f, name in ((expm_skew_frechet, "E"), (expm_skew_adjoint, "G"))
        for second, error, condition in (
            (torch.zeros(3, 4), ValueError, r"shape .* got \(3, 4\)"),
            (torch.zeros(2, 3, 3), ValueError, "the shape of `A`"),
            (A.double(), ValueError, "the dtype of `A`"),
            (A.long(), TypeError, "a floating-point"),
        )
    ),
    *(
        (partial(householder, X, columns=k), ValueError, f"0 and n = 3; got {k}")
        for k in (-1, 4)
    ),
    (partial(pade, A, degree=0), ValueError, "`degree` must be at least 1; got 0"),
    (partial(pade, A, degree=1, squarings=-1), ValueError, "not be negative; got -1"),
    (partial(pade, A, degree=1, squarings=WORD), ValueError, 'an int or "auto"; got'),
    (partial(Pade, 0), ValueError, "`degree` must be at least 1"),
    *(
        (partial(f, *args), ValueError, message)
        for f in (expm_tall, Pade(1).tall)
        for args, message in (
            ((X.mT,), r"`X` must have at least as many rows .*; got \(2, 3\)"),
            ((X, torch.zeros(5, 2)), r"`B` must have the shape of `X`, \(3, 2\)"),
            ((X, X.double()), "`B` must have the dtype of `X`"),
        )
    ),
    (partial(check_skew, LIST), TypeError, "`A` must be a torch.Tensor; got list"),
    (partial(check_skew, X), ValueError, r"`A` must have shape .* got \(3, 2\)"),
    (partial(check_skew, A.long()), TypeError, "`A` must have a floating-point"),
]


@pytest.mark.errors
@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_further_arguments_are_checked(call, error, message):
    with pytest.raises(error, match=message):
        call()


@every_row
def test_batches_are_matrix_by_matrix(row, rng):
    for dtype in DOUBLE:
        X = row.domain(row.free(2, 3, dtype=dtype, rng=rng))
        each = torch.stack([row(x) for x in X.flatten(0, 1)])
        assert_close(row(X).flatten(0, 1), each)


@every_row
def test_empty(row, rng):
    """Batches and matrices without entries have values and gradients."""
    n, k = row.shape
    shapes: list[tuple[int, ...]] = [(0, n, k), (2, 0, n, k), (0, 0), (2, 0, 0)]
    shapes += [(n, 0)] * (n != k)
    for shape, dtype in product(shapes, (torch.float32, torch.complex64)):
        X = torch.zeros(shape, dtype=dtype)
        G = cotangent(row, X, rng)
        Y, g = value_and_gradient(row, X, G)
        assert Y.shape == G.shape
        assert g.shape == X.shape


def spoil(row: Row, X: Tensor, bad: float, place: int = -1) -> Tensor:
    """Put a bad entry into a trivial matrix, where LAPACK keeps other blocks finite."""
    X = X.clone()
    X[1] = row.domain(torch.zeros_like(X[1]))
    X[1, place, 0] = bad
    if row.domain is skew:
        X[1, 0, -1] = -bad
    return X


def is_nan(X: Tensor) -> bool:
    """Whether every entry is NaN, in both parts if it is complex."""
    return bool((torch.view_as_real(X) if X.is_complex() else X).isnan().all())


@every_row
def test_a_matrix_that_is_not_finite_becomes_nan_alone(row, rng):
    """A matrix that is not finite becomes NaN, with its gradient; no other one does.

    The others are compared with a batch of the same shape, since a BLAS may sum a
    smaller batch in another order (AMD's float64 was 1 ulp off).
    """
    for dtype in DTYPES:
        X = row.domain(row.free(3, dtype=dtype, rng=rng))
        G = cotangent(row, X, rng)
        expected = value_and_gradient(row, X, G)
        # The blocks of a tall matrix are computed separately; a skew matrix has no
        # diagonal.
        places = (0, -1) if row.domain is itself else (-1,)
        for bad, place in product(row.bad, places):
            Y, g = value_and_gradient(row, spoil(row, X, bad, place), G)
            assert is_nan(Y[1]), (dtype, bad)
            assert is_nan(g[1]) or not row.nan_gradient, (dtype, bad)
            assert_close(Y[::2], expected[0][::2])
            assert_close(g[::2], expected[1][::2])


@every_row
def test_half_precision_is_rounded_from_float32(row, rng):
    """Value and gradient are those in float32, cast back."""
    for dtype in HALF:
        X = row.domain(row.free(2, dtype=torch.float32, rng=rng)).to(dtype)
        G = cotangent(row, X.float(), rng).to(dtype)
        half = value_and_gradient(row, X, G)
        single = value_and_gradient(row, X.float(), G.float())
        assert_equal(half, [x.to(dtype) for x in single])


@every_row
def test_autocast_does_not_touch_it(row, rng):
    """Inside `torch.autocast` value and gradient have the same bits."""
    # norms above the first squaring, where a value used to be off by 3e-3
    X = row.domain(3 * row.free(2, dtype=torch.float32, rng=rng))
    G = cotangent(row, X, rng)
    expected = value_and_gradient(row, X, G)
    with torch.autocast("cpu", torch.bfloat16):
        Y = row(X.requires_grad_())
        if row.own_backward:
            assert_equal(value_and_gradient(row, X, G), expected)
    assert_equal((Y.detach(), *torch.autograd.grad(Y, X, G)), expected)


@pytest.mark.once
@every_row
def test_gradients_of_any_order(row, rng):
    """Reverse, forward, batched and second derivatives agree with differences."""
    for dtype in DOUBLE:
        X = row.free(dtype=dtype, rng=rng).requires_grad_()
        how: dict[str, Any] = gradcheck_options(dtype) | {"check_batched_grad": True}
        assert gradcheck(row.on_free, X, check_forward_ad=True, **how)
        how["fast_mode"] = True
        assert gradgradcheck(row.on_free, X, check_fwd_over_rev=True, **how)


@every_row
def test_transforms_compose(row, rng):
    """vmap agrees with the batch axis, also nested, and with grad and jvp inside."""

    def loss(X: Tensor) -> Tensor:
        return row.on_free(X).cos().sum()

    def push(X: Tensor, E: Tensor) -> Tensor:
        return jvp(row.on_free, (X,), (E,))[1]

    X, E = row.free(2, 2, 3, dtype=torch.float64, rng=rng).unbind()
    mapped = vmap(vmap(row.on_free), in_dims=1, out_dims=1)(X)
    assert_close(mapped, row.on_free(X))
    assert_close(vmap(vmap(grad(loss)))(X), grad(loss)(X))
    assert_close(vmap(push)(X, E), push(X, E))


@every_row
def test_modes_of_the_hessian_agree(row, rng):
    """The Hessian is the same in all four orders of the modes, and H = H^T.

    torch 2.13 drops the outer tangent of an autograd function in forward over forward
    mode: a second derivative of `polar` was off by 0.5, of `expm_skew_adjoint` by 3.9.
    """

    def loss(X: Tensor) -> Tensor:
        return row.on_free(X).cos().sum()

    X = row.free(dtype=torch.float64, rng=rng)
    size = X.numel()
    H = jacrev(jacrev(loss))(X)
    assert_close(H.reshape(size, size), H.reshape(size, size).mT)
    for outer, inner in [(jacfwd, jacrev), (jacrev, jacfwd)]:
        assert_close(outer(inner(loss))(X), H)
    if row.forward_over_forward:
        assert_close(jacfwd(jacfwd(loss))(X), H)
    else:
        with pytest.raises(NotImplementedError, match="inside at most one level of"):
            jacfwd(jacfwd(loss))(X)


@pytest.mark.usefixtures("no_shape_hook")
@every_row
def test_compiles_to_one_graph(row, rng):
    """One graph has the value, the gradient and the NaN of eager mode."""
    torch._dynamo.reset()
    compiled = torch.compile(row.__call__, fullgraph=True, backend="aot_eager")
    for dtype, scale in product((torch.float64, torch.complex128), (0.1, 9.0)):
        X = row.domain(scale * row.free(2, dtype=dtype, rng=rng))
        if row.bad:
            X[1, -1, 0] = math.nan
        G = cotangent(row, X, rng)
        result, expected = (value_and_gradient(f, X, G) for f in (compiled, row))
        for x, y in zip(result, expected, strict=True):
            assert_close(x, y, equal_nan=True)


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize("row", [row for row in ROWS if row.inductor], ids=str)
def test_compiles_to_code(row, rng):
    """Code of Inductor keeps NaN too. It is slow, so each function has one row."""
    torch._dynamo.reset()
    X = row.domain(row.free(2, dtype=torch.float32, rng=rng))
    X[1, -1, 0] = math.nan
    compiled = torch.compile(row.__call__, fullgraph=True)
    assert_close(compiled(X), row(X), equal_nan=True)


class Module(torch.nn.Module):
    """A module around a function, as `torch.export` needs one."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row

    def forward(self, X: Tensor) -> Tensor:
        return self.row.on_free(X)


@pytest.mark.usefixtures("no_shape_hook")
@every_row
def test_exports(row, rng):
    """An exported program gives the values of eager mode for other numbers."""
    X = row.free(2, dtype=torch.float32, rng=rng)
    program = torch.export.export(Module(row), (X,))
    assert_close(program.module()(9 * X), row.on_free(9 * X))


@every_row
def test_shapes_without_values(row, rng):
    """Shape, dtype and device of a result follow from the argument, without values."""
    del rng
    for dtype in DTYPES:
        shape = (2, *row.shape)
        check_shapes(row, torch.zeros(shape, device="meta", dtype=dtype))
        with torch.device("meta"):  # the default device does not matter
            check_shapes(row, row.domain(torch.zeros(shape, dtype=dtype, device="cpu")))
        with FakeTensorMode():
            check_shapes(row, torch.zeros(shape, dtype=dtype))


def check_shapes(row: Row, X: Tensor) -> None:
    Y = row(X.requires_grad_())
    assert (Y.shape, Y.dtype, Y.device) == (row.out(X.shape), X.dtype, X.device)
    assert torch.autograd.grad(Y, X, Y)[0].shape == X.shape


class Square(torch.autograd.Function):
    """X * X as an autograd function: torch drops its outer tangent in nested jvp."""

    @staticmethod
    def forward(X: Tensor) -> Tensor:
        return X * X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (X,) = ctx.saved_tensors
        return 2 * X * grad_outputs[0]

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Tensor) -> Tensor:
        (X,) = ctx.saved_tensors
        return 2 * X * grad_inputs[0]


by_rank = Row("depends on the rank", lambda A: A * (1 + (A.ndim > 2)))
by_value = Row("asks for a sign", lambda A: A if A.detach().sum() > 0 else -A, bad=())
BROKEN = [
    (test_arguments_are_checked, Row("checks nothing", torch.linalg.matrix_exp)),
    (test_batches_are_matrix_by_matrix, by_rank),
    (test_empty, Row("has a largest entry", lambda A: A / A.max())),
    (test_a_matrix_that_is_not_finite_becomes_nan_alone, Row("NaN stays", torch.sin)),
    (
        test_a_matrix_that_is_not_finite_becomes_nan_alone,
        Row("NaN spreads", lambda A: A + 0 * A.sum()),
    ),
    (test_half_precision_is_rounded_from_float32, Row("rounds", lambda A: A @ A @ A)),
    (test_autocast_does_not_touch_it, Row("multiplies", lambda A: A @ A)),
    (test_gradients_of_any_order, Row("detaches", lambda A: A.detach() * A)),
    (test_transforms_compose, by_rank),
    (test_modes_of_the_hessian_agree, Row("drops a tangent", Square.apply)),
    (test_compiles_to_one_graph, by_value),
    (test_exports, by_value),
    (test_shapes_without_values, by_value),
]


@pytest.mark.errors
@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("contract", "row"), BROKEN, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_broken_functions_are_found(contract, row, rng):
    """Each contract fails for a function that breaks it."""
    # errors of torch, Dynamo and `gradcheck` are RuntimeErrors
    with pytest.raises((AssertionError, RuntimeError)):
        contract(row, rng=rng)


def test_every_contract_is_broken_once_and_every_function_has_a_row():
    assert {contract for contract, _ in BROKEN} == set(CONTRACTS)
    names = {row.name.partition(",")[0] for row in ROWS}
    assert set(isometry.linalg.__all__) - {"check_skew"} <= names
    exempt = {name for row in ROWS for name in row.exempt}
    assert {f"test_{name}" for name in exempt} <= {test.__name__ for test in CONTRACTS}
