r"""Compute the polynomials of `expm_skew`, bound their errors, and write `schemes.py`.

    python -m tools.generate_schemes            # print the table of schemes and bounds
    python -m tools.generate_schemes --write    # write schemes.py and the docs' table

The docstring of `schemes.py` defines a scheme and its parts $L_j$, $R_j$ and $P_j$. A
scheme is fitted to $e^{ix}$ and to its derivative together, on $|x| \le \theta$. If a
polynomial fits the value alone, the error of its derivative can be degree$^2$ times as
large at the ends of the interval, and gradients would be biased.

*Two products* give every polynomial of degree 4 with constant term $I$,
$p = I + c_1 A + (c_2 I + c_3 A + c_4 A^2) A^2$.

*Three products* give every such polynomial of degree 6 with $c_5 \ne 0$: if
$\alpha = c_6 / c_5$, $P_3 = (A + \alpha A^2)(c_3 A^2 + c_5 A^4)$ has the terms in
$A^3$, $A^5$ and $A^6$. The final combination supplies the others.

*Four products* reach degree 16, but with fewer free coefficients than a general
polynomial has, and there is no closed form. The starts below are from a random search.
It ran Levenberg--Marquardt from normally distributed coefficients, and then chose the
constants in the factors that give the least rounding error. From a start, Gauss--Newton
steps in 34 digits converge to the least-squares fit nearby, which is the same on every
machine.

The widest scheme of single precision is used as the search found it. For this scheme,
the search went on with Lawson's weights, which minimize the larger of the two maximal
errors. This maximum is half as large as for a least-squares fit. Among several schemes
with this minimum, the search chose the one with the least rounding error on random
matrices. Its rounding error is still a fifth larger than the rounding error of the
scheme for the next smaller angle, so the library has both schemes.

With $L_3 = R_3 = A^2 + a A^4$, $P_3$ is the square of a Hermitian matrix. This saves a
product in the backward pass, but the scheme reaches only smaller angles. One factor of
each product has no multiple of $I$, so every product is small if $A$ is small, and the
diagonal of $\exp A$ is near 1 without cancellation.

*The bound.* Write $p(ix) = e^{ix + h(x)}$. Then $p(A) = \exp(A + \Delta)$ with
$\lVert \Delta \rVert_2 \le \max |h|$. The derivative of $p$ at $A$ applies $I + Dh$ to
a direction, and then the derivative of $\exp$ at $A + \Delta$. Here
$\lVert Dh \rVert \le \max |h'|$. The tables state $\max |h(x) / x|$, the relative
backward error of the value, and $\max |h'|$, the backward error of the gradient. The
maxima are taken at `POINTS` Chebyshev points. Between these points, a polynomial of
degree $d$ exceeds its largest value at the points by a factor of at most
$1 / \cos(\pi d / (2 \cdot$ `POINTS`$))$ [EZ64]. The tables include this factor for
$d =$ `TAIL_DEGREE`, since the terms of higher degree are negligible.
"""

import argparse
import struct
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp

mp.mp.dps = 34

Row = list[mp.mpf]

# degree beyond which the terms of the Chebyshev series of h are far below the bounds
TAIL_DEGREE = 48
POINTS = 400
# how far a coefficient may move from its start at little cost; see `fit`
LEASH = mp.mpf(10) ** -4
# nodes of the fit, the positive Chebyshev nodes of degree 28: enough for the even and
# the odd part of a polynomial of degree 16
NODES = [mp.cos(mp.pi * (2 * k + 1) / 56) for k in range(14)]

# Rows L3, R3, L4, R4 and the final combination of schemes with four products: a scheme
# that is used as it is, and three starts of the fit
WIDEST_ROWS = [
    [0.887579909, 0.541604859, 2.107154416, 0.303417061],
    [0.0, -0.950043273, -0.059411217, -0.051255197],
    [1.279644883, 0.751440077, 0.739547258, 0.113625933, -0.331829366],
    [0.0, -0.370104749, 2.241465722, 1.116729305, -0.857241109],
    [1.0, 2.012115559, 2.098480304, 1.212012564, -1.4426312],
]
SINGLE_START = [
    [0.66101, 0.34405, 0.80815, 0.10346],
    [0.0, -1.39908, -0.07525, -0.07156],
    [0.81523, 0.78434, 0.65873, 0.12954, -0.50431],
    [0.0, 0.30186, 1.68807, 0.72054, -1.18786],
    [1.0, 0.89671, 1.64362, 0.70592, -1.58048],
]
SQUARE_START = [
    [0.0, 0.0, 1.0, 0.0743761],
    [0.0, 0.0, 1.0, 0.0743761],
    [0.0, 0.942064, -0.17004, 0.0257865, -0.00379106],
    [0.0, 0.403751, 0.942064, 0.0566292, 0.0595277],
    [1.0, 1.7, 1.06464, 0.289345, 0.2188473],
]
DOUBLE_START = [
    [0.66101, 0.210119, 0.123076, 0.00107547],
    [0.0, -0.573968, 0.00383103, -0.000399472],
    [0.81523, 0.224074, 0.110519, 0.00087502, -0.352867],
    [0.0, -0.271484, 0.0255355, 0.00201149, -0.141238],
    [1.0, 0.386226, 0.221841, 0.0191537, -1.76967],
]


