"""The groups and manifolds that the suites run over. A new manifold is one row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from isometry.groups import (
    SO,
    SU,
    AbstractGroup,
    AbstractManifold,
    O,
    Product,
    Sp,
    Sphere,
    Stiefel,
    Torus,
    U,
)
from isometry.groups._ambient import arrays
from isometry.groups._derived import basis
from isometry.linalg import skew


@dataclass(frozen=True)
class Quadrupole(AbstractGroup):
    """SO(3) acting on traceless symmetric matrices: five dimensions, irreducible.

    A rotation by theta has the angles 0, theta and 2 theta here, so the principal
    logarithm of a rotation beyond pi / 2 is not in the algebra.
    """

    @property
    def size(self) -> int:
        return 5

    is_complex = False

    def algebra(self, X: Tensor) -> Tensor:
        # A is the skew 3 x 3 matrix of three entries of X. It acts on the symmetric
        # matrices S by the commutator A S - S A.
        A = skew(X[..., :3, :3])
        S = _symmetric_basis().to(X)
        moved = A[..., None, :, :] @ S - S @ A[..., None, :, :]
        return torch.einsum("aij,...bij->...ab", S, moved)


def _symmetric_basis() -> Tensor:
    """Five orthonormal traceless symmetric matrices."""
    S = torch.zeros(5, 3, 3, dtype=torch.float64, device="cpu")
    for index, (i, j) in enumerate([(0, 1), (0, 2), (1, 2)]):
        S[index, i, j] = S[index, j, i] = 0.5**0.5
    S[3] = torch.diag(S.new_tensor([1.0, -1.0, 0.0])) * 0.5**0.5
    S[4] = torch.diag(S.new_tensor([1.0, 1.0, -2.0])) * (1 / 6) ** 0.5
    return S


@dataclass(frozen=True)
class Helix(AbstractGroup):
    """A circle in U(2) that turns twice as fast in one axis: diag(e^it, e^2it)."""

    @property
    def size(self) -> int:
        return 2

    is_complex = True

    def algebra(self, X: Tensor) -> Tensor:
        speed = X.new_tensor([1.0, 2.0])
        return torch.diag_embed(1j * X[..., 0, :1].real * speed)


@dataclass(frozen=True)
class DiagonalRotations(AbstractGroup):
    """SO(2) as equal blocks of a 4 x 4 matrix: a subgroup with a large centralizer."""

    @property
    def size(self) -> int:
        return 4

    is_complex = False

    def algebra(self, X: Tensor) -> Tensor:
        J = X.new_tensor([[0.0, -1.0], [1.0, 0.0]])
        return X[..., :1, :1] * torch.block_diag(J, J)


@dataclass(frozen=True)
class Spin(AbstractGroup):
    """SU(2) in its irreducible representation of dimension n = 2j + 1."""

    n: int

    @property
    def size(self) -> int:
        return self.n

    is_complex = True

    def algebra(self, X: Tensor) -> Tensor:
        j = (self.size - 1) / 2
        m = torch.arange(self.size, dtype=torch.float64) - j
        up = torch.diag((j * (j + 1) - m[:-1] * m[1:]).sqrt(), 1)
        generators = torch.stack(
            [0.5j * (up + up.mT), 0.5 * (up - up.mT), 1j * m.diag()]
        )
        x = X[..., :2, :2].flatten(-2)[..., :3].real
        return torch.einsum("...a,aij->...ij", x.to(X.dtype), generators.to(X))


@dataclass(frozen=True)
class Adjoint(AbstractGroup):
    """A group acting on its own algebra; the representation of SU(3) is the octet."""

    group: AbstractGroup

    @property
    def size(self) -> int:
        return self.group.dimension

    is_complex = False

    def algebra(self, X: Tensor) -> Tensor:
        E = arrays(basis(self.group)[0], self.group)
        brackets = E[:, None] @ E[None] - E[None] @ E[:, None]
        constants = torch.einsum("cij,abij->acb", E.conj(), brackets).real
        return torch.einsum("...a,acb->...cb", X[..., 0, :], constants.to(X))


MANIFOLDS: list[AbstractManifold] = [
    SO(0),
    SO(1),
    SO(2),
    SO(3),
    SO(6),
    O(1),
    O(2),
    O(5),
    U(0),
    U(1),
    U(3),
    SU(1),
    SU(2),
    SU(3),
    Sp(1),
    Sp(2),
    Torus(1),
    Torus(3),
    Product(SO(2), SO(3)),
    Product(U(1), SU(2)),
    Quadrupole(),
    Helix(),
    DiagonalRotations(),
    Sphere(1),
    Sphere(2),
    Sphere(5),
    Stiefel(4, 0),
    Stiefel(4, 1),
    Stiefel(4, 3),
    Stiefel(7, 2),
    Stiefel(5, 2, is_complex=True),
    Stiefel(3, 2, is_complex=True),
]
GROUPS = [M for M in MANIFOLDS if isinstance(M, AbstractGroup)]


def dtype_of(manifold: AbstractManifold, real: torch.dtype) -> torch.dtype:
    """The real or complex dtype of this precision, as the manifold needs it."""
    return real.to_complex() if manifold.is_complex else real
