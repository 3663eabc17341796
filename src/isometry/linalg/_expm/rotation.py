"""The rotation with given free coordinates around a base."""

from typing import Any

import torch
from torch import Tensor

from isometry._backend import backend_for
from isometry._checks import check_square, nan_unless
from isometry._dtypes import PRECISIONS
from isometry._operators import opaque
from isometry._torch import (
    autocast_off,
    in_forward_mode,
    is_batched_gradient,
    needs_plain_operations,
    version,
)
from isometry._typing import Square
from isometry.linalg._expm import products
from isometry.linalg._expm.autograd import Adjoint, adjoint
from isometry.linalg._expm_skew import expm_skew
from isometry.linalg._skew import FEWEST_ROWS, skew


def rotation(X: Square, B: Tensor | None) -> Tensor:
    r"""$B \exp(\operatorname{skew} X)$, the weight of a constrained layer.

    For one real matrix on the CPU, with at least `FEWEST_ROWS` rows and a constant `B`,
    this is a single node of the autograd graph (a single operator, if compiled). Then
    neither the skew matrix nor its gradient is a separate tensor, which saves a tenth
    of the time at n = 512. The gradient is the same as with separate steps. Cost: as
    for `expm_skew`; with `B`, one more product for the value, and one for the gradient.

    Args:
        X: free coordinates; entries above the diagonal are not read.
        B: the left factor, usually the base; None for $I$.

    Returns:
        The product.

    Raises:
        TypeError: if `X` has an integer dtype.
        ValueError: if `X` is not square.
    """
    if not _is_one_node(X, B):
        check_square(X, name="X")
    elif torch.compiler.is_compiling() and not in_forward_mode():
        return _rotation_op(X, B)[0]
    elif not needs_plain_operations(X, B):
        return Rotation.apply(X, B)
    with autocast_off(X.device):
        Q = expm_skew(skew(X))
        return Q if B is None else B @ Q


def within_reach(A: Tensor, reach: float) -> Tensor:
    """The skew matrices A, or NaN for a matrix with an angle that may exceed `reach`.

    The angles are bounded on the device of A, so the host does not wait. Cost: two
    products. Where the value is NaN, the gradient is NaN too.
    """
    X = A.detach()
    X2 = X @ X
    X4 = X2 @ X2
    # the angles of a real matrix come in pairs, and each pair is counted once
    weight = 1.0 if A.is_complex() else 0.5
    pairs = ((X2, X2), (X2, X4), (X4, X4))
    s2, s3, s4 = (weight * (Y.conj() * Z).real.sum((-2, -1)) for Y, Z in pairs)
    upper = products.angle_bounds((s2, s3, s4), power=2)[1]
    # written so that a bound of NaN counts as above `reach`
    factor = 1 + nan_unless(upper <= reach, like=upper)
    return A * factor[..., None, None]


def _is_one_node(X: Tensor, B: Tensor | None) -> bool:
    """Whether `rotation` can be a single node of the autograd graph.

    For this, X must be one large real matrix on the CPU. B must be None, or a constant
    on the CPU with the shape and dtype of X.
    """
    if not isinstance(X, Tensor) or X.ndim != 2 or X.shape[0] != X.shape[1]:
        return False
    # The device must be checked after the size. When it was checked first, a compiled
    # module under DDP was split into three graphs instead of two
    # (test_compiled_data_parallel_training).
    if X.shape[1] < FEWEST_ROWS or X.dtype not in PRECISIONS or not X.is_cpu:
        return False
    if B is None:
        return True
    alike = B.shape == X.shape and B.dtype == X.dtype and B.is_cpu
    return alike and not B.requires_grad


class Rotation(torch.autograd.Function):
    """(X, B) -> B exp(skew X) for one real matrix."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, B: Tensor | None) -> Tensor:
        Q, W, plan = _forward(X, B)
        ctx.save_for_backward(B, W, plan)
        # X is not passed to `save_for_backward`. If it were, torch would refuse even a
        # first derivative after a write to the coordinates, although only a second
        # derivative reads them.
        if ctx.needs_input_grad[0]:
            ctx.X, ctx.version = X, version(X)
        return Q

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        B, W, plan = ctx.saved_tensors
        is_many = is_batched_gradient(G)
        if torch.is_grad_enabled() or is_many or needs_plain_operations(G):
            return _gradient_in_steps(ctx, B, W, plan, G), None
        return _backward(B, W, plan, G), None


def _forward(X: Tensor, B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """B exp(skew X), and the slots and the plan for the backward pass."""
    X = X.contiguous()
    B = None if B is None else B.contiguous()
    backend = backend_for(X, B)
    E, W, plan = products.forward(backend, X[None], from_coordinates=True)
    # `resize_` instead of `view`, because torch refuses to change a view in place if an
    # autograd function has returned it
    E, plan = E.resize_(X.shape), plan.resize_(())
    Q = E if B is None else backend.multiply(B, E)
    return Q, W, plan


def _backward(B: Tensor | None, W: Tensor, plan: Tensor, G: Tensor) -> Tensor:
    # a hook on saved tensors may have returned B or W with different strides
    W, G = W.contiguous(), G.contiguous()
    B = None if B is None else B.contiguous()
    backend = backend_for(G, W, B)
    if B is not None:
        # The gradient with respect to exp(skew X) is B^T G. It is computed as
        # (G^T B)^T, because C reads the transpose of this gradient, and this way the
        # transpose is contiguous.
        G = backend.multiply(G, B, transposed=True).mT
    plans, G = plan.view(1), G[None]
    return products.backward(backend, W, plans, G, from_coordinates=True)[0]


def _gradient_in_steps(
    ctx: Any, B: Tensor | None, W: Tensor, plan: Tensor, G: Tensor
) -> Tensor:
    """The gradient with respect to X, by differentiable operations.

    G may be a batch of gradients.
    """
    if version(ctx.X) != ctx.version:
        raise RuntimeError(
            "the coordinates must not change before a second derivative is taken "
            "through them; something has written to them. Take the derivative first."
        )
    W = W[:, 0]
    # not `skew(X)`, because a write to `X.data` changes X but not its version
    A = _ForwardSkew.apply(ctx.X, W[0])
    with autocast_off(G.device):
        G = G if B is None else B.mT @ G
        if is_batched_gradient(G):
            g = adjoint(A, G, plan)
        else:
            g = Adjoint.apply(A, G, W, plan)
    return (g - g.mT).tril(-1)


class _ForwardSkew(torch.autograd.Function):
    """skew(X), differentiable in X, with its value A from the forward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(_X: Tensor, A: Tensor) -> Tensor:
        return A.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(_ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        return (G - G.mT).tril(-1), None


def _empty(X: Tensor, _B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Empty outputs of the right shapes, for a graph that is being traced."""
    W = X.new_empty((products.slots(X.dtype), 1, *X.shape))
    return X.new_empty(X.shape), W, torch.empty((), dtype=torch.int64, device="cpu")


# the plan depends on the numbers in the matrix, so it is chosen when the operator runs
_rotation_op = opaque(
    "rotation",
    _forward,
    fake=_empty,
    adjoint=_backward,
    saves=lambda inputs, outputs: (inputs[1], *outputs[1:]),
)
