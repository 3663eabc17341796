"""The exponential as a map from skew matrices to points.

For a large real matrix on the CPU, `Exp.around` is a single node of the autograd graph.
The second half of this file defines this node.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry._backend import backend_for, is_large
from isometry._backend.memory import recycled
from isometry._dtypes import PRECISIONS
from isometry._operators import largest, opaque
from isometry._torch import (
    autocast_off,
    in_forward_mode,
    is_batched_gradient,
    needs_plain_operations,
    version,
)
from isometry.groups._maps.abstract import AbstractRetraction
from isometry.linalg import expm_skew, expm_tall, logm_unitary, skew
from isometry.linalg._expm import products
from isometry.linalg._expm.angles import samuelson_bound, within_reach
from isometry.linalg._expm.autograd import Adjoint, adjoint


@dataclass(frozen=True)
class Exp(AbstractRetraction):
    r"""The exponential, which follows geodesics on groups and the Stiefel manifold.

    On a group, it reaches every point in the connected component of the base, and is a
    diffeomorphism where all angles are below $\pi$. Coordinates and optimizers use it
    by default.

    The number of products depends on the angles. So the host reads a bound on the
    angles, and must wait for this bound if the matrix is on an accelerator. If `reach`
    is set, the host does not wait: the number of products is fixed, so a CUDA graph can
    be captured, and the accelerator itself checks the angles. Where the check fails,
    value and gradient are NaN. The check costs two products. It compares `reach` with
    an upper bound on the angles. For real random matrices this bound exceeds the
    largest angle by 7 percent at n = 64, and by 30 percent at n = 1024. So `reach` must
    exceed the largest angle that you expect by at least as much.

    Args:
        reach: the exponential of a square matrix is NaN if the bound on the angles of
            the matrix exceeds this number. With None, all angles are allowed. `reach`
            has no effect on tall matrices.

    Raises:
        ValueError: if `reach` is not positive and finite.
    """

    name = "exp"
    order = float("inf")
    is_exponential = True

    reach: float | None = None

    def __post_init__(self) -> None:
        if self.reach is not None and not 0 < self.reach < float("inf"):
            raise ValueError(
                f"`reach` must be a positive angle; got {self.reach}. Leave it out to "
                f"allow every angle."
            )

    def at_identity(self, A: Tensor) -> Tensor:
        r"""$e^A$."""
        if self.reach is None:
            return expm_skew(A)
        return expm_skew(within_reach(A, self.reach), norm_bound=self.reach)

    def inverse(self, Q: Tensor) -> Tensor:
        """The principal logarithm."""
        return logm_unitary(Q)

    def around(self, X: Tensor, B: Tensor | None) -> Tensor:
        r"""$B\,e^{\operatorname{skew} X}$, where None stands for $B = I$.

        For one large real matrix on the CPU (see `is_large`) and a constant `B`, this
        is a single node of the autograd graph (a single operator, if compiled). The
        skew matrix is then written directly into the memory that the exponential works
        in, and need not be copied there. The gradient is the same as with separate
        steps.

        Cost: as for `expm_skew`; with `B`, one more product for the value, and one for
        the gradient.
        """
        if self.reach is None and _is_one_node(X, B):
            if torch.compiler.is_compiling() and not in_forward_mode():
                return _rotation_op(X, B)[0]
            if not needs_plain_operations(X, B):
                return Rotation.apply(X, B)
        return super().around(X, B)

    def tall(self, X: Tensor, B: Tensor | None = None) -> Tensor:
        """The end of the geodesic from `B` along `X`.

        If n > 2k, no n x n matrix is formed.
        """
        return expm_tall(X, B)

    def vector(self, E: Tensor, q: Tensor) -> Tensor:
        r"""$\cos(t)\, q + \sin(t)\, E / t$ with $t = \lVert E \rVert$."""
        s = (E * E).sum(-1, keepdim=True)
        # t = sqrt(s) has no derivative at s = 0, but cos(t) and sin(t) / t have one
        t = torch.where(s == 0, 1, s).sqrt()
        cosine = torch.where(s == 0, 1 - s / 2, t.cos())
        sinc = torch.where(s == 0, 1 - s / 6, t.sin() / t)
        return cosine * q + sinc * E

    def increment(self, A: Tensor) -> Tensor | None:
        r"""$e^A - I$; None if an angle may be large, or if `reach` is set.

        $$ e^A - I \approx A + A^2 \bigl( \tfrac12 I + \tfrac16 A
           + \tfrac1{24} A^2 \bigr) \quad\text{or}\quad A + \tfrac12 A^2
           + A^3 \bigl( \tfrac16 I + \tfrac1{24} A + \tfrac1{120} A^2
           + \tfrac1{720} A^3 \bigr). $$

        A bound on the angles decides which formula is used, so that the error of the
        formula is about eps. Cost: in single precision, two products up to an angle of
        0.1, and three up to 0.35. In double precision, these limits are 0.0019 and
        0.02.
        """
        if self.reach is not None:
            return None
        shortest, longest = PRECISIONS[A.dtype.to_real()].taylor_angles
        # The Frobenius norm is tested first, since it needs no product, unlike
        # `samuelson_bound` below. For a random matrix, norm / n^(1/4) is 0.9 to 1.2
        # times that bound, so the two tests nearly agree. If all angles are equal, this
        # test is stricter: it already fails at an angle of `longest` / n^(1/4).
        norm = largest(torch.linalg.matrix_norm(A), unknown=math.inf)
        # written so that NaN counts as long
        if not norm <= A.shape[-1] ** 0.25 * longest:
            return None
        A2 = recycled(A.shape, A)
        backend_for(A, A2).square(A, A2)
        bound = samuelson_bound(A, A2)
        inner = recycled(A.shape, A)
        if bound <= shortest:
            T = torch.mul(A2, 1 / 24, out=inner).add_(A, alpha=1 / 6)
            T.diagonal(dim1=-2, dim2=-1).add_(1 / 2)
            return torch.baddbmm(A, A2, T)
        if bound <= longest:
            A3 = torch.bmm(A2, A, out=recycled(A.shape, A))
            T = torch.mul(A3, 1 / 720, out=inner)
            T.add_(A2, alpha=1 / 120).add_(A, alpha=1 / 24)
            T.diagonal(dim1=-2, dim2=-1).add_(1 / 6)
            return torch.baddbmm(A, A3, T).add_(A2, alpha=1 / 2)
        return None

    def quotient(self, M: Tensor, R: Tensor, norm: float) -> Tensor:
        r"""$\sum_j M^j R / (j + 1)!$ up to the unit roundoff, by Horner's rule."""
        degree, term = 1, norm / 2
        while term > torch.finfo(M.dtype).eps / 4:
            degree += 1
            term *= norm / (degree + 1)
        X = R * (1 / (degree + 1))
        for j in range(degree, 0, -1):
            X = torch.baddbmm(R, M, X, beta=1 / j, alpha=1 / j)
        return X

    def phase(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The angle `theta` itself, and its derivative, which is 1."""
        return theta, torch.ones_like(theta)


def _is_one_node(X: Tensor, B: Tensor | None) -> bool:
    """Whether `Exp.around` can be a single node of the autograd graph.

    For this, X must be one large real matrix on the CPU. B must be None, or a constant
    on the CPU with the shape and dtype of X.
    """
    if not isinstance(X, Tensor) or X.ndim != 2 or X.shape[0] != X.shape[1]:
        return False
    # The device must be checked after the size. When it was checked first, a compiled
    # module under DDP was split into three graphs instead of two
    # (test_compiled_data_parallel_training).
    if not is_large(X) or X.dtype not in PRECISIONS or not X.is_cpu:
        return False
    if B is None:
        return True
    alike = B.shape == X.shape and B.dtype == X.dtype and B.is_cpu
    return alike and not B.requires_grad


class Rotation(torch.autograd.Function):
    """(X, B) -> B exp(skew X) for one real matrix."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, B: Tensor | None) -> Tensor:
        Q, W, plan = _value(X, B)
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
        if not (torch.is_grad_enabled() or is_many or needs_plain_operations(G)):
            return _gradient(B, W, plan, G), None
        # in all other cases, compute the gradient by differentiable operations
        if version(ctx.X) != ctx.version:
            raise RuntimeError(
                "the coordinates must not change before a second derivative is taken "
                "through them; something has written to them. Take the derivative "
                "first."
            )
        W = W[:, 0]
        # W[0] is skew(X) from the forward pass. A write to `X.data` changes X, but not
        # its version, so X itself is used only for its derivative.
        A = W[0] + skew(ctx.X - ctx.X.detach())
        with autocast_off(G.device):
            G = G if B is None else B.mT @ G
            g = adjoint(A, G, plan) if is_many else Adjoint.apply(A, G, W, plan)
        return (g - g.mT).tril(-1), None


def _value(X: Tensor, B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """B exp(skew X), and the slots and the plan for the backward pass."""
    batch = X.contiguous()[None]
    B = None if B is None else B.contiguous()
    backend = backend_for(batch, B)
    W = products.new_slots(batch)
    backend.skew(batch, W[0])
    E, plan = products.forward(backend, W)
    # not `view`, for the reason given in `_forward` of linalg/_expm/autograd.py
    E.resize_(X.shape)
    Q = E if B is None else backend.multiply(B, E)
    return Q, W, plan.resize_(())


def _gradient(B: Tensor | None, W: Tensor, plan: Tensor, G: Tensor) -> Tensor:
    # a hook on saved tensors may have returned B or W with different strides
    W = W.contiguous()
    G = G.contiguous()
    B = None if B is None else B.contiguous()
    backend = backend_for(G, W, B)
    if B is not None:
        # The gradient with respect to exp(skew X) is B^T G. It is computed as
        # (G^T B)^T, because C reads the transpose of this gradient, and this way the
        # transpose is contiguous.
        G = backend.multiply(G, B, transposed=True).mT
    gradient = products.backward(backend, W, plan.view(1), G[None])[0]
    # If exp(skew X) is NaN, the gradient is G times NaN and has the strides of G. But C
    # needs contiguous memory.
    return backend.skew_adjoint(gradient.contiguous())


def _empty(X: Tensor, _B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Empty outputs of the right shapes, for a graph that is being traced."""
    W = X.new_empty((products.slots(X.dtype), 1, *X.shape))
    return X.new_empty(X.shape), W, torch.empty((), dtype=torch.int64, device="cpu")


# The plan depends on the numbers in the matrix, which a compiler does not know. So a
# compiled graph calls this operator, and the operator chooses the plan when it runs.
_rotation_op = opaque(
    "rotation",
    _value,
    fake=_empty,
    adjoint=_gradient,
    saves=lambda inputs, outputs: (inputs[1], *outputs[1:]),
)
