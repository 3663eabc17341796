r"""Logarithm on the Stiefel manifold with its canonical metric, and its derivative.

Let $J$ be the derivative of $\exp_Q$ at the tangent vector $E$, and $\Pi$ the
projection onto the normal space of the manifold at $Q$. $J$ is extended to normal
vectors, which it maps to zero. Then

$$ M = J^* J + \Pi $$

is symmetric. Where $J$ is invertible on tangent vectors, $M$ is positive definite, and
$J^{-1} = M^{-1} J^*$. $M$ is never formed: conjugate gradients only need its products
with matrices shaped like $Q$.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from isometry._checks import check_has_numbers
from isometry._nan import is_finite
from isometry._orthonormal import newton_schulz
from isometry._torch import refuse_nested_forward_mode
from isometry.groups._ambient import fixed_gaussian
from isometry.groups._nearest import nearest_rotation, normal_part, turn_last_column
from isometry.linalg import expm_skew, expm_tall, logm_unitary
from isometry.linalg._implicit import Implicit

# Limits on the steps of `_turn`, the steps of Newton's method in `_shoot`, and the
# restarts of `_search`. `_search` completes a matrix with orthonormal columns to a
# square one. `_turn` rotates the new columns. It is slow, but it also works if P is far
# from Q. Newton's method then starts from the result. If it fails, `_search` starts
# again with other new columns.
_TURNS = 20
_SHOTS = 30
_RESTARTS = 20
# Newton's method has failed if a geodesic ends farther from P than this number times
# the number of columns
_FAR = 1e-12

# Limit on the steps of conjugate gradients for one linear equation M Y = G. A limit is
# needed because M is singular at conjugate points. Elsewhere the spectrum of M depends
# on only a few angles, and at most 40 steps were needed (8 columns, distance pi).
_GRADIENT_STEPS = 200

LinearMap = Callable[[Tensor], Tensor]


def stiefel_log(Q: Tensor, P: Tensor) -> Tensor:
    r"""Velocity at `Q` of the geodesic that reaches `P` after unit time.

    Let $N$ be an orthonormal basis of the part of $P$ that is orthogonal to $Q$. The
    span of $(Q, N)$ contains the whole geodesic. In this basis the coordinates of $P$
    are the first $k$ columns of an orthogonal or unitary $V$. The other columns of $V$
    may be rotated freely, and are rotated until the last block of $\log V$ is zero:

    $$ \log V = \begin{pmatrix} \Omega & -C^H \\ C & 0 \end{pmatrix},
       \qquad E = Q \Omega + N C. $$

    Each rotation is the exponential of minus the last block of $\log V$. This makes
    that block smaller, by about the same factor each time. After at most 20 such
    rotations Newton's method solves the equation $\exp_Q(E) = P$. The geodesic is the
    shortest if the distance is below about $0.9 \pi$. Beyond that, the method converged
    for every pair that we tried, but the geodesic need not be the shortest.

    The derivative follows from the implicit function theorem:
    $dE = J^{-1} (dP - D_Q \exp_Q(E)[dQ])$ in the tangent space, with $J$ the derivative
    of $\exp_Q$ at $E$. The derivative has a pole at conjugate points, where $J$ is
    singular. The gradient is tangent. Derivatives nest to any order and in any mode,
    except forward over forward. If a matrix is not finite, its logarithm is NaN.

    Cost: up to 21 logarithms of matrices with at most $2k$ rows and, beyond a distance
    of about 1, a few steps of Newton's method. If Newton's method fails, the search
    restarts at the same cost. Each step of Newton's method, and each derivative, solves
    a linear equation with 5 to 40 steps of conjugate gradients. A step of conjugate
    gradients costs as much as two backward passes through `expm_tall`. All computations
    are in double precision.

    Args:
        Q: matrices with orthonormal columns.
        P: matrices with orthonormal columns.

    Returns:
        The tangent vector.

    Raises:
        NotImplementedError: inside two levels of `torch.func.jvp`.
        TypeError: on the meta device and in FakeTensorMode.
        ValueError: if no geodesic was found.

    References:
        [Zim17] algorithm 1 for the rotations.
    """
    refuse_nested_forward_mode("log")
    check_has_numbers(P, name="P")
    dtype = torch.promote_types(Q.dtype, torch.float64)
    # two Newton-Schulz steps remove the rounding errors of single precision
    base, target = (newton_schulz(newton_schulz(X.to(dtype))) for X in (Q, P))
    E = _StiefelLog.apply(*torch.broadcast_tensors(base, target))
    # return a copy: the caller may write to it, but autograd has saved E itself
    return E.to(Q.dtype, copy=True)


class _StiefelLog(Implicit):
    """The logarithm, with its derivative written in terms of the result."""

    @staticmethod
    def forward(Q: Tensor, P: Tensor) -> Tensor:
        if Q.numel() == 0:
            return torch.zeros_like(Q)
        shape = Q.shape
        n, k = shape[-2:]
        Q, P = Q.reshape(-1, n, k), P.reshape(-1, n, k)
        finite = is_finite(Q) & is_finite(P)
        eye = torch.eye(n, k, dtype=Q.dtype, device=Q.device)
        Q, P = torch.where(finite, Q, eye), torch.where(finite, P, eye)
        # The search uses coordinates in an orthonormal basis of the span of Q and P,
        # which consists of the columns of Q and N. To compute N, decompose Q and P
        # together. The part of P that is orthogonal to Q may not have full rank, so it
        # cannot be decomposed alone.
        N = torch.linalg.qr(torch.cat([Q, P], -1)).Q[..., k:]
        # The columns of P are in the span of Q and N only up to rounding. The
        # Newton-Schulz step makes the columns of V orthonormal again.
        V = newton_schulz(torch.cat([Q.mH @ P, N.mH @ P], -2))
        E = _search(V)
        E = Q @ E[..., :k, :] + N @ E[..., k:, :]
        return torch.where(finite, E, math.nan).reshape(shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        Q, E = ctx.saved_tensors
        (G,) = grad_outputs
        # X is J^-* G, a tangent vector at P
        X = push(lambda E: expm_tall(E, Q), (_Solve.apply(Q, E, G),), E)
        (base_term,) = pull(lambda Q: expm_tall(E, Q), X, Q)
        # E stays tangent when Q moves, so sym(Q^H dE) = -sym(dQ^H E), and dE contains
        # -Q sym(dQ^H E). `tangency_term` is the adjoint of dQ -> Q sym(dQ^H E), applied
        # to G. The return statement gives both terms their minus sign.
        tangency_term = E @ (Q.mH @ normal_part(Q, G))
        gradient = base_term + tangency_term
        return normal_part(Q, gradient) - gradient, X

    @staticmethod
    def jvp(ctx: Any, dQ: Tensor, dP: Tensor) -> Tensor:
        Q, E = ctx.saved_tensors
        dQ = dQ - normal_part(Q, dQ)
        base_term = push(lambda Q: expm_tall(E, Q), (dQ,), Q)
        S = dQ.mH @ E
        tangency_term = Q @ ((S + S.mH) / 2)
        (image,) = pull(lambda E: expm_tall(E, Q), dP - base_term, E)
        return _Solve.apply(Q, E, image) - tangency_term


def _turn(V: Tensor, k: int) -> Tensor:
    """First k columns of log V, after the other columns of V have been rotated.

    The rotations are described in `stiefel_log`.
    """
    A = logm_unitary(V)
    for _ in range(_TURNS):
        C = A[..., k:, k:]
        if C.numel() == 0 or float(torch.linalg.matrix_norm(C).max()) < 1e-14 * k:
            break
        V = newton_schulz(torch.cat([V[..., :k], V[..., k:] @ expm_skew(-C)], -1))
        A = logm_unitary(V)
    return A[..., :k]


def _search(V: Tensor) -> Tensor:
    """Tangent vectors at the origin whose geodesics end at `V`.

    Newton's method is tried from several starting vectors.
    """
    k = V.shape[-1]
    completion = _completion(V)
    E, gap = _shoot(_turn(completion, k), V)
    for i in range(_RESTARTS):
        is_far = gap > _FAR * k
        if not is_far.any():
            break
        # Near a point where the derivative of exp is singular, Newton's method may
        # oscillate. Complete V with other columns, which may lead to another geodesic,
        # and start again.
        columns = completion[is_far][..., k:]
        count, _, m = columns.shape
        X = fixed_gaussian(count, m, m, dtype=V.dtype, seed=i).to(V.device)
        restart = torch.cat([V[is_far], columns @ expm_skew(X - X.mH)], -1)
        E[is_far], gap[is_far] = _shoot(_turn(restart, k), V[is_far])
    if bool((gap > _FAR * k).any()):
        raise ValueError(
            f"`P` must be joined to `Q` by a geodesic that the iteration finds; the "
            f"iteration stopped {float(gap.max()):.1e} from `P`, above "
            f"{_FAR * k:.1e}. It converges if the points are closer than about 0.9 pi: "
            f"go through a point in between."
        )
    return E


def _shoot(E: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
    """Result of Newton's method for exp E = P at the origin, started at `E`, and gaps.

    A gap is the distance from `P` at which the geodesic along the result ends.
    """
    k = P.shape[-1]
    origin = torch.eye(*P.shape[-2:], dtype=P.dtype, device=P.device).expand_as(P)
    E = E - normal_part(origin, E)
    worst = math.inf
    for _ in range(_SHOTS):
        gap = torch.linalg.matrix_norm(P - expm_tall(E, origin))
        # The rounding error of `gap` is about 4e-15 k, so a smaller `gap` cannot be
        # reduced. A step from a `gap` of at most `_FAR * k` leaves only the rounding
        # error, so the loop ends after such a step.
        indices = (gap > 4e-15 * k).nonzero()[:, 0]
        if len(indices) == 0 or worst <= _FAR * k:
            break
        worst = float(gap.max())
        end, pull_back, product = _linearization(origin[indices], E[indices])
        image = pull_back(P[indices] - end)
        # At best, a Newton step squares the error: 1e-2 becomes 1e-4. So the relative
        # error of the step need not be below the current error.
        rtol = min(max(worst, 1e-10), 1e-2)
        step = conjugate_gradients(product, image, rtol=rtol)
        length = torch.linalg.matrix_norm(step, keepdim=True)
        E = E.index_add(0, indices, step / length.clamp(min=1))
    return E, torch.linalg.matrix_norm(P - expm_tall(E, origin))


def _completion(V: Tensor) -> Tensor:
    """Rotation or unitary matrix with first columns `V`, as close to I as possible."""
    k = V.shape[-1]
    columns = torch.linalg.qr(V, mode="complete").Q[..., k:]
    # Make the determinant 1. If V is real, the product with `nearest_rotation` below
    # does not change the determinant.
    columns = turn_last_column(torch.cat([V, columns], -1))[..., k:]
    columns = columns @ nearest_rotation(columns[..., k:, :].mH)
    return torch.cat([V, columns], -1)


def pull(f: Callable[..., Tensor], X: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The adjoint of the derivative of `f` at `inputs`, applied to `X`.

    The result can be differentiated again.
    """
    # not `torch.func.vjp`: the function that it returns would run the backward pass of
    # `expm_tall` at a level of torch.func that has already ended
    argnums = tuple(range(len(inputs)))
    return torch.func.grad(lambda *Y: _dot(X, f(*Y)).sum(), argnums=argnums)(*inputs)


