r"""Schemes: polynomials that approximate exp with few matrix products.

A scheme computes $A^2$ and $A^4 = A^2 A^2$, then products of linear combinations of all
matrices computed so far, and finally a linear combination of all matrices:

$$ P_3 = L_3 R_3, \quad P_4 = L_4 R_4, \quad \ldots, \quad
   p(A) = P_m + f_0 I + f_1 A + f_2 A^2 + f_3 A^4 + \cdots, \qquad
   L_j, R_j \in \operatorname{span}(I, A, A^2, A^4, P_3, \ldots, P_{j-1}). $$

The scheme for the smallest angles has no $A^4$. Since $A^2$ and $A^4$ are Hermitian,
pulling a gradient back through either square costs one product, not two. The same holds
for a $P_3$ with $L_3 = R_3 = A^2 + a A^4$. If a scheme has $m$ products, and $h$ of the
products are such squares, then its backward pass costs $2 m - h$ products.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from isometry._backend.polynomial import Polynomial, Row


# Schemes are arguments of cached functions. They are compared by identity, for the same
# reason as a `Polynomial`: hashing all coefficients at every call would take time.
@dataclass(frozen=True, eq=False)
class Scheme:
    r"""A polynomial for angles up to `theta`, in the variable $x = A / \theta$.

    Each row holds the coefficients of one linear combination of
    $(I, x, x^2, x^4, P_3, \ldots)$, or of these matrices without $x^4$. The rows are
    $L_3, R_3, L_4, R_4, \ldots$, and the final combination comes last. No $R_j$
    contains a multiple of $I$, so every product is zero if $A$ is zero. In the final
    combination, $I$ has the coefficient 1. So $p(0) = I$ without any cancellation.
    docs/theory/expm_skew.md has the error of each scheme.

    A scheme is not a `Polynomial`, because a backend evaluates polynomials of $A$, not
    of $x$. The function `polynomial` converts one to the other.
    """

    theta: float
    rows: tuple[Row, ...]

    @property
    def powers(self) -> int:
        """The number of powers: 2 for A and A^2; 3 for A, A^2 and A^4."""
        return len(self.rows[0]) - 1

    @property
    def products(self) -> int:
        """The number of products of one evaluation, including A^2 and A^4."""
        return len(self.rows[-1]) - 1

    @property
    def squares(self) -> int:
        """How many of the products are squares of Hermitian or skew matrices."""
        stages = polynomial(self, 0).stages
        return self.powers - 1 + sum(stage.is_square for stage in stages)


@lru_cache(maxsize=256)
def polynomial(scheme: Scheme, squarings: int) -> Polynomial:
    """The scheme's polynomial of A / 2^squarings, without I if squarings > 0.

    The squarings store each power Q as Q - I; see `_squared` in products.py.
    """
    unit = scheme.theta * 2.0**squarings
    units = (1.0, unit, unit**2, unit**4)[: scheme.powers + 1]
    rows = []
    for row in scheme.rows:
        powers = (c / u for c, u in zip(row, units, strict=False))
        rows.append((*powers, *row[len(units) :]))
    final = (float(squarings == 0), *rows.pop()[1:])
    return Polynomial((*rows, final))


# everything below is written by tools/generate_schemes.py
# fmt: off
SCHEMES: dict[torch.dtype, tuple[Scheme, ...]] = {
    torch.float32: (
        Scheme(theta=0.065, rows=(
            (0.002112499902606684, 4.575472774150518e-05, 7.435801001616455e-07),
            (0.0, 0.0, 1.0),
            (1.0, 0.06499999396884357, 0.0),
        )),
        Scheme(theta=0.36, rows=(
            (0.0, 1.0, 0.06006718051714967, 0.0),
            (0.0, 0.0, 0.0077757983810859445, 5.006388696988129e-05),
            (1.0, 0.359999966756467, 0.06479999726694566, 0.0002327579220091671),
        )),
        Scheme(theta=1.7, rows=(
            (0.0, 0.0, 1.0, 0.07437606154857901),
            (0.0, 0.0, 1.0, 0.07437606154857901),
            (0.0, 0.9420640257684626, -0.17003993639508908, 0.02578653524901475,
             -0.0037910558106185963),
            (0.0, 0.40375136260877864, 0.942063856002625, 0.05662924443427384,
             0.05952771827533515),
            (1.0, 1.6999998424163734, 1.0646403598297303, 0.28934512097426796,
             0.2188474250080551),
        )),
        Scheme(theta=3.5, rows=(
            (0.66101, 0.34404685740468255, 0.8081588339208426, 0.10346344385173488),
            (0.0, -1.399081263593789, -0.07525731343564987, -0.07156170052521255),
            (0.81523, 0.7843421902439243, 0.6587146574827616, 0.12952872295050996,
             -0.5042997153071908),
            (0.0, 0.301861429360121, 1.6880578799708896, 0.7205378567173126,
             -1.1878705415060828),
            (1.0, 0.8967062836688072, 1.6436293609831085, 0.7059149223798192,
             -1.5804769025649883),
        )),
        Scheme(theta=3.68, rows=(
            (0.887579909, 0.541604859, 2.107154416, 0.303417061),
            (0.0, -0.950043273, -0.059411217, -0.051255197),
            (1.279644883, 0.751440077, 0.739547258, 0.113625933, -0.331829366),
            (0.0, -0.370104749, 2.241465722, 1.116729305, -0.857241109),
            (1.0, 2.012115559, 2.098480304, 1.212012564, -1.4426312),
        )),
    ),
    torch.float64: (
        Scheme(theta=0.00045, rows=(
            (1.0124999999999998e-07, 1.5187499743710943e-11, 1.7085937283756127e-15),
            (0.0, 0.0, 1.0),
            (1.0, 0.0004499999999999999, 0.0),
        )),
        Scheme(theta=0.0125, rows=(
            (0.0, 1.0, 0.0020833360462727646, 0.0),
            (0.0, 0.0, 3.255208333209159e-07, 2.543111642349193e-12),
            (1.0, 0.012499999999999999, 7.8125e-05, 3.3908331827058634e-10),
        )),
        Scheme(theta=0.875, rows=(
            (0.66101, 0.208610069316112, 0.12221712295797174, 0.0010556711528891245),
            (0.0, -0.5715239934971542, 0.003736211977725439, -0.0003904296069111962),
            (0.81523, 0.2222513246415852, 0.1101249525136167, 0.0008549478301828551,
             -0.35320394547064526),
            (0.0, -0.2715964763813104, 0.02511096373301022, 0.001956739890549225,
             -0.1396616942750761),
            (1.0, 0.3851259851767742, 0.22035022586079978, 0.018841362869603334,
             -1.7689373414380885),
        )),
    ),
}
