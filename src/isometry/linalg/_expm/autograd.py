"""The exponential as torch sees it: autograd functions, and operators in graphs.

No single mechanism of torch supports double backward, forward mode, `vmap` and
`torch.compile` at once. The plan, which products.py explains, depends on the numbers
in the matrix. So a compiler cannot trace an autograd function that chooses the plan. A
compiler need not trace a custom operator, but an operator drops the tangents of forward
mode. So this file has both autograd functions and operators. Functions such as
`exponential` call autograd functions. Where a compiler records a graph, their decorator
`traced_as` calls an operator instead.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor

from isometry._backend import backend_for
from isometry._operators import Maximum, opaque, traced_as
from isometry._orthonormal import defect, identity
from isometry._torch import (
    autocast_off,
    is_batched_gradient,
    is_wrapper,
    nested_forward_mode,
    transforms,
)
from isometry.linalg._expm import products
from isometry.linalg._expm.schemes import SCHEMES, Scheme
from isometry.linalg._implicit import in_front
from isometry.linalg._skew import with_skew_gradient

# a matrix and its derivative along a direction
Pair = tuple[Tensor, Tensor]


@traced_as(lambda A, norm_bound: _expm_op(A, norm_bound)[0])
def exponential(A: Tensor, norm_bound: float | None) -> Tensor:
    """exp(A); `norm_bound` is an upper bound on all angles, or None."""
    if not transforms():
        return EagerExponential.apply(A, norm_bound)
    # in nested forward mode, an autograd function would lose a tangent, while `frechet`
    # computes its results with ordinary operations
    if nested_forward_mode():
        return frechet(A, torch.zeros_like(A))[0]
    return Exponential.apply(A, norm_bound)[0]


def _flat_batch(X: Tensor) -> Tensor:
    """`X` with its batch axes joined: (*batch, n, n) becomes (b, n, n)."""
    return X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:])


def _forward(A: Tensor, norm_bound: float | None) -> tuple[Tensor, Tensor, Tensor]:
    if is_wrapper(A):
        raise TypeError(
            f"`A` must be a plain tensor for this function and for second "
            f"derivatives; got {type(A).__name__}. Gather a DTensor first with "
            f"`A.full_tensor()`."
        )
    A_flat = _flat_batch(A)
    W = products.new_slots(A_flat)
    W[0].copy_(A_flat)
    Q, plans = products.forward(backend_for(W), W, norm_bound)
    # `resize_` instead of `view`, because torch refuses to change a view in place if an
    # autograd function has returned it
    return Q.resize_(A.shape), W.view(W.shape[0], *A.shape), plans.view(A.shape[:-2])


def _backward(W: Tensor, plans: Tensor, G: Tensor) -> Tensor:
    G_flat = _flat_batch(G)
    # a hook on saved tensors may have returned W with different strides
    W = W.contiguous().view(W.shape[0], *G_flat.shape)
    backend = backend_for(W, G_flat)
    gradient = products.backward(backend, W, plans.reshape(-1), G_flat)
    return gradient.contiguous().resize_(G.shape)


@traced_as(lambda A, E, _plans=None: _frechet_op(A, E))
def frechet(A: Tensor, E: Tensor, plans: Tensor | None = None) -> Pair:
    """exp(A) and its derivative along E; both can be differentiated again.

    Args:
        A: skew matrices.
        E: directions; any matrices, skew or not.
        plans: the plan of each matrix (its scheme and squarings), if known.
    """
    if A.numel() == 0:
        return A.clone(), E.clone()
    if plans is None:
        plans = cast("Tensor", Exponential.apply(A.detach(), None)[2])
    with autocast_off(A.device):
        return _by_longest_plan(A, E, plans, Maximum.apply(plans))


def _by_longest_plan(A: Tensor, E: Tensor, plans: Tensor, longest: Tensor) -> Pair:
    """exp(A) and its derivative along E, computed by one plan for the whole batch.

    The plan is the last scheme, with enough squarings for every matrix of the batch.
    Both results come from ordinary torch operations, so they can be differentiated
    again.
    """
    # the plan of a matrix is `end` if its angles are too large for every plan
    end = len(products.plan_edges(A.dtype))
    unknown = (plans >= end).to(A.device)
    A = A.masked_fill(unknown[..., None, None], math.nan)
    # The last scheme is used even for small angles. The other schemes are fitted only
    # to the value and the gradient, and their second derivatives are off by up to 60
    # eps.
    least = len(SCHEMES[A.dtype.to_real()]) - 1
    scheme, squarings = products.decode(min(max(int(longest), least), end - 1), A.dtype)
    assert scheme is not None
    pair = _push_forward(scheme, A, E, squarings)
    for k in range(1, squarings + 1):
        pair = _times(pair, pair)
        if k % products.MANY_SQUARINGS == 0:
            # A Newton-Schulz step multiplies by H. H is treated as a constant. If H
            # were differentiated, pair[1] would become tangent to the unitary group,
            # which is wrong if E is not skew.
            H = identity(A) + defect(pair[0].detach()) / 2
            pair = (pair[0] @ H, pair[1] @ H)
    return pair


def _push_forward(scheme: Scheme, A: Tensor, E: Tensor, squarings: int) -> Pair:
    """p(A / 2^squarings), with the scheme's polynomial p, and its derivative along E.

    Both can be differentiated again.
    """
    unit = scheme.theta * 2.0**squarings
    first = (A / unit, E / unit)
    second = _times(first, first)
    eye = identity(A)
    basis = [(eye, torch.zeros_like(eye)), first, second]
    if scheme.powers == 3:
        basis.append(_times(second, second))
    for L, R in zip(scheme.rows[:-1:2], scheme.rows[1::2], strict=True):
        basis.append(_times(_sum(L, basis), _sum(R, basis)))
    return _sum((*scheme.rows[-1], 1.0), basis)


def _times(X: Pair, Y: Pair) -> Pair:
    return X[0] @ Y[0], X[1] @ Y[0] + X[0] @ Y[1]


def _sum(row: tuple[float, ...], basis: list[Pair]) -> Pair:
    value = sum(c * matrix for c, (matrix, _) in zip(row, basis, strict=True))
    slope = sum(c * tangent for c, (_, tangent) in zip(row, basis, strict=True))
    # Both are tensors already, but `sum` is annotated to return an int as well. `cast`
    # leaves them alone; `torch.as_tensor` would move them to torch's default device.
    return cast("Pair", (value, slope))


def adjoint(A: Tensor, G: Tensor, plans: Tensor | None = None) -> Tensor:
    """The skew gradient with respect to A, given the gradient G with respect to exp(A).

    The result can be differentiated again. The derivative L(A, E) of exp is the
    integral of exp(sA) E exp((1 - s)A) over s from 0 to 1. So the adjoint of
    E -> L(A, E) is G -> L(A^H, G), and A^H = -A.
    """
    g = frechet(-with_skew_gradient(A), G, plans)[1]
    return (g - g.mH) / 2


@traced_as(lambda A, G: (exponential(A, None), adjoint(A, G)))
def value_and_adjoint(A: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """exp(A), and the skew gradient with respect to A that `adjoint` returns.

    Both can be differentiated again.
    """
    Q, W, plans = Exponential.apply(A, None)
    if nested_forward_mode():
        return frechet(A, torch.zeros_like(A), plans)[0], adjoint(A, G, plans)
    return Q, Adjoint.apply(A, G, W, plans)


class Exponential(torch.autograd.Function):
    """A -> exp(A); the slots and plans for the backward pass are outputs too."""

    forward = staticmethod(_forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, W, plans = output
        ctx.mark_non_differentiable(W, plans)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], W, plans)
        ctx.save_for_forward(inputs[0], plans)

    @staticmethod
    def backward(ctx: Any, G: Tensor | None, *_: Any) -> tuple[Tensor | None, None]:
        if G is None:
            return None, None
        A, W, plans = ctx.saved_tensors
        if is_batched_gradient(G):
            return adjoint(A, G, plans), None
        if torch.is_grad_enabled():
            return Adjoint.apply(A, G, W, plans), None
        return _backward(W, plans, G), None

    @staticmethod
    def jvp(ctx: Any, E: Tensor, _: None) -> tuple[Tensor, None, None]:
        A, plans = ctx.saved_for_forward
        return frechet(A, E, plans)[1], None, None

    @staticmethod
    def vmap(_info: Any, in_dims: tuple, A: Tensor, norm_bound: float | None):
        return Exponential.apply(A.movedim(in_dims[0], 0), norm_bound), (0, 1, 0)


class EagerExponential(Exponential):
    """A -> exp(A) with one output, for use when no torch.func transform is active.

    The inherited `setup_context` is replaced with torch's default. Otherwise torch
    would inspect the signature of `forward` at every call.
    """

    setup_context = staticmethod(torch.autograd.Function.setup_context)

    @staticmethod
    def forward(ctx: Any, A: Tensor, norm_bound: float | None) -> Tensor:
        Q, W, plans = _forward(A, norm_bound)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(A, W, plans)
        ctx.save_for_forward(A, plans)
        return Q

    @staticmethod
    def jvp(ctx: Any, E: Tensor, _: None) -> Tensor:
        A, plans = ctx.saved_for_forward
        return frechet(A, E, plans)[1]


class Adjoint(torch.autograd.Function):
    """(A, G, W, plans) -> the skew gradient with respect to A; see `adjoint`.

    W and plans come from the forward pass. A is needed only for the derivatives of this
    function.
    """

    @staticmethod
    def forward(_A: Tensor, G: Tensor, W: Tensor, plans: Tensor) -> Tensor:
        return _backward(W, plans, G)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, _output: Tensor) -> None:
        A, G, _, plans = inputs
        ctx.save_for_backward(A, G, plans)
        ctx.save_for_forward(A, G, plans)

    @staticmethod
    def backward(ctx: Any, H: Tensor) -> tuple[Tensor, Tensor, None, None]:
        A, G, plans = ctx.saved_tensors
        pull = torch.func.vjp(lambda X, Y: adjoint(X, Y, plans), A, G)[1]
        return *pull(H), None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor | None, dG: Tensor | None, *_: Any) -> Tensor:
        A, G, plans = ctx.saved_for_forward
        out = torch.zeros_like(A)
        if dG is not None:
            out = out + adjoint(A, dG, plans)
        if dA is not None:
            # The second derivative of f(A) = <G, exp A> is symmetric. So the derivative
            # of the gradient of f along dA is the gradient of <G, L(A, dA)>.
            (g,) = torch.func.vjp(lambda X: frechet(X, dA, plans)[1], A)[1](G)
            out = out + (g - g.mH) / 2
        return out

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Tensor):
        A, G, W, plans = in_front(info, in_dims, args)
        # the axis of the slots comes before all batch axes
        W = W.movedim(0, 1).contiguous()
        return Adjoint.apply(A, G, W, plans.contiguous()), 0


def _empty(A: Tensor, _norm_bound: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Empty outputs of the right shapes, for a graph that is being traced."""
    plans = torch.empty(A.shape[:-2], dtype=torch.int64, device="cpu")
    Q = A.new_empty(A.shape)
    return Q, A.new_empty((products.slots(A.dtype), *A.shape)), plans


def _frechet_forward(A: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    return frechet(A, E)


def _frechet_adjoint(
    A: Tensor, E: Tensor, G: Tensor, H: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to A and E.

    G and H are the gradients with respect to exp(A) and L(A, E).
    """
    gradient, along = torch.func.vjp(frechet, A, E)[1]((G, H))
    return gradient.contiguous(), along.contiguous()


_frechet_op = opaque(
    "expm_skew_frechet",
    _frechet_forward,
    fake=lambda A, E: (A.new_empty(A.shape), E.new_empty(E.shape)),
    adjoint=_frechet_adjoint,
    saves=lambda inputs, _: inputs,
)
_expm_op = opaque(
    "expm_skew",
    _forward,
    fake=_empty,
    adjoint=_backward,
    saves=lambda _, outputs: outputs[1:],
)