def push(f: Callable[..., Tensor], Y: Sequence[Tensor], *inputs: Tensor) -> Tensor:
    """The derivative of `f` at `inputs` along `Y`; it can be differentiated again."""

    # `pull` applies the adjoint of the derivative of f to X. So the function below is
    # linear in X, and its gradient is the derivative of f along Y. Forward mode would
    # be simpler, but it does not nest.
    def along(X: Tensor) -> Tensor:
        pairs = zip(Y, pull(f, X, *inputs), strict=True)
        return torch.stack([_dot(*pair).sum() for pair in pairs]).sum()

    return torch.func.grad(along)(torch.zeros_like(Y[0]))


def _linearization(Q: Tensor, E: Tensor) -> tuple[Tensor, LinearMap, LinearMap]:
    """The exponential of `E`, and two functions that compute $J^* X$ and $M Y$.

    $J$ and $M$ are defined at the top of this file. The two functions share one
    autograd graph.
    """
    with torch.enable_grad():
        E = E.detach().requires_grad_()
        P = expm_tall(E, Q.detach())
        Z = torch.zeros_like(P, requires_grad=True)
        # J^* Z is linear in Z, so its backward pass applies J, the adjoint of J^*
        (pulled,) = torch.autograd.grad(P, E, Z, create_graph=True)

    def pull_back(X: Tensor) -> Tensor:
        return torch.autograd.grad(P, E, X, retain_graph=True)[0]

    def product(Y: Tensor) -> Tensor:
        pushed = torch.autograd.grad(pulled, Z, Y, retain_graph=True)[0]
        return pull_back(pushed) + normal_part(Q, Y)

    return P.detach(), pull_back, product


