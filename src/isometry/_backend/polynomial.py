r"""What a backend needs to know of a polynomial of skew matrices.

It is computed in one tensor `W` of shape (slots, batch, n, n). The first slots hold
$A$, $A^2$ and perhaps $A^4$, the next ones the products $P_3, P_4, \ldots$:

$$ P_j = L_j R_j, \qquad
   L_j, R_j \in \operatorname{span}(I, A, A^2, A^4, P_3, \ldots, P_{j-1}), \qquad
   p(A) = L_m R_m + F, $$

with $F$ a linear combination of everything there is. The last product goes into the
result and has no slot. A linear combination is a row of coefficients over the slots.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Stage(NamedTuple):
    """One product L R: coefficients over the slots that are filled before it.

    `identity` is the multiple of I in L; R has none. `F` is the final combination,
    which only the last stage has.
    """

    identity: float
    L: tuple[float, ...]
    R: tuple[float, ...]
    F: tuple[float, ...]

    @property
    def is_square(self) -> bool:
        """Whether L R is the square of a Hermitian combination, of A^2 and A^4."""
        return self.L == self.R and self.identity == 0 and self.L[0] == 0


# compared by identity: hashing the coefficients would be work at every call
@dataclass(frozen=True, eq=False)
class Polynomial:
    """Coefficients for the powers of A itself.

    Args:
        powers: 2 for A and A^2, 3 with A^4.
        stages: the products that follow.
        identity: the multiple of I in the result.
    """

    powers: int
    stages: tuple[Stage, ...]
    identity: float
    # how many slots the last stage reads, which is also the number of products
    slots: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", self.powers + len(self.stages) - 1)
