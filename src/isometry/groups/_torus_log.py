"""Logarithm of one element by a maximal torus through it, from the algebra alone."""

import itertools
import math

import torch
from torch import Tensor

# singular values of a basis of angles below this are zero
_ZERO = 1e-6


def torus_log(Q: Tensor, units: Tensor, *, slack: float = _ZERO) -> Tensor | None:
    r"""The shortest $A$ with $\exp A = Q$ in the torus found, up to `slack`.

    A logarithm commutes with $Q$. The elements of the algebra that do are the kernel of
    $\operatorname{Ad}_Q - 1$; those of them that commute with a generic one are a
    maximal torus, whose exponential contains $Q$. On common eigenvectors let its basis
    have the angles $w_{aj}$ and $Q$ the angles $\theta_j$: then $A$ has coefficients
    $c$ with

    $$ \sum_a c_a w_{aj} = \theta_j + 2 \pi k_j $$

    for integers $k_j$. Of these, those of independent columns are tried.

    Args:
        Q: one matrix, `(n, n)`.
        units: orthonormal basis of the algebra, `(d, n, n)`.
        slack: what counts as zero: of commutators, and of angles in turns.

    Returns:
        The logarithm, or None if there is none: `Q` is not in the group, or its angles
        wind more often than was tried.
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
    # five windings of each angle, unless that is too much
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
    commuting = _kernel(_entries(units, moved - units), units, slack)
    if len(commuting) == 0:
        return commuting
    H = _generic(commuting)
    return _kernel(_entries(units, commuting @ H - H @ commuting), commuting, slack)


def _entries(units: Tensor, moved: Tensor) -> Tensor:
    """Entries of a linear map of the algebra, (to, from)."""
    return torch.einsum("aij,bij->ab", units.conj(), moved).real


def _kernel(matrix: Tensor, units: Tensor, slack: float) -> Tensor:
    """The combinations of `units` that the map takes to zero, orthonormal."""
    _, s, Vh = torch.linalg.svd(matrix)
    zero = torch.ones(len(Vh), dtype=torch.bool, device=s.device)
    zero[: len(s)] = s < slack
    return torch.einsum("ka,aij->kij", Vh[zero].to(units.dtype), units)


def _generic(units: Tensor) -> Tensor:
    """A combination in no special position."""
    rng = torch.Generator().manual_seed(1)
    c = torch.randn(len(units), dtype=torch.float64, generator=rng).to(units.device)
    return torch.einsum("a,aij->ij", c.to(units.dtype), units)


def _independent(weights: Tensor) -> list[int]:
    """As many independent columns as there are rows, the shortest ones."""
    chosen: list[int] = []
    for j in torch.linalg.vector_norm(weights, dim=0).argsort().tolist():
        trial = weights[:, [*chosen, j]]
        if float(torch.linalg.svdvals(trial)[-1]) > _ZERO:
            chosen.append(j)
        if len(chosen) == len(weights):
            break
    return chosen