@dataclass(frozen=True)
class Table:
    """One scheme: angle, bounds, and its rows rounded to double."""

    products: int
    theta: float
    value_error: float
    gradient_error: float
    rows: tuple[tuple[float, ...], ...]


def evaluate(rows: Sequence[Row], z: mp.mpf, theta: mp.mpf):
    """Value and x-derivative of a scheme at A = ix, where x = theta z.

    Also returns the basis elements, their z-derivatives, and the factors of each
    product with their z-derivatives.
    """
    i = mp.mpc(0, 1)
    # the scheme of two products has no A^4
    powers = len(rows[0])
    basis = [mp.mpc(1), i * z, mp.mpc(-(z**2)), mp.mpc(z**4)][:powers]
    slopes = [mp.mpc(0), i, mp.mpc(-2 * z), mp.mpc(4 * z**3)][:powers]
    factors = []
    for L, R in zip(rows[:-1:2], rows[1::2], strict=True):
        left, right = dot(L, basis), dot(R, basis)
        dleft, dright = dot(L, slopes), dot(R, slopes)
        factors.append((left, right, dleft, dright))
        basis.append(left * right)
        slopes.append(dleft * right + left * dright)
    value = basis[-1] + dot(rows[-1], basis[:-1])
    slope = (slopes[-1] + dot(rows[-1], slopes[:-1])) / theta
    return value, slope, basis, slopes, factors


def dot(row: Sequence[mp.mpf], basis: Sequence[mp.mpc]) -> mp.mpc:
    return mp.fsum(a * b for a, b in zip(row, basis, strict=True))


def jacobian(rows: Sequence[Row], z: mp.mpf, theta: mp.mpf):
    """Derivatives of value and slope with respect to every coefficient, row by row."""
    _, _, basis, slopes, factors = evaluate(rows, z, theta)
    last = len(basis) - 1
    # s: derivative of the value with respect to each basis element b, which is also the
    # derivative of the value's z-derivative with respect to the z-derivative of b;
    # t: derivative of the value's z-derivative with respect to b
    s = [mp.mpc(a) for a in rows[-1]] + [mp.mpc(1)]
    t = [mp.mpc(0)] * (last + 1)
    out = [[(basis[j], slopes[j] / theta) for j in range(last)]]
    for stage in reversed(range(len(factors))):
        j = len(rows[0]) + stage
        left, right, dleft, dright = factors[stage]
        L, R = rows[2 * stage], rows[2 * stage + 1]
        by_left = (s[j] * right, t[j] * right + s[j] * dright)
        by_right = (s[j] * left, t[j] * left + s[j] * dleft)
        for row, (a, b) in ((R, by_right), (L, by_left)):
            out.insert(
                0,
                [
                    (a * basis[q], (b * basis[q] + a * slopes[q]) / theta)
                    for q in range(len(row))
                ],
            )
            for q in range(len(row)):
                s[q] += a * row[q]
                t[q] += b * row[q]
    return out


def fit(start: Sequence[Row], theta: mp.mpf, tolerance: mp.mpf) -> list[Row]:
    """Least-squares fit of value and derivative at points theta z, with z in `NODES`.

    Many schemes give almost the same polynomial. A penalty selects the scheme near
    `start`: a coefficient that moves by `LEASH` costs as much as an error of one
    `tolerance` in the derivative at one node.
    """
    rows = [list(row) for row in start]
    free = free_coefficients(rows)
    for _ in range(40):
        normal, right = normal_equations(rows, free, theta, tolerance)
        for a, ((r, q), *_) in enumerate(free):
            right[a] -= (rows[r][q] - start[r][q]) / LEASH**2
            normal[a, a] += 1 / LEASH**2
        change = mp.lu_solve(normal, right)
        for places, delta in zip(free, change, strict=True):
            for r, q in places:
                rows[r][q] += delta
        if mp.norm(change) < mp.mpf(10) ** -20:
            return rows
    raise RuntimeError(f"the fit for theta = {theta} did not converge")