def conjugate_gradients(product: LinearMap, G: Tensor, *, rtol: float) -> Tensor:
    """Solution of $M Y = G$ for each matrix in a batch, from products with $M$.

    If the norm of the residual does not fall to `rtol` times the norm of `G` within
    `_GRADIENT_STEPS` steps, the last iterate is returned.
    """
    Y = torch.zeros_like(G)
    R = G
    D = R
    rr = _dot(R, R)
    goal = rtol**2 * rr
    for _ in range(_GRADIENT_STEPS):
        # Matrices that have converged are not updated any more. NaN counts as
        # converged, and does not affect other matrices.
        is_moving = rr > goal
        if not bool(is_moving.any()):
            break
        image = product(D)
        alpha = torch.where(is_moving, rr / _dot(D, image), 0)
        Y, R = Y + alpha * D, R - alpha * image
        last_rr = rr
        rr = _dot(R, R)
        D = R + torch.where(is_moving, rr / last_rr, 0) * D
    return Y


def _dot(X: Tensor, Y: Tensor) -> Tensor:
    return (X.conj() * Y).real.sum((-2, -1), keepdim=True)


class _Solve(Implicit):
    """The solution Y of M Y = G, with derivatives of any order in Q, E and G.

    M depends on Q and E, and is defined at the top of this file.
    """

    @staticmethod
    def forward(Q: Tensor, E: Tensor, G: Tensor) -> Tensor:
        # a smaller residual would be lost in rounding errors
        rtol = 2 * torch.finfo(G.dtype).eps
        _, _, product = _linearization(Q, E)
        return conjugate_gradients(product, G, rtol=rtol)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        Q, E, Y = ctx.saved_tensors
        Z = _Solve.apply(Q, E, grad_outputs[0])
        # M Y = G implies M dY = dG - dM Y
        dQ, dE = pull(lambda Q, E: _product(Q, E, Y), Z, Q, E)
        return -dQ, -dE, Z

    @staticmethod
    def jvp(ctx: Any, dQ: Tensor, dE: Tensor, dG: Tensor) -> Tensor:
        Q, E, Y = ctx.saved_tensors
        dM = push(lambda Q, E: _product(Q, E, Y), (dQ, dE), Q, E)
        return _Solve.apply(Q, E, dG - dM)


def _product(Q: Tensor, E: Tensor, Y: Tensor) -> Tensor:
    """The product M Y, differentiable with respect to each argument."""

    def exp(E: Tensor) -> Tensor:
        return expm_tall(E, Q)

    return pull(exp, push(exp, (Y,), E), E)[0] + normal_part(Q, Y)
