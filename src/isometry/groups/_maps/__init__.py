"""Maps from free coordinates to orthogonal matrices, and their names.

Inside the library, maps are passed as objects. A name is parsed once, where a user
passes it.
"""

from isometry.groups._maps.abstract import AbstractMap, AbstractRetraction
from isometry.groups._maps.exponential import Exp
from isometry.groups._maps.factors import QR, Householder, Polar
from isometry.groups._maps.rational import Cayley, Pade

MapLike = AbstractMap | str
"""A map, or its name: what every argument accepts that takes a map."""

#: a retraction, or its name
RetractionLike = AbstractRetraction | str

#: one map of each class, keyed by name; "pade-m" stands for all degrees
KNOWN: dict[str, AbstractMap] = {
    "exp": Exp(),
    "cayley": Cayley(),
    "pade-m": Pade(1),
    "polar": Polar(),
    "qr": QR(),
    "householder": Householder(),
}


def parse_map(value: object, *, name: str = "retraction") -> AbstractMap | None:
    """The map itself, or the map with this name; None if `value` is neither.

    Raises:
        ValueError: if the name is "pade" without a degree of at least 1.
    """
    if isinstance(value, AbstractMap):
        return value
    if not isinstance(value, str):
        return None
    kind, _, degree = value.partition("-")
    if kind != "pade":
        return KNOWN.get(value)
    if not degree.isdecimal() or int(degree) < 1:
        raise ValueError(
            f"`{name}` must name the degree of the Pade approximant, as in 'pade-3'; "
            f"got {value!r}. Degree 1 is the Cayley map."
        )
    return Pade(int(degree))
