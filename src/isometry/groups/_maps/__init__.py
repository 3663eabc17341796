"""Maps from free coordinates to orthogonal matrices, as objects to pass around."""

from isometry.groups._maps.abstract import AbstractMap, AbstractRetraction
from isometry.groups._maps.exponential import Exp
from isometry.groups._maps.factors import QR, Polar
from isometry.groups._maps.householder import Householder
from isometry.groups._maps.names import KNOWN, parse_map
from isometry.groups._maps.rational import Cayley, Pade

__all__ = [
    "KNOWN",
    "QR",
    "AbstractMap",
    "AbstractRetraction",
    "Cayley",
    "Exp",
    "Householder",
    "Pade",
    "Polar",
    "parse_map",
]
