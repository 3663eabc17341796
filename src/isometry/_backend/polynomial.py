r"""The polynomials of skew matrices that a backend evaluates.

A polynomial is computed in one tensor `W` of shape (slots, batch, n, n). The first slot
holds $A$. The next slots hold the products $P_1$, $P_2$ and so on. The first product is
$A^2$, and the second may be $A^4$. Each later product has two factors, and the result
is the last product plus a matrix $F$:

$$ P_j = L_j R_j, \qquad
   L_j, R_j \in \operatorname{span}(I, A, P_1, \ldots, P_{j-1}), \qquad
   p(A) = L_m R_m + F. $$

Here $m$ is the number of products, and $F$ is a linear combination of $I$ and all
slots. The last product is added to the result and has no slot. A linear combination is
stored as a row of coefficients, one for each slot.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Stage(NamedTuple):
    """One product L R of linear combinations of the slots that are already filled.

    `L` and `R` hold the coefficients of the slots, and `identity` is the multiple of I
    in L; R contains no multiple of I. Only the last stage has a final combination `F`.
    """

    identity: float
    L: tuple[float, ...]
    R: tuple[float, ...]
    F: tuple[float, ...]

    @property
    def is_square(self) -> bool:
        """Whether L = R, without A and I; in all our schemes, L is then Hermitian."""
        return self.L == self.R and self.identity == 0 and self.L[0] == 0


# Polynomials are arguments of cached functions. They are compared by identity, because
# otherwise every call of such a function would hash all coefficients.
@dataclass(frozen=True, eq=False)
class Polynomial:
    """A polynomial of a skew matrix A, as the coefficients of all its stages.

    Args:
        powers: 2 for A and A^2; 3 for A, A^2 and A^4.
        stages: the products that follow the powers.
        identity: the multiple of I in the result.
    """

    powers: int
    stages: tuple[Stage, ...]
    identity: float

    @property
    def slots(self) -> int:
        """How many slots the last stage reads, which is also the number of products."""
        return self.powers + len(self.stages) - 1
