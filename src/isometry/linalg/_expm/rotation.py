"""The rotation with given free coordinates around another one."""

from typing import Any

import torch
from torch import Tensor

from isometry._backend.library import fits, kernels
from isometry._checks import check_square
from isometry._torch import constant_in_graphs, is_batched_gradient, opaque, version
from isometry._typing import Square
from isometry.linalg._expm import autograd as doors
from isometry.linalg._expm import exponential as kernel
from isometry.linalg._expm.one_call import multiply
from isometry.linalg._expm_skew import expm_skew
from isometry.linalg._precision import autocast_off
from isometry.linalg._skew import SMALLEST, is_plain, skew


def rotation(X: Square, B: Tensor | None) -> Tensor:
    r"""$B \exp(\operatorname{skew} X)$, for a constrained layer the whole way.

    For one real matrix it is one node of the graph (one operator, if compiled), in
    which the skew matrix and its gradient are never seen: at n = 512 that saves a tenth
    of the time.
    The gradient is that of the single steps. Cost: one product more than `expm_skew`,
    and one more for the gradient.

    Args:
        X: free coordinates; what is above the diagonal is not read.
        B: a rotation, or what else is to be multiplied; None for $I$.

    Returns:
        The product.

    Raises:
        TypeError: if `X` has an integer dtype.
        ValueError: if `X` is not square.
    """
    check_square(X, name="X")
    if not _are_of_a_kind(X, B):
        return _in_steps(X, B)
    if torch.compiler.is_compiling():
        return _rotation_op(X, B)[0] if _has_kernels(X.dtype) else _in_steps(X, B)
    return Rotation.apply(X, B) if _in_one_piece(X, B) else _in_steps(X, B)


def _in_steps(X: Tensor, B: Tensor | None) -> Tensor:
    with autocast_off(X.device):
        Q = expm_skew(skew(X))
        return Q if B is None else B @ Q


@constant_in_graphs
def _has_kernels(dtype: torch.dtype) -> bool:
    return kernels(dtype) is not None


def _are_of_a_kind(X: Tensor, B: Tensor | None) -> bool:
    """Whether kernels may fit: a single real matrix, and a constant base like it."""
    if X.ndim != 2 or X.shape[-1] < SMALLEST or not X.is_cpu:
        return False
    if X.dtype not in (torch.float32, torch.float64):
        return False
    if B is None:
        return True
    alike = B.shape == X.shape and B.dtype == X.dtype and B.is_cpu
    return alike and not B.requires_grad


def _in_one_piece(X: Tensor, B: Tensor | None) -> bool:
    plain = is_plain(X) and (B is None or is_plain(B))
    return plain and kernels(X.dtype) is not None


class Rotation(torch.autograd.Function):
    """(X, B) -> B exp(skew X) for one matrix, by the kernels in C."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, B: Tensor | None) -> Tensor:
        Q, W, plan = _forward(X, B)
        ctx.save_for_backward(B, W, plan)
        # not saved: only a second derivative looks at it, and a first one may come
        # after the coordinates have changed
        if ctx.needs_input_grad[0]:
            ctx.X, ctx.version = X, version(X)
        return Q

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        B, W, plan = ctx.saved_tensors
        G = G.contiguous()
        if torch.is_grad_enabled() or not _readable(G, W, B):
            return _gradient_in_steps(ctx, B, W, plan, G), None
        return _backward(B, W, plan, G), None


def _forward(X: Tensor, B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Value, and for the backward pass the slots and the plan."""
    native = kernels(X.dtype)
    assert native is not None
    E, W, plan = kernel.forward_of_one(native, X[None], triangle=True)
    # resized, for torch refuses to change a view in place that left a Function
    Q = E.resize_(X.shape) if B is None else multiply(native, B, E[0])
    return Q, W, torch.tensor(plan, device="cpu")


def _backward(B: Tensor | None, W: Tensor, plan: Tensor, G: Tensor) -> Tensor:
    native = kernels(W.dtype)
    assert native is not None
    H = G.mT.contiguous() if B is None else multiply(native, G, B, transposed=True)
    return kernel.backward_of_one(native, W, int(plan), H[None])[0]


def _readable(G: Tensor, W: Tensor, B: Tensor | None) -> bool:
    """Whether C can read these: hooks on saved tensors may have made others of them."""
    return not is_batched_gradient(G) and is_plain(G) and _fit(G, W, B)


def _gradient_in_steps(
    ctx: Any, B: Tensor | None, W: Tensor, plan: Tensor, G: Tensor
) -> Tensor:
    """The gradient in operations that have derivatives, or take many cotangents."""
    if version(ctx.X) != ctx.version:
        raise RuntimeError(
            "the coordinates must not change before a second derivative is taken "
            "through them; something has written to them. Take the derivative first."
        )
    W = W[:, 0]
    # not `skew(X)`: a write to `X.data` changes no version
    A = _Recorded.apply(ctx.X, W[0])
    with autocast_off(G.device):
        G = G if B is None else B.mT @ G
        if is_batched_gradient(G):
            g = doors.adjoint(A, G, plan)
        else:
            g = doors.Adjoint.apply(A, G, W, plan)
    return (g - g.mT).tril(-1)


class _Recorded(torch.autograd.Function):
    """(X, A) -> A, which is the value of skew(X) that an earlier call has seen."""

    @staticmethod
    def forward(_ctx: Any, _X: Tensor, A: Tensor) -> Tensor:
        return A.clone()

    @staticmethod
    def backward(_ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        return (G - G.mT).tril(-1), None


# A graph cannot look at the matrix to choose a plan: the operator does, when it runs.
# An exported program may run where there are no kernels, or on another device.


def _forward_anywhere(X: Tensor, B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    X, B = X.contiguous(), None if B is None else B.contiguous()
    if _fit(X, B):
        return _forward(X, B)
    E, W, plan = kernel.forward(skew(X)[None], None)
    return E[0] if B is None else B @ E[0], W, plan[0].clone()


def _backward_anywhere(B: Tensor | None, W: Tensor, plan: Tensor, G: Tensor) -> Tensor:
    W, G, B = W.contiguous(), G.contiguous(), None if B is None else B.contiguous()
    if _fit(G, W, B):
        return _backward(B, W, plan, G)
    G = G if B is None else B.mT @ G
    g = kernel.backward(W, plan.view(1), G[None])[0]
    return (g - g.mT).tril(-1)


def _empty(X: Tensor, _B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of the right shapes."""
    W = X.new_empty((kernel.slots(X.dtype), 1, *X.shape))
    plan = torch.empty((), dtype=torch.int64, device="cpu")
    return X.new_empty(X.shape), W, plan


_rotation_op = opaque(
    "rotation",
    _forward_anywhere,
    fake=_empty,
    adjoint=_backward_anywhere,
    saves=lambda inputs, outputs: (inputs[1], *outputs[1:]),
)


def _fit(*tensors: Tensor | None) -> bool:
    there = [X for X in tensors if X is not None]
    return fits(*there) and kernels(there[0].dtype) is not None
