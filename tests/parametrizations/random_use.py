"""Random lives of constrained modules, and a slow model of what should happen.

The model is a tensor in double precision that should equal the weight. Each operation
leaves it as it is, or replaces it by what torch's own operations compute from the state
before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

import isometry
from tests.helpers import double_dtype, shifted_seed
from tests.parametrizations.cases import (
    CASES,
    MAPS,
    Weight,
    orthonormality,
    weight_defect,
)
from tests.parametrizations.test_trajectory import reference_weight

HALF = (torch.bfloat16, torch.float16)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)


@dataclass(frozen=True)
class Kind:
    """A module with a weight to constrain, and the shapes of its inputs."""

    make: Callable[..., nn.Module]
    #: shapes of the inputs; without any, the module is just its weight
    inputs: tuple[tuple[int, ...], ...] = ()
    name: str = "weight"
    #: whether torch supports it for real numbers only
    real: bool = False
    #: the name of a group in CASES
    case: str | None = None

    @property
    def maps(self) -> tuple[str, ...]:
        return tuple(MAPS) if self.case is None else CASES[self.case].maps

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        real = (torch.float32, torch.float64, *HALF)
        if self.case is not None:
            return tuple(CASES[self.case].dtype(double) for double in (False, True))
        return real if self.real else (*real, torch.complex64, torch.complex128)


def of_case(name: str) -> Kind:
    shape = CASES[name].shape
    return Kind(lambda dtype: Weight(torch.randn(shape, dtype=dtype)), case=name)


def batch(dtype: torch.dtype) -> nn.Module:
    return Weight(torch.randn(2, 3, 5, 2, dtype=dtype))


IMAGE = (2, 2, 4, 4)
KINDS = {
    "square": Kind(partial(nn.Linear, 6, 6), ((3, 6),)),
    "one": Kind(partial(nn.Linear, 1, 1), ((3, 1),)),
    "tall": Kind(partial(nn.Linear, 3, 9), ((3, 3),)),
    "nearly square": Kind(partial(nn.Linear, 4, 5), ((3, 4),)),
    "wide": Kind(partial(nn.Linear, 9, 3), ((3, 9),)),
    "batch": Kind(batch),
    "Bilinear": Kind(partial(nn.Bilinear, 4, 3, 2), ((3, 4), (3, 3)), real=True),
    "Conv1d": Kind(partial(nn.Conv1d, 4, 3, 2), ((2, 4, 5),)),
    "Conv2d": Kind(partial(nn.Conv2d, 2, 9, 2), (IMAGE,)),
    "Conv2d in groups": Kind(partial(nn.Conv2d, 2, 4, 2, groups=2), (IMAGE,)),
    "ConvTranspose2d": Kind(partial(nn.ConvTranspose2d, 2, 3, 2), (IMAGE,)),
    "Embedding": Kind(partial(nn.Embedding, 9, 4), ((5,),), real=True),
    "RNNCell": Kind(partial(nn.RNNCell, 3, 5), ((2, 3),), "weight_hh", real=True),
    "RNN": Kind(partial(nn.RNN, 3, 5), ((4, 2, 3),), "weight_hh_l0", real=True),
    "attention": Kind(
        partial(nn.MultiheadAttention, 4, 2),
        ((3, 2, 4),) * 3,
        "in_proj_weight",
        real=True,
    ),
    **{name: of_case(name) for name, case in CASES.items() if case.manifold},
}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5),
    # eps keeps rounding errors from becoming steps when they are divided by small
    # numbers
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05, eps=0.1),
    "fused": lambda p: torch.optim.Adam(p, lr=0.05, eps=0.1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.02, eps=0.1, momentum=0.5),
}


@dataclass(frozen=True)
class Row:
    """The choices with which a life begins."""

    kind: str
    dtype: torch.dtype
    retraction: str
    optimizer: str
    policy: dict[str, Any] = field(default_factory=dict)


ROWS = [
    Row(name, dtype, retraction, optimizer, policy)
    for name, kind in KINDS.items()
    for dtype in kind.dtypes
    for retraction in kind.maps
    for optimizer in OPTIMIZERS
    for policy in ({}, {"rebase_every": 2}, {"rebase_radius": 0.2})
    # reflections have no base, and so no policy; fused optimizers need real numbers
    if (retraction != "householder" or not policy)
    and (optimizer != "fused" or not dtype.is_complex)
]


class Life:
    """A constrained module, an optimizer of its coordinates, and the slow model."""

    def __init__(self, row: Row, seed: int) -> None:
        torch.manual_seed(shifted_seed(seed))
        self.row, self.kind, self.double = row, KINDS[row.kind], double_dtype(row.dtype)
        self.plain = self.kind.make(dtype=self.double)
        self.module = self.fresh()
        self.new_optimizer()
        #: what the weight should be
        self.model = self.slow(self.X)

    def fresh(self) -> nn.Module:
        return self.constrain(self.kind.make(dtype=self.row.dtype))

    def constrain(self, module: nn.Module) -> nn.Module:
        options: Any = self.row.policy
        if self.kind.case is not None:
            return CASES[self.kind.case].constrain(
                module, self.row.retraction, **options
            )
        name, retraction = self.kind.name, self.row.retraction
        return isometry.orthogonal(module, name, retraction, **options)

    def new_optimizer(self) -> None:
        self.optimizer = OPTIMIZERS[self.row.optimizer]([self.X])

    @property
    def holder(self) -> Any:
        return self.module.parametrizations[self.kind.name]

    @property
    def X(self) -> Any:
        return self.holder.original

    @property
    def weight(self) -> Any:
        return getattr(self.module, self.kind.name)

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the base and the phases in double precision."""
        named = self.holder[0].named_buffers()
        return {k: v.to(self.double, copy=True) for k, v in named if k != "map"}

    def points(self, W: Tensor) -> Tensor:
        """The matrices of a weight: a kernel has one for each group of channels."""
        if not isinstance(self.plain, CONVOLUTIONS):
            return W
        groups = self.plain.groups
        return W.flatten(1) if groups == 1 else W.reshape(groups, len(W) // groups, -1)

    def slow(self, X: Tensor, buffers: dict[str, Tensor] | None = None) -> Tensor:
        """The weight with coordinates `X` around the base, in torch's operations."""
        buffers = self.buffers() if buffers is None else buffers
        name, points = self.kind.case, self.points(X.to(self.double))
        if name is None:
            # the cases of these names accept matrices of any size
            name = "wide" if points.shape[-2] < points.shape[-1] else "tall"
            if "base" in buffers:
                buffers["base"] = self.points(buffers["base"])
        W = reference_weight(name, self.row.retraction, points, buffers)
        return W.reshape(X.shape)

    def inputs(self) -> list[Tensor]:
        if isinstance(self.plain, nn.Embedding):
            return [torch.randint(9, shape) for shape in self.kind.inputs]
        return [torch.randn(s, dtype=self.row.dtype) for s in self.kind.inputs]

    def output(self, inputs: list[Tensor]) -> Tensor:
        if not inputs:
            return self.weight
        y = self.module(*inputs)
        return y[0] if isinstance(y, tuple) else y

    def slow_output(self, W: Tensor, inputs: list[Tensor]) -> Tensor:
        """The output of an unconstrained module with this weight, in double."""
        if not inputs:
            return W
        others = {
            k: v.detach().to(self.double)
            for k, v in self.module.named_parameters()
            if not k.startswith("parametrizations")
        }
        doubles = [x if x.dtype == torch.int64 else x.to(self.double) for x in inputs]
        y = functional_call(self.plain, {**others, self.kind.name: W}, tuple(doubles))
        return y[0] if isinstance(y, tuple) else y

    @property
    def eps(self) -> float:
        return torch.finfo(self.row.dtype).eps

    @property
    def tolerance(self) -> float:
        """Tolerance of weights, and of gradients relative to their largest entries."""
        # Twice the worst of 6,000 lives: 2.7 eps in half precision, 7.9 in single. In
        # double precision the error is that of torch.matrix_exp, up to 2.2e-10.
        return max(5e-10, (6 if self.row.dtype in HALF else 16) * self.eps)

    def close(self, W: Tensor, expected: Tensor) -> None:
        assert W.dtype == self.row.dtype
        W = W.detach().to(self.double)
        assert_close(W, expected.to(self.double), rtol=0, atol=self.tolerance)

    def check(self) -> None:
        """The weight equals the model, fits its state, and is on the manifold."""
        W = self.weight.detach()
        self.close(W, self.model)
        self.model = self.slow(self.X).detach()
        self.close(W, self.model)
        W, case = self.points(W.to(self.double)), self.kind.case
        error = orthonormality(W) if case is None else weight_defect(CASES[case], W)
        # twice the worst of 6,000 lives: 1.2 eps in half precision, 11.4 in others
        assert error <= (3 if self.row.dtype in HALF else 23) * self.eps
