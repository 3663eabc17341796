r"""What a backend computes, and the polynomials that it evaluates.

A polynomial of skew matrices is computed in one tensor `W` of shape
(slots, batch, n, n). The first slot holds $A$. The next slots hold the products $P_1$,
$P_2$ and so on. The first product is $A^2$, and the second may be $A^4$. Each later
product has two factors, and the result is the last product plus a matrix $F$:

$$ P_j = L_j R_j, \qquad
   L_j, R_j \in \operatorname{span}(I, A, P_1, \ldots, P_{j-1}), \qquad
   p(A) = L_m R_m + F. $$

Here $m$ is the number of products, and $F$ is a linear combination of $I$ and all
slots. The last product is added to the result and has no slot. A linear combination is
stored as a row of coefficients, one for each slot.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

from numpy.typing import NDArray
from torch import Tensor

from isometry._backend.recurrence import Cell, Gradients, TimeSteps

# A number for one matrix, an array for several matrices, and a tensor where the host
# must not wait for the device. At n = 64, operations on arrays of length one would take
# a tenth of the time of an exponential.
Sum = float | NDArray | Tensor
PowerSums = tuple[Sum, Sum, Sum]


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
    # how many slots the last stage reads, which is also the number of products
    slots: int = field(init=False)
    # a bit mask: bit s is set if stage s is a square
    squares: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", self.powers + len(self.stages) - 1)
        squares = sum(s.is_square << place for place, s in enumerate(self.stages))
        object.__setattr__(self, "squares", squares)


class AbstractBackend(ABC):
    """Operations on matrices (batch, n, n) and slots (slots, batch, n, n)."""

    @abstractmethod
    def skew(self, X: Tensor) -> Tensor:
        """L - L^H with L the strictly lower triangle of X; see `plain_skew`."""

    @abstractmethod
    def skew_adjoint(self, G: Tensor) -> Tensor:
        """The strictly lower triangle of G - G^T, for a real G."""

    @abstractmethod
    def square(self, A: Tensor, out: Tensor) -> None:
        """Write A^2 of Hermitian or skew matrices into `out`, which must not be A."""

    @abstractmethod
    def multiply(self, X: Tensor, Y: Tensor, *, transposed: bool = False) -> Tensor:
        """The product X Y of two single matrices, or X^T Y if `transposed`."""

    @abstractmethod
    def powers(
        self,
        A: Tensor,
        W: Tensor,
        *,
        skip_up_to: float | None,
        from_coordinates: bool = False,
    ) -> PowerSums | None:
        r"""Write $A$, $A^2$ and perhaps $A^4$ into the first slots of W.

        If `skip_up_to` is None, $A^4$ is not computed. On the CPU, $A^4$ is also
        skipped if $\sum \theta^4$ is at most `skip_up_to` for every matrix. The sum is
        over all angles $\theta$ of a complex matrix, and over one angle of each pair of
        a real matrix. With `from_coordinates`, the argument A holds coordinates, from
        which `skew` computes the skew matrix.

        Returns the `power_sums` of $A^2$ and $A^4$, or None if $A^4$ was not computed.
        """

    @abstractmethod
    def evaluate(self, W: Tensor, polynomial: Polynomial) -> Tensor:
        """Return the polynomial p(A), given the powers of A in the first slots of W.

        The products of all stages but the last are written into the slots that follow.
        """

    @abstractmethod
    def pull_back(
        self,
        W: Tensor,
        polynomial: Polynomial,
        G: Tensor,
        *,
        from_coordinates: bool = False,
    ) -> Tensor:
        """Skew gradient with respect to A, given the gradient G with respect to p(A).

        With `from_coordinates`, the result is instead the gradient with respect to the
        coordinates from which `skew` computed A.
        """

    @abstractmethod
    def scan(self, H: Tensor, cell: Cell, h0: Tensor, time_steps: TimeSteps) -> None:
        """Overwrite the drive u_t in H with the states; see `recurrence.scan`."""

    @abstractmethod
    def scan_adjoint(
        self,
        D: Tensor,
        H: Tensor,
        cell: Cell,
        h0: Tensor,
        time_steps: TimeSteps,
        *,
        dH: Tensor | None,
        dh_last: Tensor | None,
    ) -> Gradients:
        """Write the gradient with respect to the drive u_t into D.

        Returns the gradients for W, b and h0; see `recurrence.scan_adjoint`.
        """
