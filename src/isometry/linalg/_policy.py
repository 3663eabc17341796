"""What all functions here do about half precision, autocast, NaN and transforms."""

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor

from isometry._native import dispatch_modes

# torch has no public way to ask about its transforms
_functorch = importlib.import_module("torch._C._functorch")

# what a class has that leaves torch's operations alone
_NO_DISPATCH = vars(Tensor)["__torch_dispatch__"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_float32_or_wider(X: Tensor) -> Tensor:
    """`X`, in float32 if its dtype is narrower: LAPACK and cuSOLVER know no half."""
    return X.to(torch.promote_types(X.dtype, torch.float32))


def autocast_off(device: torch.device) -> contextlib.AbstractContextManager:
    """Products in the dtype of their factors, also inside `torch.autocast`."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    # to switch off what is off takes as long as a whole small product
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def nan_unless_finite(X: Tensor) -> Tensor:
    """`(*batch, 1, 1)` zeros, or NaN for a matrix with an entry that is not finite.

    Adding it to a result is the whole policy for such matrices: LAPACK may return
    finite numbers for them. (Inductor folds `0 * sum` to zero: hence a comparison.)
    """
    return nan_unless(X.detach().sum(dim=(-2, -1), keepdim=True).isfinite(), like=X)


def nan_unless(condition: Tensor, *, like: Tensor) -> Tensor:
    """Zero where the condition holds, elsewhere NaN in both parts of a number."""
    poison = torch.where(condition, 0.0, torch.nan).to(like.real.dtype)
    return torch.complex(poison, poison) if like.is_complex() else poison


def with_skew_gradient(A: Tensor) -> Tensor:
    """`A` itself, through which only the skew part of a gradient or tangent passes."""
    skew_part = (A - A.mH) / 2
    # zero, to the last bit, for a skew A; what else there is stays and is not projected
    return skew_part + (A - skew_part).detach()


def is_batched_gradient(G: Tensor) -> bool:
    """Whether `G` is many: from `is_grads_batched=True`, or `vmap` of a backward pass.

    Ordinary operations take it; it has no memory of its own.
    """
    return _functorch.is_legacy_batchedtensor(G) or (
        _functorch.is_functorch_wrapped_tensor(G)
    )


def is_fake(X: Tensor) -> bool:
    """Whether operations on `X` compute shapes only.

    True for meta and fake tensors, and for any tensor inside FakeTensorMode.
    """
    return (
        X.is_meta
        or isinstance(X, FakeTensor)
        or (dispatch_modes() > 0 and active_fake_mode() is not None)
    )


def is_wrapper(X: Tensor) -> bool:
    """Whether `X` is of a subclass without memory of its own, such as DTensor.

    Ordinary operations take it; `out=`, `tolist` and C do not. Fake tensors are such
    wrappers too: ask `is_fake` first.
    """
    kind: Any = type(X)
    if kind is Tensor or kind is torch.nn.Parameter:
        return False
    return kind.__torch_dispatch__ is not _NO_DISPATCH


def constant_in_graphs(function: _Function) -> _Function:
    """As `torch.compiler.assume_constant_result`, which loads Dynamo: seconds."""
    # the mark that it sets
    marked: Any = function
    marked._dynamo_marked_constant = True  # noqa: SLF001 - as torch does
    return function


def transforms() -> Sequence[Any]:
    """The transforms of torch.func that are active."""
    return _functorch.get_interpreter_stack() or ()


def nested_forward_mode() -> bool:
    """Whether torch.func.jvp runs inside torch.func.jvp.

    There torch 2.13 drops the outer tangent of any autograd function, silently: for
    x * x as such a function, the second derivative of x^3 comes out as 4 x, not 6 x.
    """
    return sum(t.key() == _functorch.TransformType.Jvp for t in transforms()) > 1


class Maximum(torch.autograd.Function):
    """Maximum of all entries, over the axes that vmap hides too: readable there."""

    @staticmethod
    def forward(X: Tensor) -> Tensor:
        return X.max()

    @staticmethod
    def setup_context(ctx: Any, _inputs: tuple, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(_info: Any, _in_dims: tuple, X: Tensor) -> tuple[Tensor, None]:
        return Maximum.apply(X), None
