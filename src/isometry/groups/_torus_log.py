"""Logarithm of one group element, by a maximal torus that contains it."""

import itertools
import math

import torch
from torch import Tensor

# singular values of the matrix of angles below this count as zero
_ZERO = 1e-6


def torus_log(Q: Tensor, units: Tensor, *, slack: float = _ZERO) -> Tensor | None:
    r"""The shortest $A$ with $\exp A = Q$, up to `slack`, in one maximal torus.

    A logarithm commutes with $Q$. The elements of the algebra that commute with $Q$ are
    the null space of $\operatorname{Ad}_Q - 1$. Those that also commute with a generic
    element of this space form a maximal torus, whose exponential contains $Q$. On
    common eigenvectors, let the basis of the torus have the angles $w_{aj}$, and $Q$
    the angles $\theta_j$. Then $A$ has coefficients $c$ with

    $$ \sum_a c_a w_{aj} = \theta_j + 2 \pi k_j $$

    for integers $k_j$. Small integers are tried for a set of independent columns $j$,
    which determines $c$.

    Args:
        Q: one matrix, `(n, n)`.
        units: orthonormal basis of the algebra, `(d, n, n)`.
        slack: the size below which commutators, and angles in turns, count as zero.

    Returns:
        The logarithm. None if `Q` is not in the group, or if its angles wind more often
        than was tried.
    """
    torus = _torus(Q, units, slack)
    if len(torus) == 0:
        return None
    _, V = torch.linalg.eigh(-1j * _generic(torus))
    diagonals = (V.mH @ torch.cat([torus, Q[None]]).to(V.dtype) @ V).diagonal(
        dim1=-2, dim2=-1
    )
    weights, theta = diagonals[:-1].imag, diagonals[-1].angle()
    columns = _independent(weights)
    r = len(torus)
    if len(columns) < r:
        return None
    # five windings of each angle, or fewer if there are too many combinations
    windings = range(-2, 3) if r <= 6 else range(-1, 2) if r <= 9 else range(1)
    k = torch.tensor(list(itertools.product(windings, repeat=r)), dtype=theta.dtype)
    goal = theta[columns] + 2 * math.pi * k.to(theta.device)
    c = torch.linalg.solve(weights[:, columns].mT, goal.mT).mT
    turns = (c @ weights - theta) / (2 * math.pi)
    rest = (turns - turns.round()).abs().amax(-1)
    length = torch.where(rest < slack, torch.linalg.vector_norm(c, dim=-1), math.inf)
    best = int(length.argmin())
    if not math.isfinite(float(length[best])):
        return None
    return torch.einsum("a,aij->ij", c[best].to(torus.dtype), torus)


def _torus(Q: Tensor, units: Tensor, slack: float) -> Tensor:
    """Orthonormal basis of a maximal torus in the centralizer of Q."""
    moved = Q @ units @ Q.mH
    commuting = _null_space(_entries(units, moved - units), units, slack)
    if len(commuting) == 0:
        return commuting
    H = _generic(commuting)
    brackets = commuting @ H - H @ commuting
    return _null_space(_entries(units, brackets), commuting, slack)


def _entries(units: Tensor, moved: Tensor) -> Tensor:
    """Matrix of the linear map that takes each basis element to `moved`."""
    return torch.einsum("aij,bij->ab", units.conj(), moved).real


def _null_space(matrix: Tensor, units: Tensor, slack: float) -> Tensor:
    """Orthonormal basis of the combinations of `units` that the map takes to zero."""
    _, s, Vh = torch.linalg.svd(matrix)
    zero = torch.ones(len(Vh), dtype=torch.bool, device=s.device)
    zero[: len(s)] = s < slack
    return torch.einsum("ka,aij->kij", Vh[zero].to(units.dtype), units)


def _generic(units: Tensor) -> Tensor:
    """A random combination, so in no special position."""
    rng = torch.Generator().manual_seed(1)
    c = torch.randn(len(units), dtype=torch.float64, generator=rng).to(units.device)
    return torch.einsum("a,aij->ij", c.to(units.dtype), units)


def _independent(weights: Tensor) -> list[int]:
    """As many independent columns as there are rows, shortest columns first."""
    columns: list[int] = []
    for j in torch.linalg.vector_norm(weights, dim=0).argsort().tolist():
        trial = weights[:, [*columns, j]]
        if float(torch.linalg.svdvals(trial)[-1]) > _ZERO:
            columns.append(j)
        if len(columns) == len(weights):
            break
    return columns
