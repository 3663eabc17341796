"""Schemes: how a polynomial is made of few products; see `_polynomial.py`."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


# compared by identity: hashing the coefficients would be work at every call
@dataclass(frozen=True, eq=False)
class Scheme:
    r"""Coefficients for angles up to `theta`, in the variable $A / \theta$.

    `rows` holds $L_3, R_3, L_4, R_4, \ldots$ and last the final combination, each
    over $(I, A, A^2, A^4, P_3, \ldots)$, or without $A^4$. No $R_j$ has a multiple of
    $I$, so every product vanishes with $A$, and the final combination has exactly $I$:
    near 0 the result is not built by cancellation. `value_error` and `gradient_error`
    bound $|p(ix) - e^{ix}|$ and $|\frac{d}{dx}(p(ix) - e^{ix})|$ over $|x| \le \theta$.
    """

    theta: float
    value_error: float
    gradient_error: float
    rows: tuple[tuple[float, ...], ...]

    @property
    def powers(self) -> int:
        """How many of $A$, $A^2$ and $A^4$ there are."""
        return len(self.rows[0]) - 1

    @property
    def products(self) -> int:
        """Matrix products of one evaluation, $A^2$ and $A^4$ included."""
        return self.powers - 1 + len(self.rows) // 2

    @property
    def squares(self) -> int:
        """How many of them are squares of Hermitian or skew matrices."""
        stages = map(_is_square, self.rows[:-1:2], self.rows[1::2])
        return self.powers - 1 + sum(stages)


def _is_square(L: tuple[float, ...], R: tuple[float, ...]) -> bool:
    """Whether L R is the square of a Hermitian combination, of A^2 and A^4."""
    return L == R and L[:2] == (0.0, 0.0)


class Stage(NamedTuple):
    """One product L R; the last one comes with the final combination F.

    Each is a row of coefficients over the slots of W; L has a multiple of I besides. A
    square has one row.
    """

    factors: Tensor
    final: Tensor
    transposed: Tensor
    identity: float
    is_square: bool


@lru_cache(maxsize=256)
def stages_of(
    scheme: Scheme, squarings: int, dtype: torch.dtype, device: torch.device
) -> tuple[Stage, ...]:
    """The table for the powers of A itself, when p(A / 2^squarings) is wanted."""
    unit, p = scheme.theta * 2.0**squarings, scheme.powers
    units = (unit, unit**2, unit**4)[:p]
    stages = []
    for start in range(0, len(scheme.rows) - 1, 2):
        last = start + 3 == len(scheme.rows)
        rows = scheme.rows[start : start + (3 if last else 2)]
        scaled = [
            (*(c / u for c, u in zip(r[1:], units, strict=False)), *r[p + 1 :])
            for r in rows
        ]
        table = torch.tensor(scaled, dtype=dtype, device=device)
        if _is_square(*rows[:2]):
            stages.append(Stage(table[:1], table[2:], table[:1].T, 0.0, True))
            continue
        # R before L in the backward pass, where the gradient of R takes its place
        order = [1, 0, 2] if last else [1, 0]
        stages.append(Stage(table[:2], table[2:], table[order].T, rows[0][0], False))
    return tuple(stages)