def free_coefficients(rows: Sequence[Row]) -> list[list[tuple[int, int]]]:
    """The places (row, column) of each coefficient that the fit may change.

    Constants do not change: a factor of each product has the constant 0, and the final
    combination has 1. In a square, both factors are A^2 + a A^4, and only `a` changes.
    """
    if rows[0] == rows[1]:
        first = [[(0, 3), (1, 3)]]
    else:
        first = [[(r, q)] for r in (0, 1) for q in range(1, len(rows[r]))]
    rest = [[(r, q)] for r in range(2, len(rows)) for q in range(1, len(rows[r]))]
    return first + rest


def misfits(rows: Sequence[Row], z: mp.mpf, theta: mp.mpf, tolerance: mp.mpf):
    """Errors of value and slope at a node, in units of `tolerance`.

    The error of the value has the weight 4.
    """
    exact = mp.expj(theta * z)
    value, slope, *_ = evaluate(rows, z, theta)
    return 4 * (value - exact) / tolerance, (slope - 1j * exact) / tolerance


def normal_equations(rows, free, theta: mp.mpf, tolerance: mp.mpf):
    """The real parts of J^H J and -J^H r, where r has the misfits at all nodes."""
    normal, right = mp.zeros(len(free)), mp.zeros(len(free), 1)
    for z in NODES:
        jac = jacobian(rows, z, theta)
        for part, misfit in enumerate(misfits(rows, z, theta, tolerance)):
            scale = (4, 1)[part] / tolerance
            col = [
                mp.fsum(jac[r][q][part] for r, q in places) * scale for places in free
            ]
            for a in range(len(free)):
                right[a] -= mp.re(mp.conj(col[a]) * misfit)
                for b in range(a + 1):
                    normal[a, b] += mp.re(mp.conj(col[a]) * col[b])
    for a in range(len(free)):
        for b in range(a):
            normal[b, a] = normal[a, b]
    return normal, right


def polynomial(theta: mp.mpf, degree: int) -> Row:
    """Coefficients of the least-squares polynomial, without its constant term, 1."""
    powers = range(1, degree + 1)
    normal, right = mp.zeros(degree), mp.zeros(degree, 1)
    for z in NODES:
        exact = mp.expj(theta * z)
        value = [4 * (1j * z) ** k for k in powers]
        slope = [1j * k * (1j * z) ** (k - 1) / theta for k in powers]
        for col, wanted in ((value, 4 * (exact - 1)), (slope, 1j * exact)):
            for a in range(degree):
                right[a] += mp.re(mp.conj(col[a]) * wanted)
                for b in range(degree):
                    normal[a, b] += mp.re(mp.conj(col[a]) * col[b])
    return list(mp.lu_solve(normal, right))


def degree_four(theta: mp.mpf) -> list[Row]:
    """The scheme of two products, which has no A^4."""
    c1, c2, c3, c4 = polynomial(theta, 4)
    zero, one = mp.mpf(0), mp.mpf(1)
    return [[c2, c3, c4], [zero, zero, one], [one, c1, zero]]


def degree_six(theta: mp.mpf) -> list[Row]:
    """The scheme of three products: any polynomial of degree 6, rearranged."""
    c1, c2, c3, c4, c5, c6 = polynomial(theta, 6)
    alpha = c6 / c5
    zero, one = mp.mpf(0), mp.mpf(1)
    return [
        [zero, one, alpha, zero],
        [zero, zero, c3, c5],
        [one, c1, c2, c4 - alpha * c3],
    ]


def four_products(start: Sequence[Sequence[float]], theta: mp.mpf, tolerance: str):
    return fit(exact(start), theta, mp.mpf(tolerance))


def exact(rows: Sequence[Sequence[float]]) -> list[Row]:
    return [[mp.mpf(a) for a in row] for row in rows]


