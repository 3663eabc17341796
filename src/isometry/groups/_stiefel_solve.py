r"""The derivative of the Stiefel exponential in its velocity, and its inverse.

Let $J$ be the derivative of $\exp_Q$ at the tangent vector $E$, and $N$ the projection
to the space normal to the manifold at $Q$, which $J$ ignores. Then

$$ M = J^* J + N $$

is symmetric, and positive wherever the exponential has no fold. On tangent vectors
$J^{-1} = M^{-1} J^*$. All computations use matrices of the shape of $Q$.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from isometry.linalg import expm_tall
from isometry.linalg._implicit import Implicit

# A limit, because at a fold no number of steps is enough. Elsewhere a few angles make
# the whole spectrum, and the largest number we saw was 40 (8 columns, distance pi)
_STEPS = 200


def normal_part(Q: Tensor, X: Tensor) -> Tensor:
    r"""$Q \operatorname{sym}(Q^H X)$."""
    S = Q.mH @ X
    return Q @ ((S + S.mH) / 2)


def pull(f: Callable[..., Tensor], X: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The adjoint derivative of `f` at the inputs, applied to `X`, differentiable."""
    # not `torch.func.vjp`: its function would run the backward pass of `expm_tall` at a
    # level of torch.func that has already ended
    every = tuple(range(len(inputs)))
    return torch.func.grad(lambda *Y: _dot(X, f(*Y)).sum(), argnums=every)(*inputs)


def push(f: Callable[..., Tensor], Y: Sequence[Tensor], *inputs: Tensor) -> Tensor:
    """The derivative of `f` at the inputs along `Y`, differentiable."""

    # the adjoint of the adjoint, which is linear in X; forward mode would not nest
    def along(X: Tensor) -> Tensor:
        pairs = zip(Y, pull(f, X, *inputs), strict=True)
        return torch.stack([_dot(*pair).sum() for pair in pairs]).sum()

    return torch.func.grad(along)(torch.zeros_like(Y[0]))


def solve(Q: Tensor, E: Tensor, G: Tensor) -> Tensor:
    """$M^{-1} G$, differentiable to any order in all three arguments."""
    return _Solve.apply(Q, E, G)


class Linearization:
    """The exponential at `E`, with one graph for many products with $J$ and $J^*$.

    Args:
        Q: orthonormal columns.
        E: tangent vectors at `Q`, of the same shape.
    """

    def __init__(self, Q: Tensor, E: Tensor) -> None:
        with torch.enable_grad():
            self._Q = Q.detach()
            self._E = E.detach().requires_grad_()
            self._P = expm_tall(self._E, self._Q)
            self._X = torch.zeros_like(self._P, requires_grad=True)
            # J^* X is linear in X, so its derivative is the adjoint of J^*, that is J
            (self._pulled,) = torch.autograd.grad(
                self._P, self._E, self._X, create_graph=True
            )

    @property
    def point(self) -> Tensor:
        """The exponential of `E`."""
        return self._P.detach()

    def pull(self, X: Tensor) -> Tensor:
        """$J^* X$."""
        return torch.autograd.grad(self._P, self._E, X, retain_graph=True)[0]

    def product(self, Y: Tensor) -> Tensor:
        """$M Y$."""
        pushed = torch.autograd.grad(self._pulled, self._X, Y, retain_graph=True)[0]
        return self.pull(pushed) + normal_part(self._Q, Y)


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], G: Tensor, *, rtol: float
) -> Tensor:
    """Solution of $M Y = G$ for each matrix of a batch, from products with $M$.

    If the residual does not fall to `rtol` times `G`, it returns the last iterate.
    """
    Y, R = torch.zeros_like(G), G
    D, rr = R, _dot(R, R)
    goal = rtol**2 * rr
    for _ in range(_STEPS):
        # a matrix that has converged stays as it is. NaN never counts as moving, and
        # does not affect other matrices
        moving = rr > goal
        if not bool(moving.any()):
            break
        image = product(D)
        alpha = torch.where(moving, rr / _dot(D, image), 0)
        Y, R = Y + alpha * D, R - alpha * image
        rr, last = _dot(R, R), rr
        D = R + torch.where(moving, rr / last, 0) * D
    return Y


def _dot(X: Tensor, Y: Tensor) -> Tensor:
    return (X.conj() * Y).real.sum((-2, -1), keepdim=True)


class _Solve(Implicit):
    @staticmethod
    def forward(Q: Tensor, E: Tensor, G: Tensor) -> Tensor:
        # twice the rounding error of one sum
        rtol = 2 * torch.finfo(G.dtype).eps
        return conjugate_gradients(Linearization(Q, E).product, G, rtol=rtol)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        Q, E, Y = ctx.saved_tensors
        Z = solve(Q, E, grad_outputs[0])
        # M Y = G, so that M dY = dG - dM Y
        dQ, dE = pull(lambda Q, E: _product(Q, E, Y), Z, Q, E)
        return -dQ, -dE, Z

    @staticmethod
    def jvp(ctx: Any, dQ: Tensor, dE: Tensor, dG: Tensor) -> Tensor:
        Q, E, Y = ctx.saved_tensors
        dM = push(lambda Q, E: _product(Q, E, Y), (dQ, dE), Q, E)
        return solve(Q, E, dG - dM)


def _product(Q: Tensor, E: Tensor, Y: Tensor) -> Tensor:
    def exp(E: Tensor) -> Tensor:
        return expm_tall(E, Q)

    return pull(exp, push(exp, (Y,), E), E)[0] + normal_part(Q, Y)
