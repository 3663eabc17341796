"""Compact matrix groups, Stiefel manifolds and spheres, and the maps into them."""

from isometry.groups._group import AbstractGroup
from isometry.groups._manifold import AbstractManifold
from isometry.groups._maps import (
    QR,
    AbstractMap,
    AbstractRetraction,
    Cayley,
    Exp,
    Householder,
    MapLike,
    Pade,
    Polar,
)
from isometry.groups._orthogonal import SO, O
from isometry.groups._product import Product
from isometry.groups._sphere import Sphere
from isometry.groups._stiefel import Stiefel
from isometry.groups._symplectic import Sp
from isometry.groups._unitary import SU, Torus, U

__all__ = [
    "O",
    "SO",
    "U",
    "SU",
    "Sp",
    "Torus",
    "Product",
    "Stiefel",
    "Sphere",
    "AbstractManifold",
    "AbstractGroup",
    "Exp",
    "Cayley",
    "Pade",
    "Polar",
    "QR",
    "Householder",
    "AbstractMap",
    "AbstractRetraction",
    "MapLike",
]