def backward_errors(rows: Sequence[Row], theta: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """Bounds of |h(x) / x| and |h'(x)| on |x| <= theta, with p(ix) = e^{ix + h(x)}."""
    value_error = gradient_error = mp.mpf(0)
    for k in range(POINTS // 2):
        z = mp.cos(mp.pi * (2 * k + 1) / (2 * POINTS))
        value, slope, *_ = evaluate(rows, z, theta)
        h = mp.log(value * mp.expj(-theta * z))
        value_error = max(value_error, abs(h / (theta * z)))
        gradient_error = max(gradient_error, abs(slope / value - 1j))
    between = 1 / mp.cos(mp.pi * TAIL_DEGREE / (2 * POINTS))
    return value_error * between, gradient_error * between


def table(rows: Sequence[Row], theta: mp.mpf, code: str) -> Table:
    """The scheme with rows rounded to double, and bounds for its rounded coefficients.

    Rows have coefficients of A / theta. The library converts them to coefficients of A,
    and rounds these to its working precision. The bounds include this rounding. `code`
    is the format character of the working precision in `struct`.
    """
    rounded = tuple(tuple(float(a) for a in row) for row in rows)
    used = []
    for row in rounded:
        powers = len(rows[0])
        units = [1, theta, theta**2, theta**4][:powers] + [1] * (len(row) - powers)
        working = [float(a / unit) for a, unit in zip(row, units, strict=True)]
        working = struct.unpack(code * len(row), struct.pack(code * len(row), *working))
        used.append([a * unit for a, unit in zip(working, units, strict=True)])
    value, gradient = backward_errors(used, theta)
    # A^2 takes a product, and so does A^4 if it is used, and each pair of factors
    products = len(rows[0]) - 2 + len(rows) // 2
    return Table(products, float(theta), up(value), up(gradient), rounded)


def up(x: mp.mpf) -> float:
    """The number with two significant digits, rounded up."""
    unit = mp.mpf(10) ** (mp.floor(mp.log10(x)) - 1)
    return float(mp.nstr(mp.ceil(x / unit) * unit, 3))


def tables() -> dict[str, list[Table]]:
    """All schemes by precision, cheapest first."""
    # these are the angles at which the error of the gradient reaches about eps
    tiny, small, middle, wide, widest = map(mp.mpf, (0.065, 0.36, 1.7, 3.5, 3.68))
    smallest, short, long = map(mp.mpf, (0.00045, 0.0125, 0.875))
    return {
        "float32": [
            table(degree_four(tiny), tiny, "f"),
            table(degree_six(small), small, "f"),
            table(four_products(SQUARE_START, middle, "3e-8"), middle, "f"),
            table(four_products(SINGLE_START, wide, "3e-8"), wide, "f"),
            table(exact(WIDEST_ROWS), widest, "f"),
        ],
        "float64": [
            table(degree_four(smallest), smallest, "d"),
            table(degree_six(short), short, "d"),
            table(four_products(DOUBLE_START, long, "1e-16"), long, "d"),
        ],
    }


# the line of schemes.py below which this program writes everything
MARK = "# everything below is written by tools/generate_schemes.py\n"


def source() -> str:
    """The part of `schemes.py` below `MARK`."""
    lines = ["# fmt: off", "SCHEMES: dict[torch.dtype, tuple[Scheme, ...]] = {"]
    for precision, schemes in tables().items():
        lines.append(f"    torch.{precision}: (")
        for scheme in schemes:
            lines.append(f"        Scheme(theta={scheme.theta!r}, rows=(")
            for row in scheme.rows:
                lines += textwrap.wrap(
                    f"{row},", 88, initial_indent=" " * 12, subsequent_indent=" " * 13
                )
            lines.append("        )),")
        lines.append("    ),")
    return "\n".join([*lines, "}", ""])


def markdown() -> str:
    """The text of docs/theory/schemes.inc."""
    header = "precision | products, value + gradient | up to angle"
    header += " | backward error of the value | of the gradient"
    lines = [f"| {header} |", "| --- | --- | --- | --- | --- |"]
    for precision, schemes in tables().items():
        for s in schemes:
            # the gradient takes one product for a square, and two for any other product
            squares = len(s.rows[0]) - 2 + (s.rows[0] == s.rows[1])
            products = f"{s.products} + {2 * s.products - squares}"
            lines.append(
                f"| {precision} | {products} | {s.theta:g} "
                f"| {s.value_error:.1e} | {s.gradient_error:.1e} |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the schemes of expm_skew.")
    parser.add_argument("--write", action="store_true", help="write, not print")
    if parser.parse_args().write:
        root = Path(__file__).parents[1]
        path = root / "src/isometry/linalg/_expm/schemes.py"
        types, _ = path.read_text().split(MARK)
        path.write_text(types + MARK + source())
        (root / "docs/theory/schemes.inc").write_text(markdown())
    else:
        print(markdown())


if __name__ == "__main__":
    main()
