"""Slow twins of the optimizers: tangent vectors are matrices, rotations are n x n.

They follow the definitions, in torch's operations and double precision. They use no
frames: the momentum of a group is a tangent matrix E, which is translated to the next
point, and rules that work entry by entry use the entries of Q^H E.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isometry.groups import SU, AbstractGroup, AbstractManifold, Sphere, Stiefel

Loss = Callable[[Tensor], Tensor]


def skew_part(X: Tensor) -> Tensor:
    return (X - X.mH) / 2


def is_group(manifold: AbstractManifold) -> bool:
    return isinstance(manifold, AbstractGroup)


def gradient(manifold: AbstractManifold, Q: Tensor, G: Tensor) -> Tensor:
    if isinstance(manifold, AbstractGroup):
        return Q @ manifold.algebra_projection(Q.mH @ G)
    if isinstance(manifold, Sphere):
        return G - Q * (Q * G).sum()
    return G - Q @ G.mH @ Q


def phi(A: Tensor, retraction: str) -> Tensor:
    """exp, or the quotient of polynomials by its textbook formula."""
    if retraction == "exp":
        # torch.linalg.matrix_exp has an error of 1e-13 at norm 0.01
        theta, V = torch.linalg.eigh(-1j * A)
        Q = (V * torch.exp(1j * theta)) @ V.mH
        return Q if A.is_complex() else Q.real
    m = 1 if retraction == "cayley" else int(retraction.removeprefix("pade-"))
    b = [
        math.comb(m, j) * math.factorial(2 * m - j) / math.factorial(2 * m)
        for j in range(m + 1)
    ]
    above = sum(c * torch.linalg.matrix_power(A, j) for j, c in enumerate(b))
    below = sum(c * torch.linalg.matrix_power(-A, j) for j, c in enumerate(b))
    assert isinstance(above, Tensor)
    assert isinstance(below, Tensor)
    return torch.linalg.solve(below, above)


def factor(X: Tensor, retraction: str) -> Tensor:
    if retraction == "polar":
        U, _, Vh = torch.linalg.svd(X, full_matrices=False)
        return U @ Vh
    Q, R = torch.linalg.qr(X)
    return Q * R.diagonal().sgn()


def move(manifold: AbstractManifold, Q: Tensor, E: Tensor, retraction: str) -> Tensor:
    if isinstance(manifold, Sphere):
        tall = Stiefel(manifold.n, 1)
        return move(tall, Q[:, None], E[:, None], retraction)[:, 0]
    if retraction in ("polar", "qr"):
        P = factor(Q + E, retraction)
        if isinstance(manifold, SU):
            P = P * torch.exp(-1j * torch.linalg.det(P).angle() / manifold.n)
        return P
    if is_group(manifold):
        return Q @ phi(skew_part(Q.mH @ E), retraction)
    along = skew_part(Q.mH @ E)
    across = E - Q @ (Q.mH @ E)
    A = across @ Q.mH - Q @ across.mH + Q @ along @ Q.mH
    return phi(A, retraction) @ Q


def carry(manifold: AbstractManifold, Q: Tensor, P: Tensor, E: Tensor) -> Tensor:
    if is_group(manifold):
        return P @ Q.mH @ E
    if isinstance(manifold, Sphere):
        return E - P * (P * E).sum()
    if isinstance(manifold, Stiefel) and manifold.n > 2 * manifold.k:
        along = Q.mH @ E
        across = E - Q @ along
        return P @ skew_part(along) + across - P @ (P.mH @ across)
    S = P.mH @ E
    return E - P @ (S + S.mH) / 2


def entries(manifold: AbstractManifold, Q: Tensor, E: Tensor) -> Tensor:
    """The numbers that adaptive rules square: Q^H E in a group, otherwise E."""
    A = Q.mH @ E if is_group(manifold) else E
    return torch.view_as_real(A.resolve_conj()) if A.is_complex() else A


def squares(manifold: AbstractManifold, Q: Tensor, E: Tensor) -> Tensor:
    X = entries(manifold, Q, E) ** 2
    return X if is_group(manifold) else X.mean()


def divided(manifold: AbstractManifold, Q: Tensor, E: Tensor, root: Tensor) -> Tensor:
    """Divide E by the root, entry by entry in the algebra, and project it again."""
    if not is_group(manifold):
        return E / root
    # a real skew matrix has a zero diagonal, and so has the root
    X = entries(manifold, Q, E) / torch.where(root == 0, 1, root)
    A = torch.view_as_complex(X) if manifold.is_complex else X
    if isinstance(manifold, AbstractGroup):
        A = manifold.algebra_projection(A)
    return Q @ A


@dataclass
class Slow:
    """One point, its state and the options of an optimizer."""

    manifold: AbstractManifold
    Q: Tensor
    kind: str
    options: dict[str, Any]
    retraction: str = "exp"
    #: tangent vectors, by name
    vectors: dict[str, Tensor] = field(default_factory=dict)
    #: second moments, by name
    moments: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def step(self, loss: Loss) -> None:
        Q = self.Q.detach().requires_grad_()
        (G,) = torch.autograd.grad(loss(Q), Q)
        Q = Q.detach()
        G = -G if self.options.get("maximize") else G
        self.steps += 1
        E = getattr(self, self.kind)(Q, gradient(self.manifold, Q, G))
        self.Q = move(self.manifold, Q, -self.options["lr"] * E, self.retraction)
        self.vectors = {
            name: carry(self.manifold, Q, self.Q, F) for name, F in self.vectors.items()
        }

    def sgd(self, _Q: Tensor, g: Tensor) -> Tensor:
        mu = self.options.get("momentum", 0.0)
        if mu == 0:
            return g
        b = g
        if self.steps > 1:
            b = mu * self.vectors["b"] + (1 - self.options.get("dampening", 0)) * g
        self.vectors["b"] = b
        return g + mu * b if self.options.get("nesterov") else b

    def adam(self, Q: Tensor, g: Tensor) -> Tensor:
        beta1, beta2 = self.options.get("betas", (0.9, 0.999))
        m = beta1 * self.vectors.get("m", torch.zeros_like(g)) + (1 - beta1) * g
        s = squares(self.manifold, Q, g)
        zero = torch.zeros_like(s)
        v = beta2 * self.moments.get("v", zero) + (1 - beta2) * s
        largest = torch.maximum(v, self.moments.get("largest", zero))
        self.vectors["m"], self.moments = m, {"v": v, "largest": largest}
        used = largest if self.options.get("amsgrad") else v
        root = (used / (1 - beta2**self.steps)).sqrt() + self.options.get("eps", 1e-8)
        return divided(self.manifold, Q, m / (1 - beta1**self.steps), root)

    def rmsprop(self, Q: Tensor, g: Tensor) -> Tensor:
        o = self.options
        alpha, mu, eps = (
            o.get("alpha", 0.99),
            o.get("momentum", 0.0),
            o.get("eps", 1e-8),
        )
        s = squares(self.manifold, Q, g)
        start = torch.full_like(s, o.get("initial_accumulator", 0.0))
        v = self.moments.get("v", start)
        v = v + s if o.get("sum_squares") else alpha * v + (1 - alpha) * s
        self.moments["v"] = v
        root = (v + eps).sqrt() if o.get("eps_inside") else v.sqrt() + eps
        E = divided(self.manifold, Q, g, root)
        if mu == 0:
            return E
        self.vectors["b"] = mu * self.vectors.get("b", torch.zeros_like(g)) + E
        return self.vectors["b"]
