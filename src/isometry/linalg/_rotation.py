"""The rotation with given free coordinates around another one."""

from typing import Any

import torch
from torch import Tensor

from isometry._native import kernels
from isometry._typing import Square
from isometry.linalg._expm_kernel import backward_of_one, forward_of_one
from isometry.linalg._expm_skew import expm_skew
from isometry.linalg._one_call import in_one_call, multiply
from isometry.linalg._policy import is_batched_gradient
from isometry.linalg._skew import SMALLEST, is_plain, skew


def rotation(X: Square, B: Square | None) -> Square:
    r"""$B \exp(\operatorname{skew} X)$, for a constrained layer the whole way.

    For one real matrix in eager mode it is one node of the graph, in which the skew
    matrix and its gradient are never seen: at n = 512 that saves a tenth of the time.
    The gradient is that of the single steps. Cost: one product more than `expm_skew`,
    and one more for the gradient.

    Args:
        X: free coordinates; what is above the diagonal is not read.
        B: a rotation, to which there is no gradient in one piece; None for $I$.

    Returns:
        A rotation.
    """
    if _in_one_piece(X, B):
        return Rotation.apply(X, B)
    return _in_steps(X, B)


def _in_steps(X: Tensor, B: Tensor | None) -> Tensor:
    Q = expm_skew(skew(X))
    return Q if B is None else B @ Q


def _in_one_piece(X: Tensor, B: Tensor | None) -> bool:
    return (
        X.ndim == 2
        and X.shape[-1] >= SMALLEST
        and is_plain(X)
        and (B is None or (is_plain(B) and not B.requires_grad and X.dtype == B.dtype))
        and in_one_call(X[None]) is not None
    )


class Rotation(torch.autograd.Function):
    """(X, B) -> B exp(skew X) for one matrix, by the kernels in C."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, B: Tensor | None) -> Tensor:
        native = kernels(X.dtype)
        assert native is not None
        E, W, ctx.plan = forward_of_one(native, X[None], triangle=True)
        ctx.save_for_backward(X, B, W)
        return E[0] if B is None else multiply(native, B, E[0])

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        X, B, W = ctx.saved_tensors
        if torch.is_grad_enabled() or is_batched_gradient(G):
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                Q = _in_steps(X, B)
            (g,) = torch.autograd.grad(Q, X, G, create_graph=again)
            return g, None
        native = kernels(X.dtype)
        assert native is not None
        if B is None:
            H = G.mT.contiguous()
        else:
            H = multiply(native, G.contiguous(), B, transposed=True)
        return backward_of_one(native, W, ctx.plan, H[None])[0], None
