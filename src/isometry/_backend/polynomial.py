r"""The polynomials of skew matrices that a backend evaluates.

A polynomial is computed in one tensor `W` of shape (slots, batch, n, n). The first slot
holds $A$. The next slots hold the products $P_1$, $P_2$ and so on. The first product is
$A^2$, and the second may be $A^4$. Each later product is called a stage, and has two
factors, $L_j$ and $R_j$. The polynomial $p(A)$ is the last product plus a matrix $F$:

$$ P_j = L_j R_j, \qquad
   L_j, R_j \in \operatorname{span}(I, A, P_1, \ldots, P_{j-1}), \qquad
   p(A) = L_m R_m + F. $$

Here $m$ is the number of products. The last product has no slot, so the slots hold $A$
and $P_1, \ldots, P_{m-1}$, and $F$ is a linear combination of $I$ and all slots. A
linear combination is stored as a row of coefficients: first the multiple of $I$, then
one number for each slot that is filled at that point.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

Row = tuple[float, ...]


class Stage(NamedTuple):
    """One product of two linear combinations.

    Attributes:
        L: the row of the left factor.
        R: the row of the right factor, which contains no multiple of I.
        is_square: whether L and R are equal and contain neither I nor A. In all our
            schemes, such an L is Hermitian.
    """

    L: Row
    R: Row
    is_square: bool


# Polynomials are arguments of cached functions. They are compared by identity, because
# otherwise every call of such a function would hash all coefficients.
@dataclass(frozen=True, eq=False)
class Polynomial:
    """A polynomial of a skew matrix, as the rows of its linear combinations.

    The rows are $L$ and $R$ of each stage in turn, and then $F$.
    """

    rows: tuple[Row, ...]

    @cached_property
    def powers(self) -> int:
        """The number of powers: 2 for A and A^2; 3 for A, A^2 and A^4."""
        return len(self.rows[0]) - 1

    @cached_property
    def stages(self) -> list[Stage]:
        """The products that follow the powers."""
        pairs = zip(self.rows[:-1:2], self.rows[1::2], strict=True)
        return [Stage(L, R, L == R and L[0] == L[1] == 0) for L, R in pairs]

    @cached_property
    def products(self) -> int:
        """The number of products, including A^2 and A^4.

        The number of slots is the same.
        """
        return len(self.rows[-1]) - 1
