"""The rotation with given free coordinates around another one."""

from typing import Any

import torch
from torch import Tensor

from isometry._checks import check_square
from isometry._native import fits, kernels
from isometry._typing import Square
from isometry.linalg._expm_kernel import backward_of_one, forward_of_one
from isometry.linalg._expm_skew import expm_skew
from isometry.linalg._one_call import multiply
from isometry.linalg._policy import autocast_off, is_batched_gradient
from isometry.linalg._skew import SMALLEST, is_plain, skew


def rotation(X: Square, B: Tensor | None) -> Tensor:
    r"""$B \exp(\operatorname{skew} X)$, for a constrained layer the whole way.

    For one real matrix in eager mode it is one node of the graph, in which the skew
    matrix and its gradient are never seen: at n = 512 that saves a tenth of the time.
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
    if _in_one_piece(X, B):
        return Rotation.apply(X, B)
    return _in_steps(X, B)


def _in_steps(X: Tensor, B: Tensor | None) -> Tensor:
    with autocast_off(X.device):
        Q = expm_skew(skew(X))
        return Q if B is None else B @ Q


def _in_one_piece(X: Tensor, B: Tensor | None) -> bool:
    return (
        X.ndim == 2
        and X.shape[-1] >= SMALLEST
        and is_plain(X)
        and (B is None or _serves(B, X))
        and kernels(X.dtype) is not None
    )


def _serves(B: Tensor, X: Tensor) -> bool:
    """Whether the kernels can take this base."""
    same = B.shape == X.shape and B.dtype == X.dtype
    return same and not B.requires_grad and is_plain(B)


class Rotation(torch.autograd.Function):
    """(X, B) -> B exp(skew X) for one matrix, by the kernels in C."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, B: Tensor | None) -> Tensor:
        native = kernels(X.dtype)
        assert native is not None
        E, W, plan = forward_of_one(native, X[None], triangle=True)
        ctx.save_for_backward(B, W, torch.tensor(plan, device="cpu"))
        # not saved: only a second derivative looks at it, and a first one may come
        # after the coordinates have changed
        if ctx.needs_input_grad[0]:
            ctx.X, ctx.version = X, X._version  # noqa: SLF001 - torch has no other
        return E[0] if B is None else multiply(native, B, E[0])

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        B, W, plan = ctx.saved_tensors
        native = kernels(W.dtype)
        G = G.contiguous()
        if torch.is_grad_enabled() or native is None or not _readable(G, W, B):
            return _gradient_in_steps(ctx, B, G), None
        H = G.mT.contiguous() if B is None else multiply(native, G, B, transposed=True)
        return backward_of_one(native, W, int(plan), H[None])[0], None


def _readable(G: Tensor, W: Tensor, B: Tensor | None) -> bool:
    """Whether C can read these: hooks on saved tensors may have made others of them."""
    if is_batched_gradient(G) or not is_plain(G):
        return False
    return fits(G, W) if B is None else fits(G, W, B)


def _gradient_in_steps(ctx: Any, B: Tensor | None, G: Tensor) -> Tensor:
    X, again = ctx.X, torch.is_grad_enabled()
    if X._version != ctx.version:  # noqa: SLF001 - torch has no other
        raise RuntimeError(
            "the coordinates must not change before a second derivative is taken "
            "through them; something has written to them. Take the derivative first."
        )
    with torch.enable_grad():
        Q = _in_steps(X, B)
    with autocast_off(X.device):
        return torch.autograd.grad(Q, X, G, create_graph=again)[0]
