"""The functions of linear algebra that one suite runs over. A new one is one row."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from isometry.groups import Pade
from isometry.linalg import (
    cayley,
    cayley_inverse,
    expm_skew,
    expm_skew_adjoint,
    expm_skew_frechet,
    expm_tall,
    householder,
    logm_unitary,
    pade,
    polar,
    skew,
)

NOT_FINITE = (math.nan, math.inf, -math.inf)
# A norm above 1 / eps leaves no digit of an angle: such a matrix becomes NaN too.
TOO_LARGE = (*NOT_FINITE, 1e30)
SQUARE, TALL, NEARLY_SQUARE = (3, 3), (5, 2), (3, 2)


def itself(X: Tensor) -> Tensor:
    return X


def rotated(X: Tensor) -> Tensor:
    """A unitary matrix whose angles are below pi / 2, where inverses are well posed."""
    A = skew(X)
    norm = torch.linalg.matrix_norm(A, keepdim=True)
    return cayley(A / (1 + norm))


def same_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape)


def square_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-2])


@dataclass(frozen=True)
class Row:
    """A function and what it promises.

    Args:
        name: shown in the name of the test.
        function: maps a batch of matrices to a batch of matrices, or to several.
        argument: the name that its errors give to the first argument.
        domain: maps any matrices to valid arguments, differentiably.
        shape: shape of one argument.
        out: maps the shape of an argument to the shape of the value.
        bad: entries that turn the value of a matrix to NaN.
        nan_gradient: whether the gradient of such a matrix is NaN, too.
        own_backward: whether autocast leaves its backward pass alone, too.
        forward_over_forward: whether `jvp` of `jvp` is right; else it raises.
        inductor: whether Inductor compiles it too; all rows are captured as a graph.
        exempt: names of contracts that do not hold, each with the reason.
    """

    name: str
    function: Callable[..., Any]
    argument: str = "A"
    domain: Callable[[Tensor], Tensor] = itself
    shape: tuple[int, int] = SQUARE
    out: Callable[..., tuple[int, ...]] = same_shape
    bad: tuple[float, ...] = NOT_FINITE
    nan_gradient: bool = True
    own_backward: bool = False
    forward_over_forward: bool = True
    inductor: bool = False
    exempt: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def __call__(self, X: Tensor) -> Tensor:
        """The value, or the last of several values, which is the derivative."""
        value = self.function(X)
        return value[-1] if isinstance(value, tuple) else value

    def on_free(self, X: Tensor) -> Tensor:
        """The value at the valid argument that `domain` makes of any matrix X."""
        return self(self.domain(X))

    def free(self, *batch: int, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
        return torch.randn(*batch, *self.shape, dtype=dtype, generator=rng)


def based(f: Callable[..., Tensor], **options: Any) -> Callable[[Tensor], Tensor]:
    """The map `f` of tall matrices at a base of zeros and ones, exact in any dtype."""

    def at_base(X: Tensor) -> Tensor:
        if not isinstance(X, Tensor) or X.ndim < 2:
            return f(X, X, **options)
        eye = torch.eye(*X.shape[-2:], dtype=X.dtype, device=X.device)
        return f(X, eye.flip(-2).expand(X.shape), **options)

    return at_base


def along_itself(f: Callable[..., Any]) -> Callable[[Tensor], Any]:
    """The derivative `f` at A along A with its columns shifted by one."""
    return lambda A: f(A, A.roll(1, -1) if isinstance(A, Tensor) else A)


on_skew = partial(Row, domain=skew)
derivative = partial(
    on_skew,
    exempt={
        "half_precision_is_rounded_from_float32": "torch adds the gradients of the two "
        "arguments in half precision; tests/linalg/test_expm_autograd.py has the values"
    },
)
on_unitary = partial(Row, argument="Q", domain=rotated)
on_tall = partial(Row, argument="X", shape=TALL)
# `polar` computes with the identity in place of a matrix that is not finite, so no
# gradient reaches that matrix.
polar_of = partial(
    Row, function=polar, argument="X", nan_gradient=False, forward_over_forward=False
)

ROWS = [
    Row("skew", skew, "X", bad=()),
    on_skew("expm_skew", expm_skew, bad=TOO_LARGE, own_backward=True),
    on_skew("expm_skew, eigh", partial(expm_skew, method="eigh"), own_backward=True),
    on_skew("expm_skew, pade", partial(expm_skew, method="pade"), bad=TOO_LARGE),
    on_skew("expm_skew, bound", partial(expm_skew, norm_bound=50.0), own_backward=True),
    derivative("expm_skew_frechet", along_itself(expm_skew_frechet)),
    derivative("expm_skew_adjoint", along_itself(expm_skew_adjoint)),
    on_skew("cayley", cayley, inductor=True),
    on_unitary("cayley_inverse", cayley_inverse),
    on_skew("pade", partial(pade, degree=5)),
    on_skew("pade, squared", partial(pade, degree=5, squarings=2)),
    on_skew("pade, auto", partial(pade, degree=7, squarings="auto"), inductor=True),
    Row("householder", householder, "V", shape=(4, 2), out=square_shape, inductor=True),
    Row("householder, wide", householder, "V", shape=(2, 4), out=square_shape),
    Row(
        "householder, columns",
        partial(householder, columns=2),
        "V",
        shape=(4, 2),
        exempt={"empty": "asks for two columns"},
    ),
    polar_of("polar"),
    polar_of("polar, tall", shape=(4, 2), inductor=True),
    polar_of("polar, wide", shape=(2, 4)),
    on_unitary(
        "logm_unitary",
        logm_unitary,
        own_backward=True,
        forward_over_forward=False,
        exempt={
            "half_precision_is_rounded_from_float32": "in float32 the defect of half "
            "precision is refused; tests/linalg/test_logm.py compares with SciPy"
        },
    ),
    on_tall("expm_tall", expm_tall),
    on_tall("expm_tall, base", based(expm_tall)),
    on_tall("expm_tall, nearly square", based(expm_tall), shape=NEARLY_SQUARE),
    on_tall("Pade(1).tall", Pade(1).tall),
    on_tall("Pade(2).tall", based(Pade(2).tall)),
    on_tall("Pade(3).tall, nearly square", based(Pade(3).tall), shape=NEARLY_SQUARE),
]
