"""The constrained modules that the suites run over. A new map or shape is one row."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import isometry
from isometry.groups import (
    SO,
    SU,
    AbstractGroup,
    AbstractManifold,
    Product,
    Sp,
    Sphere,
    Torus,
    U,
)

MAPS = ["exp", "cayley", "pade-3", "householder"]


class Weight(nn.Module):
    """A module that consists of its weight."""

    def __init__(self, W: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(W)


@dataclass(frozen=True)
class Case:
    """The shape and manifold of a weight; `orthogonal` chooses one if it is None."""

    shape: tuple[int, ...]
    manifold: AbstractManifold | None = None
    is_complex: bool = False
    maps: tuple[str, ...] = tuple(MAPS)

    def dtype(self, double: bool) -> torch.dtype:
        real = torch.float64 if double else torch.float32
        return real.to_complex() if self.is_complex else real

    def random(self, rng: torch.Generator, dtype: torch.dtype) -> Tensor:
        return torch.randn(self.shape, dtype=dtype, generator=rng)

    def constrain(
        self, module: nn.Module, retraction: str, **options: object
    ) -> nn.Module:
        if self.manifold is None:
            return isometry.orthogonal(module, "weight", retraction, **options)
        return isometry.constrain(
            module, "weight", self.manifold, retraction, **options
        )


@dataclass(frozen=True)
class Circle(AbstractGroup):
    """A group as a user would write it: two planes turn by the same angle."""

    @property
    def size(self) -> int:
        return 4

    is_complex = False

    def algebra(self, X: Tensor) -> Tensor:
        J = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).to(X)
        return X[..., :1, :1] * torch.block_diag(J, J)


RATIONAL = ("exp", "cayley", "pade-3")
CASES = {
    "square": Case((6, 6)),
    "one": Case((1, 1)),
    "tall": Case((9, 3)),
    "nearly square": Case((5, 4)),
    "wide": Case((3, 9)),
    "batched": Case((2, 3, 7, 3)),
    "complex": Case((5, 5), is_complex=True),
    "complex tall": Case((7, 2), is_complex=True),
    "complex wide": Case((2, 7), is_complex=True),
    "SO": Case((5, 5), SO(5)),
    "U": Case((4, 4), U(4), is_complex=True),
    "SU": Case((4, 4), SU(4), is_complex=True, maps=("exp",)),
    "Sp": Case((4, 4), Sp(2), is_complex=True, maps=RATIONAL),
    "Torus": Case((3, 3), Torus(3), is_complex=True, maps=RATIONAL),
    "product": Case((5, 5), Product(SO(2), SO(3)), maps=RATIONAL),
    "own": Case((4, 4), Circle(), maps=("exp",)),
    "sphere": Case((4, 6), Sphere(6), maps=RATIONAL),
}
ROWS = [(name, retraction) for name, case in CASES.items() for retraction in case.maps]


def orthonormality(W: Tensor) -> float:
    """||Q^H Q - I||_F of the columns, or of the rows of a wide matrix."""
    Q = (W.mT if W.shape[-2] < W.shape[-1] else W).detach()
    eye = torch.eye(Q.shape[-1], dtype=Q.dtype)
    return float(torch.linalg.matrix_norm(Q.mH @ Q - eye).max())


def weight_defect(case: Case, W: Tensor) -> float:
    """The largest defect of a weight, by its manifold or by orthonormality."""
    if case.manifold is None:
        return orthonormality(W)
    return float(case.manifold.defect(W.detach()).max())


Step = Callable[[], float]
