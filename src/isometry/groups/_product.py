"""Products of groups, as block-diagonal matrices."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isometry.groups._group import AbstractGroup
from isometry.groups._maps import KNOWN, AbstractMap, AbstractRetraction


@dataclass(frozen=True, init=False, repr=False)
class Product(AbstractGroup):
    r"""Product of groups: block-diagonal matrices with one element of each group.

    $$ G_1 \times \cdots \times G_r = \{ \operatorname{diag}(Q_1, \ldots, Q_r) :
       Q_j \in G_j \}, \qquad \dim = \sum_j \dim G_j. $$

    For many copies of one group, use a batch axis instead.

    Args:
        factors: the groups, all real or all complex.
    """

    factors: tuple[AbstractGroup, ...]

    def __init__(self, *factors: AbstractGroup) -> None:
        not_groups = [f for f in factors if not isinstance(f, AbstractGroup)]
        if not_groups:
            raise TypeError(
                f"`factors` must be groups, such as SO(3); got {not_groups[0]!r}, "
                f"which is not a group. Constrain a separate weight to it."
            )
        fields = {factor.is_complex for factor in factors}
        if len(fields) != 1:
            raise ValueError(
                f"`factors` must be one or more groups of one field, all real or all "
                f"complex; got {factors}. Constrain separate weights instead."
            )
        # a frozen dataclass does not allow assignments
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "is_complex", factors[0].is_complex)
        is_connected = all(factor.is_connected for factor in factors)
        object.__setattr__(self, "is_connected", is_connected)
        object.__setattr__(self, "maps", _common_maps(factors))

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.factors))})"

    @property
    def size(self) -> int:
        """The sum of the factors' sizes."""
        return sum(factor.size for factor in self.factors)

    @property
    def dimension(self) -> int:
        """The sum of the factors' dimensions."""
        return sum(factor.dimension for factor in self.factors)

    @property
    def rank(self) -> int | None:
        """The sum of the factors' ranks; None if a factor has no rank."""
        ranks = [factor.rank for factor in self.factors]
        known_ranks = [rank for rank in ranks if rank is not None]
        return sum(known_ranks) if len(known_ranks) == len(ranks) else None

    def algebra(self, X: Tensor) -> Tensor:
        """Block-diagonal matrix: the `algebra` of each factor, at its block of `X`."""
        return self._each("algebra", X)

    def algebra_coordinates(self, A: Tensor) -> Tensor:
        """Coordinates of each block in the algebra of its factor."""
        return self._each("algebra_coordinates", A)

    def algebra_projection(self, X: Tensor) -> Tensor:
        """The projection of each block onto the algebra of its factor."""
        return self._each("algebra_projection", X)

    def algebra_log(self, Q: Tensor) -> Tensor:
        """The logarithm of each block in its factor."""
        return self._each("algebra_log", Q)

    def algebra_retraction(self, A: Tensor, retraction: AbstractRetraction) -> Tensor:
        """The retraction in each factor.

        This costs less than a retraction of the whole matrix.
        """
        return self._each("algebra_retraction", A, retraction)

    def torus(self, theta: Tensor) -> Tensor:
        """Block-diagonal matrix: the `torus` of each factor, at its part of `theta`."""
        angles = theta.split([factor.rank or 0 for factor in self.factors], -1)
        pairs = zip(self.factors, angles, strict=True)
        return _block_diagonal([factor.torus(part) for factor, part in pairs])

    def nearest(self, X: Tensor) -> Tensor:
        """Block-diagonal matrix: the `nearest` of each factor, at its block of `X`."""
        return self._each("nearest", X)

    def polish(self, Q: Tensor) -> Tensor:
        """Each block, polished in its factor."""
        return self._each("polish", Q)

    def defect(self, Q: Tensor) -> Tensor:
        """The worst defect of a block, or the norm of all other entries if larger."""
        blocks = self._blocks(Q)
        outside = torch.linalg.matrix_norm(Q - _block_diagonal(blocks))
        pairs = zip(self.factors, blocks, strict=True)
        defects = [factor.defect(block) for factor, block in pairs]
        return torch.stack([outside, *defects]).amax(0)

    def component(self, Q: Tensor) -> Tensor:
        """The labels of the blocks' connected components, side by side."""
        pairs = zip(self.factors, self._blocks(Q), strict=True)
        return torch.cat([factor.component(block) for factor, block in pairs], -1)

    def random(self, *batch: int, **options: Any) -> Tensor:
        """Matrices whose blocks are independent samples from the factors."""
        return _block_diagonal([f.random(*batch, **options) for f in self.factors])

    def _blocks(self, X: Tensor) -> list[Tensor]:
        sizes = [factor.size for factor in self.factors]
        rows = X.split(sizes, -2)
        return [row.split(sizes, -1)[i] for i, row in enumerate(rows)]

    def _each(self, method: str, X: Tensor, *args: Any) -> Tensor:
        """Apply a method of each factor to its block of `X`, and join the results."""
        pairs = zip(self.factors, self._blocks(X), strict=True)
        return _block_diagonal([getattr(f, method)(block, *args) for f, block in pairs])


def _common_maps(factors: Sequence[AbstractGroup]) -> tuple[type[AbstractMap], ...]:
    """The classes of maps that every factor accepts.

    If every factor accepts all retractions, the result is `AbstractRetraction` alone.
    Otherwise the result contains only classes of the retractions in `KNOWN`.
    """
    retractions = [type(m) for m in KNOWN.values() if isinstance(m, AbstractRetraction)]
    candidates = [AbstractRetraction, *retractions]
    classes = [c for c in candidates if all(issubclass(c, f.maps) for f in factors)]
    return (AbstractRetraction,) if AbstractRetraction in classes else tuple(classes)


def _block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """Block-diagonal matrices from batches of blocks.

    `torch.block_diag` does not take batches.
    """
    ends = list(itertools.accumulate(block.shape[-1] for block in blocks))
    rows = [
        torch.nn.functional.pad(block, (end - block.shape[-1], ends[-1] - end))
        for block, end in zip(blocks, ends, strict=True)
    ]
    return torch.cat(rows, -2)
